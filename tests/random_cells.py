"""Random cells as text: hypothesis draws the formula of a cell nobody has written.

Values stay O(1): whatever could grow is squashed, and what is divided by is kept away from 0.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from hypothesis import strategies as st

from functions_of_one import AUTHORS, text_of

FEW_SIZES = (1, 2, 3, 4, 5, 8, 9, 13, 16, 17)
SIZES = st.sampled_from(FEW_SIZES)
SCALAR = ""


def rows(text: str) -> list[tuple[str, float]]:
    """Formulas, each with the largest value that it may have behind a colon; between | and ends of
    lines."""
    each = [row.rpartition(": ") for line in text.splitlines() for row in line.split(" | ")]
    return [(formula, float(bound)) for formula, _, bound in each]


UNARY = [(text_of(name), of.most) for name, of in AUTHORS.items() if of.most]
UNARY += rows(  # of one value
    """silu({}): 3 | gelu({}): 3 | (-{}): 3 | clip({}, -0.75, 1.25): 1.25 | stop_gradient({}): 3
spike({} - 0.1234, 'triangular'): 1 | straight_through({0} > 0.1234, sigmoid({0})): 1 | {}**3: 27
(0.5 + {0} * {0})**-1.5: 3 | elu({}): 3
leaky_relu({}, 0.2): 3 | hardtanh({}, -0.75, 1.25): 1.25 | hardsigmoid({}): 1
(0.3 * floor({0} + 0.1234) + {0}): 4 | ({0} - round({0} + 0.1234)): 1 | ({} + 0.1234) % 0.7: 1"""
)
OF_GROUPS = rows(  # {0}: units, {1}: number of groups, {2}: a weight of a group
    """layer_norm({0}, groups={1}, eps=0.1): 3 | softmax({0}, groups={1}): 1
hardmax({0}, groups={1}) * {0}: 3 | spread(amax({0}, groups={1}), {0}) * {0}: 9
{0} / spread(sqrt(0.5 + mean({0} * {0}, groups={1})), {0}): 3
spread({2} * var({0}, groups={1}), {0}): 9 | tanh({0} * spread(sum({0}, groups={1}), {0})): 1
cumsum(softmax({0})): 1 | softmax(concat({0}, cumsum({0} * 0.1)), groups=2): 1"""
)
OF_BLOCKS = rows(  # {0}: two gate blocks, {1}: a square matrix, {2}: a weight
    """tanh({0} * {2}): 1 | softmax({0}): 1 | cumsum(0.25 * {0}): 9 | hardmax({0}) + {0}: 3
rms_norm({0}, eps=0.1): 3 | spread(amax({0}), {0}) * {0}: 9 | {0} - mean({0}): 3
where({0} > 0.1234, {2}, -{0}): 3 | tanh({1} @ {0}): 1 | tanh({1}.T @ {0} + {2}): 1"""
)
OF_WEIGHTS = rows(  # {0}: a value, {1}: a weight, {2}: a square matrix, {3}: a scalar weight
    """{0} * softmax({1}): 1 | {0} - cumsum(0.25 * {1}): 9 | {0} * hardmax({1}): 1
tanh({0} * sum({1})): 1 | {0} + tanh(mean({1} * {1}) - amax({1})): 3
layer_norm({1}, eps=0.1) + {0}: 6 | {0} * ({2} @ {1}): 4 | {0} + tanh({2}.T @ sin({1})): 4
({2} / sqrt(1 + sum(({2} @ {1}) * ({2} @ {1})))) @ {0}: 4 | tanh(({2} * {3}) @ {0}): 1"""
)
PAIRS = rows(  # of two values
    """(0.5 + abs({0})) ** tanh({1}): 4 | 2.0 ** -abs({0}): 1
({0} + 0.1234) % (0.7 + abs({1})): 3 | where({0} - {1} > 0.1234, {0}, {1}): 3
({0} - {1} < 0.1234) * {0}: 3 | (({0} > 0.1234) * ({1} < 0.2345)) * {0} + {1}: 6
spike({0} - 0.1234, 'atan', alpha=3.0) * {1}: 3 | spike({0} * {1} - 0.1234, 'fast_sigmoid'): 1
straight_through(({0} > 0.1234) * {1}, {0}): 3"""
)


@dataclass(frozen=True)
class Drawn:
    """A cell's text and the sizes of its dims."""

    text: str
    I: int
    H: int
    P: int

    def __repr__(self) -> str:
        return f"I={self.I} H={self.H} P={self.P}\n{self.text}"


@dataclass
class _Writer:
    """A formula being written: which names hold what, and how large they may be."""

    draw: st.DrawFn
    lines: list[str] = field(default_factory=list)
    values: dict[str, str] = field(default_factory=dict)  # name -> dim, "" for a scalar
    bound: dict[str, float] = field(default_factory=dict)
    weights: dict[str, str] = field(default_factory=dict)  # name -> declared dims
    constants: set[str] = field(default_factory=set)  # names of weights that are never trained
    whole: bool = False  # whether all that a cell may say is drawn

    def number(self, choices: tuple[float, ...] = (0.5, -0.5, 0.25, 2.0, 1.0, -1.0)) -> str:
        return repr(self.draw(st.sampled_from(choices)))

    def row(self, table: list[tuple[str, float]]) -> tuple[str, float]:
        return self.draw(st.sampled_from(table))

    def flag(self) -> bool:
        return self.draw(st.booleans())

    def weight(self, dims: str) -> str:
        """A weight of these dims: one that is there already (tied), or a new one."""
        old = [name for name, own in self.weights.items() if own == dims]
        if old and self.draw(st.integers(0, 3)) == 0:
            return self.draw(st.sampled_from(old))
        name = f"w{len(self.weights)}"
        self.weights[name] = dims
        if self.whole and self.draw(st.integers(0, 4)) == 0:
            self.constants.add(name)
        return name

    def let(self, dim: str, text: str, bound: float) -> str:
        """Write one line; squash the value if it may be large."""
        name = f"v{len(self.lines)}"
        if bound > 3:
            squash = self.draw(st.sampled_from(["tanh({})", "sigmoid({})", "sin({})"]))
            text, bound = squash.format(text), 1.0
        self.lines.append(f"{name} = {text}")
        self.values[name], self.bound[name] = dim, bound
        return name

    def pick(self, dim: str | None = None) -> str:
        """A value of one dim (any vector if None), late ones first when it shrinks."""
        fits = [n for n, own in self.values.items() if (own if dim is None else own == dim)]
        fits = fits or [n for n, own in self.values.items() if dim is None and own != SCALAR]
        if not fits and dim == SCALAR:
            return self.let(SCALAR, f"mean({self.pick(self.any_dim())})", 3)
        if not fits:
            return self.product(dim)
        return self.draw(st.sampled_from(fits[::-1]))

    def any_dim(self) -> str:
        return self.draw(st.sampled_from(["H", "P"]))

    def product(self, dim: str) -> str:
        """A matrix times a vector; sometimes transposed, low-rank, or by a computed matrix."""
        source = self.draw(st.sampled_from([n for n, own in self.values.items() if own]))
        inner = self.values[source]
        kind = self.draw(st.sampled_from(["plain", "T", "low", "scaled", "masked"]))
        bound = 1.5 * self.bound[source]
        if kind == "T":
            return self.let(dim, f"{self.weight(f'{inner}, {dim}')}.T @ {source}", bound)
        if kind == "low":
            middle = self.weight(f"2, {inner}")
            return self.let(dim, f"{self.weight(f'{dim}, 2')} @ ({middle} @ {source})", bound)
        matrix = self.weight(f"{dim}, {inner}")
        if kind == "scaled":
            matrix = f"({self.number((0.5, -1.0))} * tanh({matrix}))"
        if kind == "masked":
            matrix = f"({matrix} * {self.weight(f'{dim}, {inner}')})"
        return self.let(dim, f"{matrix} @ {source}", bound)

    def unary(self) -> str:
        """One elementwise function of one value."""
        name = self.pick(self.draw(st.sampled_from(["H", "P", SCALAR])))
        text, bound = self.row(UNARY)
        return self.let(self.values[name], text.format(name), bound)

    def binary(self) -> str:
        """Two values of one dim, or a value and a scalar, a weight, a number."""
        left = self.pick(self.draw(st.sampled_from(["H", "P", SCALAR])))
        dim = self.values[left]
        kind = self.draw(st.sampled_from(["value", "value", "weight", "scalar", "number"]))
        if kind == "value":
            right = self.pick(dim)
            bound = self.bound[right]
        elif kind == "weight":
            right = self.weight(self.draw(st.sampled_from([dim, SCALAR])))
            right, bound = self.draw(
                st.sampled_from([(right, 1), (f"(-exp(-abs({right})))", 1), (f"(2 * {right})", 2)])
            )
        elif kind == "scalar":
            right = self.pick(SCALAR)
            bound = self.bound[right]
        else:
            right, bound = self.number(), 2.0
        own = self.bound[left]
        text, size = self.draw(
            st.sampled_from(
                [
                    ("{} + {}", own + bound),
                    ("{} - {}", own + bound),
                    ("{1} - {0}", own + bound),
                    ("{} * {}", own * bound),
                    ("{} / (1.5 + abs({}))", own),
                    ("minimum({}, {})", max(own, bound)),
                    ("maximum({}, {})", max(own, bound)),
                    ("{0} * {1} + (1 - {0}) * {1}", 2 * own * bound + bound),
                ]
            )
        )
        return self.let(dim, text.format(left, right), size)

    def choice(self) -> str:
        """where and comparisons; what is compared is far from equal almost surely."""
        dim = self.draw(st.sampled_from(["H", "P", SCALAR]))
        a, b = self.pick(dim), self.pick(dim)
        test = self.draw(st.sampled_from(["<", "<=", ">", ">=", "==", "!="]))
        compared = self.pick(self.draw(st.sampled_from([dim, SCALAR])))
        condition = f"{compared} {test} 0.1234"
        if self.flag():
            return self.let(dim, f"({condition}) * {a}", self.bound[a])
        return self.let(dim, f"where({condition}, {a}, {b})", max(self.bound[a], self.bound[b]))

    def reduction(self) -> str:
        """A scalar from a vector."""
        name = self.pick(self.any_dim())
        text = self.draw(
            st.sampled_from(["mean({})", "var({})", "tanh(sum({}))", "mean({0} * {0})", "amax({})"])
        )
        return self.let(SCALAR, text.format(name), 9 if "*" in text or "var" in text else 3)

    def norm(self) -> str:
        """Over all units of a vector, or of two joined ones."""
        name = self.pick(self.any_dim())
        dim = self.values[name]
        kind = self.draw(
            st.sampled_from(["one", "joined", "groups", "softmax", "cumsum", "hardmax", "count"])
        )
        if kind == "count":
            return self.let(dim, f"{name} / sqrt({name}.shape[0])", self.bound[name])
        if kind == "softmax":
            return self.let(dim, f"softmax({name})", 1)
        if kind == "cumsum":
            return self.let(dim, f"cumsum({name} * {self.number((0.25, -0.5))})", 9)
        if kind == "hardmax":
            return self.let(dim, f"hardmax({name}) * {name}", 3)
        if kind == "one":
            return self.let(dim, f"layer_norm({name}, eps=0.1)", 3)
        other = self.pick(dim)
        groups = ", groups=2" if kind == "groups" else ""
        made = f"layer_norm(concat({name}, {other}){groups}, eps=0.1)"
        return self.let(dim, f"split({made}, 2)[{self.draw(st.integers(0, 1))}]", 3)

    def groups(self) -> str:
        """Over groups of 24 units, and back to what they are groups of."""
        name = self.pick(self.any_dim())
        units = self.let("24", f"{self.weight(f'24, {self.values[name]}')} @ {name}", 3)
        groups = self.draw(st.sampled_from([2, 3, 4, 8, 12, 24]))
        made, bound = self.row(OF_GROUPS)
        meets = self.weight(str(groups)) if "{2}" in made else ""
        made = made.format(units, groups, meets)
        dim = self.any_dim()
        if made.startswith("softmax(concat"):
            made = f"split({made}, 2)[1]"
        found = self.let("24", made, bound)
        made = self.let(dim, f"{self.weight(f'{dim}, 24')} @ {found}", 1.5 * self.bound[found])
        del self.values[units], self.values[found]
        return made

    def wide(self) -> str:
        """A product over or into several gate blocks at once, as gates are written."""
        source, other = self.pick(self.any_dim()), self.pick(self.any_dim())
        a, b = self.values[source], self.values[other]
        if self.flag():
            matrix = self.weight(f"H, {a}+{b}")
            return self.let("H", f"{matrix} @ concat({source}, {other})", 3)
        matrix, bias = self.weight(f"2H+P, {a}"), self.weight("2H+P")
        joined = self.let("2H+P", f"{matrix} @ {source} + {bias}", 3)
        first = None
        for index, part in enumerate(("H", "H", "P")):
            cut = f'split({joined}, "H, H, P")[{index}]'
            first = self.let(part, f"sigmoid({cut})", 1) or first
        del self.values[joined]
        return first

    def random(self) -> str:
        """Numbers that are drawn in training, of a value or of a weight; a clipped gradient."""
        name = self.pick(self.draw(st.sampled_from(["H", "P", SCALAR])))
        dim = self.values[name]
        other = self.draw(st.sampled_from([self.pick(dim), self.weight(dim)]))
        text = self.draw(
            st.sampled_from(
                [
                    "dropout({0}, 0.3{2})",
                    "{0} + dropout({1}, 0.5{2})",
                    "zoneout({0}, {1}, 0.4{2})",
                    "{0} + 0.2 * noise({1}{2})",
                    "({1} + noise({1}{2})) * {0}",
                    "uniform({1}{2}) * {0}",
                    "spike({0} + uniform({1}{2}) - 0.6, 'sigmoid')",
                    "clip_gradient({0}, 0.2)",
                    "straight_through(uniform({0}{2}) < sigmoid({0}), sigmoid({0}))",
                ]
            )
        )
        per = self.draw(st.sampled_from(["", ", per='sequence'"]))
        return self.let(dim, text.format(name, other, per), 2 * self.bound[name] + 2)

    def blocks(self) -> str:
        """Two gate blocks made, read as a whole and by a product, and a part of what came of it."""
        a, b = self.draw(st.sampled_from([("H", "H"), ("H", "P"), ("P", "P"), ("P", "H")]))
        dim = f"2{a}" if a == b else f"{a}+{b}"
        whole = self.pick(dim) if dim in self.values.values() else None
        if whole is None or self.flag():
            whole = self.let(dim, f"concat({self.pick(a)}, {self.pick(b)})", 3)
        text, bound = self.row(OF_BLOCKS)
        matrix = self.weight(f"{dim}, {dim}") if "{1}" in text else ""
        bias = self.weight(dim) if "{2}" in text else ""
        made = self.let(dim, text.format(whole, matrix, bias), bound)
        place = self.draw(st.integers(0, 1))
        return self.let((a, b)[place], f'split({made}, "{a}, {b}")[{place}]', self.bound[made])

    def of_weights(self) -> str:
        """What depends on weights alone, reductions and products too, beside a value."""
        name = self.pick(self.any_dim())
        dim = self.values[name]
        text, bound = self.row(OF_WEIGHTS)
        matrix = self.weight(f"{dim}, {dim}") if "{2}" in text else ""
        scalar = self.weight(SCALAR) if "{3}" in text else ""
        return self.let(dim, text.format(name, self.weight(dim), matrix, scalar), bound)

    def pair(self) -> str:
        """Functions of two values with a derivative to each, and two values that are compared."""
        dim = self.draw(st.sampled_from(["H", "P", SCALAR]))
        a, b = self.pick(dim), self.pick(dim)
        text, bound = self.row(PAIRS)
        return self.let(dim, text.format(a, b), bound)

    def step(self) -> str:
        ways = [self.unary, self.binary, self.product, self.choice, self.reduction, self.norm]
        ways += [self.binary, self.product, self.wide, self.groups]
        ways += [self.blocks, self.of_weights, self.pair]
        ways += [self.random, self.random] if self.whole else []
        way = self.draw(st.sampled_from(ways))
        return way(self.any_dim()) if way == self.product else way()


@st.composite
def drawn_cells(draw: st.DrawFn, whole: bool = False) -> Drawn:
    """A cell of one to three states of two sizes, with one or two inputs, and any ops; ``whole``:
    with constants, static inputs, several outputs and random numbers too, which modules have."""
    write = _Writer(draw, whole=whole)
    states = {"h": "H"}
    for name in ("s", "q")[: draw(st.integers(0, 2))]:
        states[name] = draw(st.sampled_from(["H", "P", "P", SCALAR, "2H", "H+P"]))
    inputs = {"x": "I"}
    second = draw(st.sampled_from([None, "m", "k"]))
    if second:
        inputs[second] = SCALAR if second == "m" else draw(st.sampled_from(["H", "2H"]))
    dims = ["H", "P", SCALAR, "H+P"]
    static = {"z": draw(st.sampled_from(dims))} if whole and write.flag() else {}
    for name, dim in {**inputs, **static, **states}.items():
        write.values[name], write.bound[name] = dim, 2.0
    write.product("H")
    for _ in range(draw(st.integers(2, 9))):
        write.step()
    output = draw(st.sampled_from([None, None, "H", "P", SCALAR, "P+H"]))
    returned = {} if output is None else {"y": output}
    if whole:
        for name in ("e", "u")[: draw(st.integers(0, 2)) if returned else 0]:
            returned[name] = draw(st.sampled_from(["H", "P", SCALAR]))
    results: list[str] = []
    for name, dim in {**returned, **states}.items():
        made = write.pick(dim)
        if name in states and write.flag():  # mostly gated: h' = a·h + …, as cells are
            made = write.let(dim, f"0.5 * {name} + 0.5 * tanh({made})", 2)
        results.append(made)
    text = cell_text(
        write.lines, write.weights, inputs, states, returned, results, static, write.constants
    )
    return Drawn(text, draw(SIZES), draw(SIZES), draw(SIZES))


def _declared(entries: dict[str, str]) -> str:
    return ", ".join(f"{name}[{dims}]" if dims else name for name, dims in entries.items())


def cell_text(
    lines: Sequence[str],
    weights: Mapping[str, str],
    inputs: dict[str, str],
    states: dict[str, str],
    returned: dict[str, str],
    results: list[str],
    static: dict[str, str] | None = None,
    constants: Collection[str] = (),
) -> str:
    """The text of a cell: declared names with their dims, the lines of its formula, and what it
    returns; ``constants`` are those of the weights that are never trained."""
    static = static or {}
    output = f'output="{_declared(returned)}", ' if returned else ""
    output += f'static="{_declared(static)}", ' if static else ""
    trained = {name: dims for name, dims in weights.items() if name not in constants}
    fixed = {name: weights[name] for name in weights if name in constants}
    declared = f', constants="{_declared(fixed)}"' if fixed else ""
    arguments = ", ".join([*inputs, *static, *states, *trained, *fixed])
    return "\n".join(
        [
            f'@cell(input="{_declared(inputs)}", state="{_declared(states)}", {output}',
            f'      weights="{_declared(trained)}"{declared})',
            f"def drawn({arguments}):",
            *(f"    {line}" for line in lines),
            f"    return {', '.join(results)}",
            "",
        ]
    )


_MATRICES = ["{0}", "{0}.T", "{0}", "{0}.T", "(0.5 * {0})", "tanh({0})", "({0} - {1}.T)"]


@st.composite
def reusing_cells(draw: st.DrawFn) -> Drawn:
    """A cell of few weights, each used up to three times: plain, transposed, tied, in expressions
    of weights, on inputs, on states, on both and on products.

    Sums are long and vectors few, so that uses meet in one sum and at one operand.
    """
    weights = {"A": "H, H", "B": "H, H", "W": "H, I", "g": "H", "s": SCALAR}
    left = dict.fromkeys(weights, 3)
    vectors = ["k", "h"]
    lines: list[str] = []

    def use(*names: str) -> bool:
        if any(left[name] < names.count(name) for name in names):
            return False
        for name in names:
            left[name] -= 1
        return True

    def vector() -> str:
        found = draw(st.sampled_from(vectors))
        kind = draw(st.sampled_from(["plain", "plain", "plain", "gain", "scale"]))
        if kind == "gain" and use("g"):
            return f"(g * {found})"
        if kind == "scale" and use("s"):
            return f"(s * {found})"
        return found

    def square() -> str:
        first, second = draw(st.sampled_from([("A", "B"), ("A", "A"), ("B", "A")]))
        form = draw(st.sampled_from(_MATRICES))
        if not use(first, *([second] if "{1}" in form else [])):
            return vector()
        return f"{form.format(first, second)} @ {vector()}"

    def term() -> str:
        kind = draw(st.sampled_from(["square", "square", "square", "input", "back", "bias"]))
        if kind == "input" and use("W"):
            return "W @ x"
        if kind == "back" and use("W", "W"):
            return f"W @ (W.T @ {vector()})"
        if kind == "bias" and use("g"):
            return draw(st.sampled_from(["g", "(2 * g)", "exp(-abs(g))", "(g * g)"]))
        return square()

    for index in range(draw(st.sampled_from([1, 1, 2, 3]))):
        text = square()
        for _ in range(draw(st.sampled_from([2, 3, 1, 4]))):
            text += draw(st.sampled_from([" + ", " - ", " - 0.5 * "])) + term()
        squash = draw(st.sampled_from(["tanh({})", "sigmoid({})", "0.3 * ({})"]))
        lines.append(f"v{index} = {squash.format(text)}")
        vectors.append(f"v{index}")
    states = {"h": f"v{len(lines) - 1}", "q": draw(st.sampled_from(["v0", "h"]))}
    results = [f"0.5 * tanh({value}) + 0.5 * {name}" for name, value in states.items()]
    text = cell_text(lines, weights, {"x": "I", "k": "H"}, dict.fromkeys(states, "H"), {}, results)
    return Drawn(text, draw(SIZES), draw(SIZES), 2)

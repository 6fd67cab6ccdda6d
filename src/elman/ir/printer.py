"""Print graphs, for people and for golden tests.

A value has a line of its own where the cell named it, where it is read more than once, or where a
step has to produce it; everything else stands inside its reader's line. Blocks of a weight are
numbered from 0: ``W.2`` is the third gate's rows, ``W.0.1`` also the second operand's columns.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterable, Mapping, Sequence

from elman.ir.graph import Graph, Node, readers, walk
from elman.ir.ops import OF_PARTS, OPS
from elman.ir.pair import Pair, Step, loop_invariant
from elman.ir.types import is_matrix, show_dim, show_shape

Hints = Mapping[Node, str]
_SHORT = 16  # a text of so many characters is as good as a name
_LONG = 56  # and one of more characters is too long to stand inside another
_INFIX = {"add": "+", "sub": "-", "mul": "*", "div": "/", "matmul": "@", "outer": "⊗"}
_COMPARE = {"lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!="}
_NAMED = ("tanh", "sigmoid", "exp", "sqrt", "softplus", "mean", "var", "amax")
_SUM, _TIMES, _ATOM = 0, 1, 2  # how tightly a text binds


class Names:
    """Names of the values printed on lines of their own, and expressions of all others."""

    def __init__(self) -> None:
        self._name: dict[Node, str] = {}
        self._used_names: set[str] = set()
        self._count: dict[str, int] = {}

    def __contains__(self, value: Node) -> bool:
        return value in self._name

    def give(self, value: Node, wish: str) -> None:
        """Name a value; a name in use gets a prime, then a number."""
        if value in self._name:
            return
        name, count = wish, 1
        while name in self._used_names:
            name, count = (f"{wish}′" if count == 1 else f"{wish}_{count}"), count + 1
        self._name[value] = name
        self._used_names.add(name)

    def is_used(self, text: str) -> bool:
        """Whether a name is in use."""
        return text in self._used_names

    def forget(self, value: Node) -> None:
        """Take a name back."""
        self._used_names.discard(self._name.pop(value, ""))

    def number(self, value: Node, prefix: str) -> None:
        """Name a value by the next number: ``v1``, ``v2``, …"""
        self._count[prefix] = self._count.get(prefix, 0) + 1
        self.give(value, f"{prefix}{self._count[prefix]}")

    def leaves(self, leaves: Collection[Node], mark: str = "{}") -> None:
        """Name leaves as declared; block indices that can only be 0 are omitted."""
        for leaf in leaves:
            indices = [block.data[1:] for block in leaves if block.name == leaf.name]
            text = leaf.name
            if any(place[0] for place in indices if place) or any(any(i[1:]) for i in indices):
                text += f".{leaf.data[1]}"
            if any(any(place[1:]) for place in indices):
                text += f".{leaf.data[2]}"
            self.give(leaf, mark.format(text))

    def short(self, value: Node) -> str:
        """A value's name, or its text if it has none."""
        return self._name.get(value) or self._text(value)[0]

    def line(self, value: Node) -> tuple[str, str, str]:
        """(name, right-hand side, shape) of a value with a line of its own."""
        return self._name[value], self._text(value)[0], show_shape(value.shape)

    def defined(self, value: Node) -> tuple[str, ...]:
        """(name, right-hand side), or the text alone where there is no name."""
        text = self._text(value)[0]
        return (self._name[value], text) if value in self._name else (text,)

    def brief(self, value: Node) -> bool:
        """Whether a value is printed inline instead of named: ``tanh(c′)``, ``1 - z``."""
        has_names = all(arg in self._name or OPS[arg.op].kind == "leaf" for arg in value.args)
        if value.op == "matmul" or len(value.args) > 2:
            return False
        return has_names and len(self._text(value)[0]) <= _SHORT

    def inner(self, value: Node) -> str:
        """A value's name, or its text, in brackets if it is more than one word."""
        return self._inner(value, _ATOM)

    def summand(self, left: Node, right: Node | None) -> str:
        """A term of a weight's gradient: ``left ⊗ right``, or ``left`` alone."""
        return self.short(left) if right is None else f"{self.inner(left)} ⊗ {self.inner(right)}"

    def _inner(self, value: Node, binding: int) -> str:
        """A value inside an expression; in brackets where it binds less than ``binding``."""
        if value in self._name:
            return self._name[value]
        text, binding_of_text = self._text(value)
        return text if binding_of_text >= binding else f"({text})"

    def _text(self, value: Node) -> tuple[str, int]:
        """The right-hand side of a value, and how tightly it binds."""
        args = value.args
        if value.op == "const":
            return f"{value.number:g}", _ATOM if value.number >= 0 else _SUM
        if value.op == "count":
            return show_dim(value.data), _ATOM
        if value.op == "lin":
            return self._sum(value)
        if value.op == "neg":
            return f"-{self._inner(args[0], _TIMES)}", _SUM
        if value.op == "transpose":
            return f"{self._inner(args[0], _ATOM)}ᵀ", _ATOM
        if value.op == "split":
            start, stop = (int(str(edge)) for edge in value.data)
            edges = str(start) if stop == start + 1 else f"{start}:{stop}"
            return f"{self._inner(args[0], _ATOM)}[{edges}]", _ATOM
        if value.op == "matmul":
            matrix = self._inner(args[0], _ATOM) + ("ᵀ" if value.transposed else "")
            return f"{matrix} @ {self._inner(args[1], _ATOM)}", _TIMES
        if value.op in _COMPARE:
            left, right = (self._inner(arg, _TIMES) for arg in args)
            return f"{left} {_COMPARE[value.op]} {right}", _SUM
        if value.op in ("add", "sub"):
            right = self._inner(args[1], _SUM if value.op == "add" else _TIMES)
            return f"{self._inner(args[0], _SUM)} {_INFIX[value.op]} {right}", _SUM
        if value.op == "bmm":
            left, right = (
                self._inner(arg, _ATOM) + (".T" if side in value.data else "")
                for arg, side in zip(args, "LR", strict=True)
            )
            return f"{left} @ {right}", _TIMES
        if value.op == "reblock":  # the same units
            return self._inner(args[0], _ATOM), _ATOM
        if value.op == "swapaxes":
            return f"{self._inner(args[0], _ATOM)}.T", _ATOM
        if value.op in _INFIX:
            left = self._inner(args[0], _ATOM if args[0].op == "matmul" else _TIMES)
            loose = value.op == "mul" and args[1].op == "mul"
            right = self._inner(args[1], _TIMES if loose else _ATOM)
            return f"{left} {_INFIX[value.op]} {right}", _TIMES
        if not args:
            return value.name, _ATOM
        if value.op == "uniform":  # which draw of the formula, and which gate block of it
            function = ".".join(map(str, (value.op, *value.data)))
            return f"{function}({', '.join(self._inner(arg, _SUM) for arg in args)})", _ATOM
        texts = [self._inner(arg, _SUM) for arg in args]
        if value.op == "cumsum" and value.backward_in_units:
            texts.append("reverse=True")
        elif value.op == "roll":
            texts.append(f"{value.data[0]}")
        elif value.op in OF_PARTS:
            texts += [f"at={show_dim(value.data) or 0}", show_dim(value.shape[0])]
        elif len(args) == 1 and is_matrix(args[0]) and value.op != "fold" and value.shape:
            texts.append("axis=1")
        elif value.op == "fold":
            return f"sum({texts[0]}, axis=0)", _ATOM
        elif value.op in ("spread", "tile") and is_matrix(value) and args[0].shape:
            return f"{'rows' if value.op == 'spread' else 'columns'}({texts[0]})", _ATOM
        elif OPS[value.op].kind == "reduce" and value.shape:
            texts.append(f"groups={show_dim(value.shape[0])}")
        elif OPS[value.op].kind == "spread":
            texts.append(show_dim(value.shape[0]))
        return f"{value.op}({', '.join(texts)})", _ATOM

    def _sum(self, value: Node) -> tuple[str, int]:
        if len(value.args) == 1 and value.coefs == (1.0,) and not value.bias:
            return f"broadcast({self._inner(value.args[0], _SUM)})", _ATOM
        first = f"{value.bias:g}" if value.bias else ""
        text = first if value.coefs[0] < 0 else ""
        for coef, term in zip(value.coefs, value.args, strict=True):
            size = "" if abs(coef) == 1 else f"{abs(coef):g} * "
            sign = "-" if coef < 0 else "+"
            term_text = f"{size}{self._inner(term, _TIMES)}"
            lead = "-" if coef < 0 else ""
            text = f"{text} {sign} {term_text}" if text else f"{lead}{term_text}"
        if first and value.coefs[0] >= 0:
            text += f" - {-value.bias:g}" if value.bias < 0 else f" + {first}"
        return text, _SUM


def source_names(values: Iterable[Node]) -> dict[Node, str]:
    """The names that the cell's own lines give: ``r`` for the root of ``r = sigmoid(xr + hr)``."""
    lines: dict[str, list[Node]] = {}
    for value in values:
        if value.where and value.args:
            lines.setdefault(value.where, []).append(value)
    names: dict[Node, str] = {}
    for where, members in lines.items():
        read = {arg for value in members for arg in value.args}
        tops = [value for value in members if value not in read]
        targets = _targets(where.partition(": ")[2])
        if all(top.op == "split" for top in tops):
            tops.sort(key=lambda top: int(str(top.data[0])))
        if len(targets) == len(tops):
            names.update(zip(tops, targets, strict=True))
    return names


def _targets(text: str) -> list[str]:
    """The names a line assigns to: of ``a, b = split(v, 2)``, a and b."""
    try:
        parsed = ast.parse(text).body
    except SyntaxError:  # a line of a longer statement, or none at all
        return []
    if len(parsed) != 1 or not isinstance(parsed[0], ast.Assign):
        return []
    target = parsed[0].targets[0]
    if isinstance(target, ast.Tuple) and isinstance(parsed[0].value, ast.Tuple):
        return []
    names = target.elts if isinstance(target, ast.Tuple) else [target]
    return [name.id for name in names if isinstance(name, ast.Name)]


def _name_shared(names: Names, values: Iterable[Node], prefix: str) -> None:
    """Number values that are read more than once or whose expression is too long."""
    order = list(values)
    readings = readers(order)
    for value in order:
        if OPS[value.op].kind == "leaf" or value in names:
            continue
        is_shared = len(readings.get(value, ())) > 1 and not names.brief(value)
        if is_shared or len(names.short(value)) > _LONG:
            names.number(value, prefix)


def _aligned(lines: list[tuple[str, str, str]]) -> list[str]:
    width = max((len(name) for name, _, _ in lines), default=0)
    return [f"{name:<{width}} = {text}  {shape}" for name, text, shape in lines]


def _bodies(names: Names, values: Iterable[Node]) -> list[str]:
    entries = [value for value in values if value in names and OPS[value.op].kind != "leaf"]
    return _aligned([names.line(value) for value in entries])


def show_graph(
    graph: Graph,
    static: Collection[str] = (),
    constants: Collection[str] = (),
    outputs: Sequence[str] = (),
) -> str:
    """Print a graph as written: leaves, one line per value, what comes out.

    Args:
        graph: what is printed.
        static: names of the inputs that have one value per sequence.
        constants: names of the weights that are never trained.
        outputs: names of the outputs, if there are several.
    """
    names = Names()
    for leaf in graph.leaves:
        names.give(leaf, leaf.name)
    for value, name in source_names(graph.walk()).items():
        names.give(value, name)
    _name_shared(names, graph.walk(), "v")
    groups = (
        ("", [leaf for leaf in graph.inputs if leaf.name not in static]),
        ("static ", [leaf for leaf in graph.inputs if leaf.name in static]),
        ("", graph.states),
        ("", [leaf for leaf in graph.weights if leaf.name not in constants]),
        ("constant ", [leaf for leaf in graph.weights if leaf.name in constants]),
    )
    head = "; ".join(
        kind
        + ", ".join(leaf.name + (show_shape(leaf.shape) if leaf.shape else "") for leaf in leaves)
        for kind, leaves in groups
        if leaves
    )
    ends: list[str] = []
    for leaf, root in zip(graph.states, graph.next_states, strict=True):
        text = names.short(root)
        ends.append(text if text == f"{leaf.name}′" else f"{leaf.name}′ = {text}")
    several = len(graph.outputs) > 1
    for index, value in enumerate(graph.outputs):
        name, text = outputs[index] if outputs else "output", names.short(value)
        if several or value not in graph.next_states:
            ends.append(text if text == name else f"{name} = {text}")
    return "\n".join([f"leaves: {head}", *_bodies(names, graph.walk()), f"next: {', '.join(ends)}"])


def pair_names(pair: Pair, hints: Hints | None = None) -> Names:
    """Name the values of a step and of its adjoint.

    ``h′`` is the next state; ``dr`` the cotangent of r, ``δr`` that of what r is a function of;
    ``dout`` and ``dh′`` come in from the output and from the step after.

    Args:
        pair: the two steps.
        hints: names for some values of the step, from the cell's text.
    """
    step, names = pair.step, Names()
    names.leaves(step.inputs)
    names.leaves(step.states)
    names.leaves(step.weights)
    for leaf, root in zip(step.states, step.next_states, strict=True):
        names.give(root, f"{names.short(leaf)}′")
    order = [*walk(step.roots)]
    for value, name in (hints or {}).items():
        if OPS[value.op].kind != "leaf":
            names.give(value, name)
    _name_functions(names, order)
    _name_shared(names, order, "v")
    several = len(pair.d_outputs) > 1
    for index, leaf in enumerate(pair.d_outputs):
        label = (hints or {}).get(step.outputs[index], index)
        names.give(leaf, f"dout.{label}" if several else "dout")
    for leaf, state in zip(pair.d_next, step.states, strict=True):
        names.give(leaf, f"d{names.short(state)}′")
    for leaf, d in (
        *zip(step.states, pair.d_states, strict=True),
        *zip(step.inputs, pair.d_inputs, strict=True),
    ):
        if d is not None and OPS[d.op].kind != "leaf":
            names.give(d, f"d{names.short(leaf)}")
    _name_gradients(names, pair, order)
    for index, (_, leaf) in enumerate(pair.d_invariants):
        names.give(leaf, f"Σ{index}")
    _name_shared(names, backward_values(pair), "d")
    return names


def _name_functions(names: Names, order: list[Node]) -> None:
    """Name functions of long sums and reductions by op: ``tanh1``, ``mean2``."""
    for value in order:
        if loop_invariant(value) or value in names:  # weights alone: shown where they are read
            continue
        if value.op in _NAMED and not names.brief(value):
            names.number(value, value.op)


def _name_gradients(names: Names, pair: Pair, order: list[Node]) -> None:
    """Name the cotangents that the gradients of matrices and biases are summed from."""
    readings = readers(order)
    for term in pair.sums:
        for value in readings.get(term.target, ()):
            product = OPS[value.op].kind == "product" and value.args[1] is term.right
            if not product and value.op != "lin":
                continue
            wish = _destination(names, value, readings)
            if wish and term.left not in names and OPS[term.left.op].kind != "leaf":
                names.give(term.left, wish)


def _destination(names: Names, value: Node, readings: Mapping[Node, list[Node]]) -> str:
    """Name of a summand's cotangent, after the named value that the summand goes into."""
    name = ""
    while True:
        if value in names:
            name = f"d{names.short(value)}"
        above = readings.get(value, [])
        if len(above) != 1 or value.op not in ("lin", "matmul"):
            return name
        if above[0].op != "lin":
            function = len(above[0].args) == 1 and above[0] in names
            return f"δ{names.short(above[0])}" if function else name
        value = above[0]


def backward_values(pair: Pair) -> list[Node]:
    """Every value that only the backward step has, arguments first."""
    step = pair.step
    operands = [v for term in pair.sums for v in (term.left, term.right) if v is not None]
    ends = [d for d in pair.d_inputs if d is not None]
    inside = set(walk(step.roots))
    return [v for v in walk([*pair.d_states, *operands, *ends]) if v not in inside]


def show_step(step: Step, names: Names) -> str:
    """Print the canonical step: one line per value that the cell named or that is read twice."""
    lines = _bodies(names, walk(step.roots))
    states = zip(step.states, step.next_states, strict=True)
    plain = [f"next {names.short(leaf)} = {names.short(v)}" for leaf, v in states if not v.args]
    is_state = all(value in step.next_states for value in step.outputs)
    out = ", ".join(names.short(value) for value in step.outputs)
    return "\n".join([*lines, *plain, *([] if is_state else [f"output: {out}"])])


def show_backward(pair: Pair, names: Names) -> str:
    """Print the backward step, then what is summed over T·B for the weights."""
    lines = _bodies(names, backward_values(pair))
    cotangents = {value for value in pair.d_states if value.args}
    for leaf, d in zip(pair.step.states, pair.d_states, strict=True):
        if d not in cotangents:
            lines.append(f"d{names.short(leaf)} = {names.short(d)}")
    return "\n".join([*lines, *show_sums(pair, names)])


def show_sums(pair: Pair, names: Names) -> list[str]:
    """One line per loop-invariant value: ``∂W.0 += δr ⊗ x``; terms of one target are joined."""
    terms: dict[Node, list[str]] = {}
    for term in pair.sums:
        terms.setdefault(term.target, []).append(names.summand(term.left, term.right))
    return [
        f"∂{names.inner(target)} += {' + '.join(summands)}" for target, summands in terms.items()
    ]

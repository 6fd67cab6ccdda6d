"""Newton's iteration on all steps of a small cell at once: an iteration in a few kernels.

A block of steps loads the iterate, evaluates the cell and its Jacobian in registers, and scans the
linearised recurrence as ``scans`` does: once for what each block does as a whole, and once more,
from the state before each block, for all steps. Nothing as large as a Jacobian goes to memory.

Source: Lim, Zhu, Selfridge & Kasim 2024 (DEER), arXiv:2309.12252v3, eq. 3 to 6.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from elman.engines.triton.launch import launching
from elman.engines.triton.ops import SPELL, number, spell_sum
from elman.engines.triton.scans import MOST, block, chunks_before, joined
from elman.engines.triton.source import function
from elman.ir.graph import Node, Rate, walk
from elman.ir.ops import OPS
from elman.ir.pair import sealed
from elman.ir.types import dim_size, shape_size

Entry = str | float  # one unit of a value: a name, or a number that is known


class _Writer:
    """Lines that compute values unit by unit: each unit is a block [steps, channels].

    Args:
        sizes: of the named dims.
        units: whether units are channels: every value is one block then.
    """

    def __init__(self, sizes: Mapping[str, int], *, units: bool) -> None:
        self.sizes, self.units = sizes, units
        self.known: dict[Node, list[Entry]] = {}
        self.lines: list[str] = []
        self.sealed: dict[Node, int] = {}  # offsets among all values of weight rate
        self.sealed_size = 0
        self.rows: dict[Node, int] = {}  # places among all values of rows
        self.rows_size = 0
        self._count = 0

    def size(self, value: Node) -> int:
        """Units of a value; rows times columns of a matrix."""
        found = 1
        for size in shape_size(value.shape, self.sizes):
            found *= size
        return found

    def count(self, value: Node) -> int:
        """Entries of a value."""
        return 1 if self.units else self.size(value)

    def _named(self, text: str) -> str:
        self._count += 1
        name = f"x{self._count}"
        self.lines.append(f"{name} = {text}")
        return name

    def value(self, root: Node) -> list[Entry]:
        """The entries of a value, computed if they are not known."""
        for node in walk([root], stop=lambda found: found in self.known or self._given(found)):
            if node not in self.known:
                self.known[node] = self._loaded(node) if self._given(node) else self._made(node)
        return self.known[root]

    def forget(self, rate: Rate) -> None:
        """Forget what changes so often, or oftener."""
        self.known = {node: own for node, own in self.known.items() if node.rate < rate}

    def _given(self, node: Node) -> bool:
        return node.rate <= Rate.INPUT and node.op not in ("const", "count")

    def _loaded(self, node: Node) -> list[Entry]:
        """What the caller computed: of all rows, or once per call."""
        entries: list[Entry] = []
        if sealed(node):
            at = self.sealed.setdefault(node, self.sealed_size)
            self.sealed_size = max(self.sealed_size, at + self.size(node))
            if self.units and node.shape:
                return [self._named(f"tl.load(vec + {at} + unit)")]
            for k in range(self.count(node)):
                entries.append(self._named(f"tl.load(vec + {at + k})"))
            return entries
        at = self.rows.setdefault(node, self.rows_size)
        self.rows_size = max(self.rows_size, at + self.count(node))
        for k in range(self.count(node)):
            load = f"tl.load(X + {at + k} * plane + at, mask=inside, other=0.0)"
            entries.append(self._named(load))
        return entries

    def _made(self, node: Node) -> list[Entry]:
        if node.op == "const":
            return [node.number]
        if node.op == "count":
            return [float(dim_size(node.data, self.sizes))]
        args = [self.known[arg] for arg in node.args]
        if node.op == "matmul":
            return self._product(node, args[0], args[1])
        if OPS[node.op].kind == "reduce":
            parts = zip(node.args, args, strict=True)
            return [self._reduced(node, [e for arg, own in parts for e in self._wide(arg, own)])]
        count = max([self.count(node), *map(len, args)])
        each = zip(*(own if len(own) == count else own * count for own in args), strict=True)
        return [self._pointwise(node, list(entries)) for entries in each]

    def _wide(self, value: Node, entries: list[Entry]) -> list[Entry]:
        return entries if len(entries) == self.count(value) else entries * self.count(value)

    def _product(self, node: Node, matrix: list[Entry], vector: list[Entry]) -> list[Entry]:
        rows, columns = shape_size(node.args[0].shape, self.sizes)
        vector = self._wide(node.args[1], vector)
        out, inner = (columns, rows) if node.transposed else (rows, columns)
        made: list[Entry] = []
        for o in range(out):
            places = [
                (i * columns + o if node.transposed else o * columns + i) for i in range(inner)
            ]
            pairs = [(matrix[place], vector[i]) for i, place in enumerate(places)]
            made.append(self._sum([(1.0, self._times(a, b)) for a, b in pairs]))
        return made

    def _times(self, a: Entry, b: Entry) -> Entry:
        """A product; zero times anything is zero, as where no gradient flows."""
        if 0.0 in (a, b):
            return 0.0
        if a == 1.0:
            return b
        if b == 1.0:
            return a
        return self._named(f"{_text(a)} * {_text(b)}")

    def _sum(self, terms: Sequence[tuple[float, Entry]], bias: float = 0.0) -> Entry:
        bias += sum(coef * entry for coef, entry in terms if isinstance(entry, float))
        named = [(coef, entry) for coef, entry in terms if isinstance(entry, str)]
        if not named:
            return bias
        if len(named) == 1 and named[0][0] == 1.0 and not bias:
            return named[0][1]
        coefs = tuple(coef for coef, _ in named)
        return self._named(spell_sum(coefs, bias, [entry for _, entry in named]))

    def _pointwise(self, node: Node, args: list[Entry]) -> Entry:
        if node.op == "lin":
            return self._sum(list(zip(node.coefs, args, strict=True)), node.bias)
        if node.op == "mul":
            return self._times(args[0], args[1])
        if node.op == "div" and args[0] == 0.0:
            return 0.0
        if node.op == "where" and args[1] == args[2]:
            return args[1]
        if node.op == "stop":
            return args[0]
        return self._named(SPELL[node.op].format(*(_text(arg, wide=True) for arg in args)))

    def _reduced(self, node: Node, entries: list[Entry]) -> Entry:
        if node.op == "amax":
            text = _text(entries[0], wide=True)
            for entry in entries[1:]:
                other = _text(entry, wide=True)
                text = f"tl.maximum({text}, {other}, propagate_nan=tl.PropagateNan.ALL)"
            return self._named(text)
        share = 1.0 if node.op == "sum" else 1.0 / len(entries)
        total = self._sum([(share, entry) for entry in entries])
        if node.op != "var":
            return total
        off = [self._sum([(1.0, entry), (-1.0, total)]) for entry in entries]
        return self._sum([(share, self._times(one, one)) for one in off])


def _text(entry: Entry, *, wide: bool = False) -> str:
    """An entry as text; a number as a block where a function wants one."""
    if isinstance(entry, str):
        return entry
    return f"tl.full([1, 1], {number(entry)}, tl.float32)" if wide else number(entry)


class Newton:
    """One iteration for a cell whose recurrent states are one small group.

    Args:
        states: leaves of the recurrent states, in the order of the trajectory.
        after: their next values.
        seeds, rows: cotangents of the next values, and the states' cotangents (None: zero).
        sizes: of the named dims.
        units: whether units do not mix: the trajectory is [T, n, N], n states with units among the
            N channels; else it is [T, N, n], n units of all states.
    """

    def __init__(
        self,
        states: Sequence[Node],
        after: Sequence[Node],
        seeds: Sequence[Node],
        rows: Sequence[Node | None],
        sizes: Mapping[str, int],
        *,
        units: bool,
    ) -> None:
        writer = _Writer(sizes, units=units)
        counts = [writer.count(state) for state in states]
        n = sum(counts)
        self.n, self.units = n, units
        self.width = max(writer.size(state) for state in states) if units else 1
        names = [f"h{i}" for i in range(n)]
        at = [sum(counts[:k]) for k in range(len(counts))]
        for state, first, count in zip(states, at, counts, strict=True):
            writer.known[state] = list(names[first : first + count])
        f: list[Entry] = []
        for value, state in zip(after, states, strict=True):
            own = writer.value(value)
            f += own if len(own) == writer.count(state) else own * writer.count(state)
        J: list[list[Entry]] = []
        for s in range(n):
            seeded: dict[Node, list[Entry]] = {
                seed: [float(s == first + i) for i in range(count)]
                for seed, first, count in zip(seeds, at, counts, strict=True)
            }
            writer.known |= seeded
            row: list[Entry] = []
            for root, count in zip(rows, counts, strict=True):
                own = [0.0] if root is None else writer.value(root)
                row += own if len(own) == count else own * count
            J.append(row)
            writer.forget(Rate.OUTPUT)
        self.sealed, self.rows = list(writer.sealed), list(writer.rows)
        self._body = [*writer.lines, *_linear(n, f, J)]
        self.totals_text, self.steps_text = self._totals(), self._steps()

    def given(
        self, values: Mapping[Node, Tensor], rows: int, channels: int
    ) -> tuple[Tensor, Tensor]:
        """What kernels read beside the iterate: values of rows, and of weight rate.

        Args:
            values: of :attr:`rows` [rows, B, n] (scalars [rows, B]) and of :attr:`sealed`.
            rows, channels: T and N.

        Returns:
            X [values, T, N] and vec [values].
        """
        planes: list[Tensor] = []
        for node in self.rows:
            value = values[node]
            wide = value if node.shape else value.unsqueeze(-1)
            if self.units:
                wide = wide.expand(*wide.shape[:-1], self.width)
                planes.append(wide.reshape(1, rows, channels))
            else:
                planes.append(wide.expand(rows, channels, -1).movedim(-1, 0))
        some = next(iter(values.values()))
        X = torch.cat(planes) if planes else some.new_zeros(1, rows, channels)
        flat = [values[node].reshape(-1) for node in self.sealed]
        return X.contiguous(), torch.cat(flat) if flat else some.new_zeros(1)

    def _head(self) -> list[str]:
        """Where a block lies, and the iterate before each of its steps."""
        lines = [
            "t = (tl.program_id(0) * STEPS + tl.arange(0, STEPS)).to(tl.int64)[:, None]",
            "c = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)[None, :]",
            "inside = (t < T) & (c < N)",
            "at = t * N + c",
            "plane = T.to(tl.int64) * N",
            f"unit = c % {self.width}",
        ]
        for i in range(self.n):
            lines += [
                f"p{i} = tl.load({self._place('y', i, 't - 1')}, mask=inside & (t > 0), other=0.0)",
                f"s{i} = tl.load({self._place('y0', i, '0')}, mask=c < N, other=0.0)",
                f"h{i} = tl.where(t > 0, p{i}, s{i})",
            ]
        return lines

    def _place(self, array: str, i: int, t: str) -> str:
        """Pointers to a component of a trajectory."""
        if self.units:
            return f"{array} + ({t}) * {self.n} * N + {i} * N + c"
        return f"{array} + ({t}) * {self.n} * N + c * {self.n} + {i}"

    def _scanned(self) -> list[str]:
        names = [f"a{i}{j}" for i in range(self.n) for j in range(self.n)]
        names += [f"b{i}" for i in range(self.n)]
        text = ", ".join(names)
        return [*self._head(), *self._body, f"{text} = tl.associative_scan(({text},), 0, after)"]

    def _totals(self) -> str:
        """The kernel of what each block of steps does as a whole: ``At`` [C, n, n, N], ``bt``."""
        n = self.n
        lines = [*self._scanned(), "last = tl.arange(0, STEPS)[:, None] == STEPS - 1"]
        lines += ["k = tl.program_id(0)", "channel = tl.program_id(1) * CHANNELS"]
        lines += ["channel += tl.arange(0, CHANNELS)"]
        places = [
            (f"a{i}{j}", f"At + (k * {n * n} + {i * n + j})") for i in range(n) for j in range(n)
        ]
        places += [(f"b{i}", f"bt + (k * {n} + {i})") for i in range(n)]
        for name, place in places:
            total = f"tl.sum(tl.where(last, {name}, 0.0), 0)"
            lines.append(f"tl.store({place} * N + channel, {total}, mask=channel < N)")
        return self._kernel("totals", "At, bt", lines)

    def _steps(self) -> str:
        """The kernel of the next iterate ``made`` from the states ``start`` [C, n, N] before each
        block of steps; and of each block's largest residual and value, ``off`` [2, blocks]."""
        n = self.n
        lines = [*self._scanned(), "k = tl.program_id(0)", "worst = tl.zeros([1, 1], tl.float32)"]
        lines.append("largest = worst")
        for i in range(n):
            at = f"start + (k * {n} + {i}) * N + c"
            lines.append(f"z{i} = tl.load({at}, mask=c < N, other=0.0)")
        for i in range(n):
            total = " + ".join(f"a{i}{j} * z{j}" for j in range(n))
            at = self._place("made", i, "t")
            lines += [
                f"tl.store({at}, lib.bounded(b{i} + {total}), mask=inside)",
                f"q{i} = tl.load({self._place('y', i, 't')}, mask=inside, other=0.0)",
                f"worst = tl.maximum(worst, lib.size(g{i} - q{i}, inside))",
                f"largest = tl.maximum(largest, lib.size(g{i}, inside))",
            ]
        lines += [
            "number = tl.program_id(0) * tl.num_programs(1) + tl.program_id(1)",
            "count = tl.num_programs(0) * tl.num_programs(1)",
            "tl.store(off + number, tl.max(worst))",
            "tl.store(off + count + number, tl.max(largest))",
        ]
        return self._kernel("steps", "start, made, off", lines)

    def _kernel(self, name: str, more: str, lines: list[str]) -> str:
        head = (
            f"def {name}(y, y0, X, vec, {more}, T, N, STEPS: tl.constexpr, CHANNELS: tl.constexpr):"
        )
        body = "\n".join(f"    {line}" for line in lines)
        return "\n".join(
            [*joined(self.n), "", "", '@triton.jit(do_not_specialize=["T"])', head, body, ""]
        )

    def improved(self, y: Tensor, y0: Tensor, X: Tensor, vec: Tensor) -> tuple[Tensor, float]:
        """The next iterate, and the residual of this one as a share of its largest value (at least
        1), NaN counting as infinity.

        Args:
            y: the iterate [T, n, N], or [T, N, n].
            y0: what precedes it.
            X, vec: of :meth:`given`.
        """
        with launching(y):
            return self._improved(y.contiguous(), y0.contiguous(), X, vec)

    def _improved(self, y: Tensor, y0: Tensor, X: Tensor, vec: Tensor) -> tuple[Tensor, float]:
        T, n = y.shape[0], self.n
        N = y.shape[2] if self.units else y.shape[1]
        steps, channels = block(n, N)
        chunks = -(-T // steps)
        grid = (chunks, -(-N // channels))
        start = y0 if self.units else y0.mT.contiguous()
        start = start.unsqueeze(0)
        if chunks > 1:
            At, bt = y.new_empty(chunks, n, n, N), y.new_empty(chunks, n, N)
            totals = function("totals", self.totals_text)
            totals[grid](y, y0, X, vec, At, bt, T, N, STEPS=steps, CHANNELS=channels)
            start = chunks_before(At, bt, start[0])
        made, off = torch.empty_like(y), y.new_empty(2, grid[0] * grid[1])
        kernel = function("steps", self.steps_text)
        kernel[grid](y, y0, X, vec, start, made, off, T, N, STEPS=steps, CHANNELS=channels)
        worst, largest = off.amax(1).tolist()
        return made, worst / max(1.0, largest) if math.isfinite(worst) else math.inf


def _linear(n: int, f: list[Entry], J: list[list[Entry]]) -> list[str]:
    """f, and each step as the affine map A y + b; a step outside changes nothing."""
    zero = "tl.zeros([STEPS, CHANNELS], tl.float32)"
    lines = [f"g{i} = {_text(f[i])} + {zero}" for i in range(n)]
    lines += [f"f{i} = lib.number(g{i})" for i in range(n)]
    for i in range(n):
        for j in range(n):
            entry = f"lib.bounded({_text(J[i][j])} + {zero})"
            lines.append(f"a{i}{j} = tl.where(inside, {entry}, {float(i == j)})")
    for i in range(n):
        along = " + ".join(f"a{i}{j} * h{j}" for j in range(n))
        lines.append(f"b{i} = tl.where(inside, f{i} - ({along}), 0.0)")
    return lines


def newton(
    states: Sequence[Node],
    after: Sequence[Node],
    seeds: Sequence[Node],
    rows: Sequence[Node | None],
    sizes: Mapping[str, int],
    *,
    n: int,
    units: bool,
    dtype: torch.dtype,
) -> Newton | None:
    """Kernels for a cell; None for more than :data:`MOST` states that mix, or another dtype."""
    if n > MOST or dtype != torch.float32:
        return None
    return Newton(states, after, seeds, rows, sizes, units=units)

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

from elman.engines.triton import scans
from elman.engines.triton.launch import launching
from elman.engines.triton.source import function
from elman.engines.triton.unitwise import Entry, Writer, text_of
from elman.ir.graph import Node, Rate


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
        writer = Writer(sizes, units=units)
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
        self.invariants, self.rows = list(writer.invariants), list(writer.rows)
        self._body = [*writer.lines, *_linear(n, f, J)]
        self.totals_text, self.steps_text = self._totals(), self._steps()

    def given(
        self, values: Mapping[Node, Tensor], rows: int, channels: int
    ) -> tuple[Tensor, Tensor]:
        """What kernels read beside the iterate: values of rows, and of weight rate.

        Args:
            values: of :attr:`rows` [rows, B, n] (scalars [rows, B]) and of :attr:`invariants`.
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
        flat = [values[node].reshape(-1) for node in self.invariants]
        return X.contiguous(), torch.cat(flat) if flat else some.new_zeros(1)

    def _head(self) -> list[str]:
        """Where a block lies, and the iterate before each of its steps."""
        lines = [
            *scans.PLACE,
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
        return [*self._head(), *self._body, scans.scanned(self.n)]

    def _totals(self) -> str:
        """The kernel of what each block of steps does as a whole."""
        lines = [*self._scanned(), *scans.total_stores(self.n)]
        return scans.kernel(self.n, "totals", "y, y0, X, vec, At, bt", lines)

    def _steps(self) -> str:
        """The kernel of the next iterate ``made`` from the states before each block of steps; and
        of each block's largest residual and value, ``off`` [2, blocks]."""
        starts, states = scans.from_starts(self.n)
        lines = [*self._scanned(), *starts, "worst = tl.zeros([1, 1], tl.float32)"]
        lines.append("largest = worst")
        for i, state in enumerate(states):
            at = self._place("made", i, "t")
            lines += [
                f"tl.store({at}, lib.bounded({state}), mask=inside)",
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
        return scans.kernel(self.n, "steps", "y, y0, X, vec, start, made, off", lines)

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
        steps, channels = scans.block(n, N)
        chunks = -(-T // steps)
        grid = (chunks, -(-N // channels))
        start = y0 if self.units else y0.mT.contiguous()
        start = start.unsqueeze(0)
        if chunks > 1:
            At, bt = y.new_empty(chunks, n, n, N), y.new_empty(chunks, n, N)
            totals = function("totals", self.totals_text)
            totals[grid](y, y0, X, vec, At, bt, T, N, STEPS=steps, CHANNELS=channels)
            start = scans.chunks_before(At, bt, start[0])
        made, off = torch.empty_like(y), y.new_empty(2, grid[0] * grid[1])
        kernel = function("steps", self.steps_text)
        kernel[grid](y, y0, X, vec, start, made, off, T, N, STEPS=steps, CHANNELS=channels)
        worst, largest = off.amax(1).tolist()
        return made, worst / max(1.0, largest) if math.isfinite(worst) else math.inf


def _linear(n: int, f: list[Entry], J: list[list[Entry]]) -> list[str]:
    """f, and each step as the affine map A y + b; a step outside changes nothing."""
    zero = "tl.zeros([STEPS, CHANNELS], tl.float32)"
    lines = [f"g{i} = {text_of(f[i])} + {zero}" for i in range(n)]
    lines += [f"f{i} = lib.number(g{i})" for i in range(n)]
    for i in range(n):
        for j in range(n):
            entry = f"lib.bounded({text_of(J[i][j])} + {zero})"
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
    """Kernels for a cell; None for more than :data:`scans.MOST` states, or another dtype."""
    if n > scans.MOST or dtype != torch.float32:
        return None
    return Newton(states, after, seeds, rows, sizes, units=units)

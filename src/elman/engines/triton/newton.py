"""Newton's iteration on all steps of a small cell at once: an iteration in a few kernels.

Up to four states that depend on each other (``ScannedNewton``): a block of steps loads the iterate,
evaluates the cell and its Jacobian in registers, and scans the linearised recurrence as ``scans``
does: once for what each block does as a whole, and once more, from the state before each block, for
all steps. Nothing as large as a Jacobian goes to memory. Of up to eight (``WalkedNewton``), whose
products do not fit into registers, one kernel stores the Jacobians, and ``walks`` does the rest.

Groups of states that are alike, as heads are, lie side by side among the channels, each with
weights of its own.

Source: Lim, Zhu, Selfridge & Kasim 2024 (DEER), arXiv:2309.12252v3, eq. 3 to 6.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from elman.engines.group_step import GroupStep
from elman.engines.triton import scans, walks
from elman.engines.triton.launch import launching
from elman.engines.triton.linearised import Linearised
from elman.engines.triton.source import function
from elman.ir.graph import Node

_LANES = 128  # steps and channels of a block that only evaluates
_BOUND = 1e8  # of an iterate, as of ``bounded`` in library.py


class Newton(ABC):
    """One iteration for groups of recurrent states of one kind.

    Args:
        groups: each group's step, all of the same text.
        units: whether units do not mix: the trajectory is [T, n, N], n states with units among the
            N channels; else it is [T, N, n], n units of all states. Channels are samples, groups of
            a sample, and units of a group, in this order.
    """

    def __init__(self, groups: Sequence[Linearised], *, units: bool) -> None:
        self.groups, self.units = groups, units
        self._own = groups[0]
        self.n = self._own.n
        self.leaves = [leaf for one in groups for leaf in (*one.rows, *one.invariants)]
        self.jacobian_text = self._jacobian()

    def given(self, values: Mapping[Node, Tensor], rows: int, batch: int) -> tuple[Tensor, Tensor]:
        """What kernels read beside the iterate: values of rows, and of weight rate.

        Args:
            values: of :attr:`leaves`: of rows [rows, B, n] (scalars [rows, B]), or of weight rate.
            rows, batch: T and B.

        Returns:
            X [values, T, N] and vec [values, groups].
        """
        each = zip(*(one.rows for one in self.groups))
        planes = [
            self._planes([_column(leaf, values) for leaf in leaves], rows, batch) for leaves in each
        ]
        some = next(iter(values.values()))
        X = torch.cat(planes) if planes else some.new_zeros(1, rows, 1)
        flat = [
            torch.cat([values[leaf].reshape(-1) for leaf in one.invariants] or [some.new_zeros(1)])
            for one in self.groups
        ]
        return X.contiguous(), torch.stack(flat, -1).reshape(-1)

    def _planes(self, values: Sequence[Tensor], rows: int, batch: int) -> Tensor:
        """A value of rows of all groups, [n, T, N]; [1, T, N] if units are channels."""
        if self.units:
            wide = [v.expand(rows, batch, self._own.width) for v in values]
            return torch.stack(wide, 2).reshape(1, rows, -1)
        wide = [v.expand(rows, batch, -1) for v in values]
        return torch.stack(wide, 2).reshape(rows, batch * len(wide), -1).movedim(-1, 0)

    def _head(self) -> list[str]:
        """Where a block lies, and the iterate before each of its steps."""
        width = self._own.width
        lines = [
            *scans.PLACE,
            "at = t * N + c",
            "plane = T.to(tl.int64) * N",
            f"unit = c % {width}",
            f"group = c // {width} % {len(self.groups)}",
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

    def _extremes(self) -> list[str]:
        """Lines that store a block's largest residual and value, ``off`` [2, blocks]."""
        lines = ["worst = tl.zeros([1, 1], tl.float32)", "largest = worst"]
        for i in range(self.n):
            lines += [
                f"q{i} = tl.load({self._place('y', i, 't')}, mask=inside, other=0.0)",
                f"worst = tl.maximum(worst, lib.size(g{i} - q{i}, inside))",
                f"largest = tl.maximum(largest, lib.size(g{i}, inside))",
            ]
        return [
            *lines,
            "number = tl.program_id(0) * tl.num_programs(1) + tl.program_id(1)",
            "count = tl.num_programs(0) * tl.num_programs(1)",
            "tl.store(off + number, tl.max(worst))",
            "tl.store(off + count + number, tl.max(largest))",
        ]

    def _jacobian(self) -> str:
        """The kernel of each step's Jacobian ``A`` [T, n, n, N]; and of f less the iterate,
        ``rest`` [T, n, N], with which the correction is a linear recurrence."""
        n = self.n
        lines = [*self._head(), *self._own.values(), *self._extremes()]
        for i in range(n):
            at = f"rest + (t * {n} + {i}) * N + c"
            lines.append(f"tl.store({at}, f{i} - q{i}, mask=inside)")
        for i in range(n):
            lines += self._own.row(i)
            for j in range(n):
                at = f"A + (t * {n * n} + {i * n + j}) * N + c"
                lines.append(f"tl.store({at}, a{i}{j}, mask=inside)")
        return scans.kernel("jacobian", "y, y0, X, vec, A, rest, off", lines)

    def linearised(self, y: Tensor, y0: Tensor, X: Tensor, vec: Tensor) -> tuple[Tensor, ...]:
        """Jacobians [T, n, n, N] at what precedes each step, f less the iterate [T, n, N], and the
        largest residual and value [2]; arguments as of :meth:`improved`."""
        with launching(y):
            return self._linearised(y.contiguous(), y0.contiguous(), X, vec)

    def _linearised(self, y: Tensor, y0: Tensor, X: Tensor, vec: Tensor) -> tuple[Tensor, ...]:
        T, n, N = self._sizes(y)
        steps, channels = scans.shape(_LANES, N)
        grid = (-(-T // steps), -(-N // channels))
        A, rest, off = y.new_empty(T, n, n, N), y.new_empty(T, n, N), self._off(y, grid)
        kernel = function("jacobian", self.jacobian_text)
        kernel[grid](y, y0, X, vec, A, rest, off, T, N, STEPS=steps, CHANNELS=channels)
        return A, rest, off.amax(1)

    def _sizes(self, y: Tensor) -> tuple[int, int, int]:
        return y.shape[0], self.n, y.shape[2 if self.units else 1]

    def _off(self, y: Tensor, grid: tuple[int, int]) -> Tensor:
        return y.new_empty(2, grid[0] * grid[1])

    def improved(self, y: Tensor, y0: Tensor, X: Tensor, vec: Tensor) -> tuple[Tensor, Tensor]:
        """The next iterate; and the largest residual of this one and its largest value [2], NaN
        counting as infinity.

        Args:
            y: the iterate [T, n, N], or [T, N, n].
            y0: what precedes it.
            X, vec: of :meth:`given`.
        """
        with launching(y):
            return self._improved(y.contiguous(), y0.contiguous(), X, vec)

    @abstractmethod
    def _improved(self, y: Tensor, y0: Tensor, X: Tensor, vec: Tensor) -> tuple[Tensor, Tensor]: ...


class ScannedNewton(Newton):
    """Linearised and scanned in one kernel."""

    def __init__(self, groups: Sequence[Linearised], *, units: bool) -> None:
        super().__init__(groups, units=units)
        self.totals_text, self.steps_text = self._totals(), self._steps()

    def _scanned(self) -> list[str]:
        """Each step as the affine map A y + b, scanned."""
        n, lines = self.n, [*self._head(), *self._own.values()]
        for i in range(n):
            lines += self._own.row(i)
        for i in range(n):
            along = " + ".join(f"a{i}{j} * h{j}" for j in range(n))
            lines.append(f"b{i} = tl.where(inside, f{i} - ({along}), 0.0)")
        return [*lines, scans.scanned(n)]

    def _totals(self) -> str:
        """The kernel of what each block of steps does as a whole."""
        lines = [*self._scanned(), *scans.total_stores(self.n)]
        return scans.scan_kernel(self.n, "totals", "y, y0, X, vec, At, bt", lines)

    def _steps(self) -> str:
        """The kernel of the next iterate ``made`` from the states before each block of steps; and
        of :meth:`_extremes`."""
        starts, states = scans.from_starts(self.n)
        lines = [*self._scanned(), *starts]
        for i, state in enumerate(states):
            at = self._place("made", i, "t")
            lines.append(f"tl.store({at}, lib.bounded({state}), mask=inside)")
        lines += self._extremes()
        return scans.scan_kernel(self.n, "steps", "y, y0, X, vec, start, made, off", lines)

    def _improved(self, y: Tensor, y0: Tensor, X: Tensor, vec: Tensor) -> tuple[Tensor, Tensor]:
        T, n, N = self._sizes(y)
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
        made, off = torch.empty_like(y), self._off(y, grid)
        kernel = function("steps", self.steps_text)
        kernel[grid](y, y0, X, vec, start, made, off, T, N, STEPS=steps, CHANNELS=channels)
        return made, off.amax(1)


class WalkedNewton(Newton):
    """Linearised in one kernel, and solved as any linear recurrence of so many states."""

    def _improved(self, y: Tensor, y0: Tensor, X: Tensor, vec: Tensor) -> tuple[Tensor, Tensor]:
        A, rest, off = self._linearised(y, y0, X, vec)
        d = walks.solved(A, rest, torch.zeros_like(rest[0]))
        made = y + (d if self.units else d.mT)
        return torch.nan_to_num(made, 0.0).clamp_(-_BOUND, _BOUND), off


def _column(leaf: Node, values: Mapping[Node, Tensor]) -> Tensor:
    return values[leaf] if leaf.shape else values[leaf].unsqueeze(-1)


def newton(
    groups: Sequence[GroupStep],
    sizes: Mapping[str, int],
    *,
    n: int,
    units: bool,
    dtype: torch.dtype,
) -> Newton | str:
    """Kernels for groups of states of one kind; or why there are none.

    Args:
        groups: their steps.
        sizes: of the named dims.
        n: states that depend on each other.
        units, dtype: as of :class:`Newton`, of the trajectory.
    """
    if dtype != torch.float32:
        return f"its kernels compute in float32, not {str(dtype).removeprefix('torch.')}"
    if n > walks.MOST:
        return f"{n} states of a group depend on each other, and its kernels take {walks.MOST}"
    walked = n > scans.MOST
    count = len(groups)
    made = [Linearised(one, sizes, units=units, groups=count, again=walked) for one in groups]
    if len({one.text for one in made}) > 1:
        return "its groups of states are not alike"
    return (WalkedNewton if walked else ScannedNewton)(made, units=units)

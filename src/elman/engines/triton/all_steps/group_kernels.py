"""Kernels of groups of states, on all steps at once: f and its Jacobian, residuals, and sequential
runs of a few steps.

Groups of one formula, such as heads, lie side by side among the channels, so that one kernel serves
them all and neighbouring threads read neighbouring memory; each has its own weights.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from elman.engines.group_step import Progress
from elman.engines.triton.all_steps import scans
from elman.engines.triton.device import limits
from elman.engines.triton.device.call_graphs import CallGraphs
from elman.engines.triton.device.launch import launching
from elman.engines.triton.device.source import function, indented, kernel
from elman.engines.triton.text.linearised import Linearised
from elman.ir.graph import Node

OPERANDS = "y, y0, X, vec, off, k, demanded"


class GroupKernels:
    """Kernels of Newton's iteration for groups of recurrent states of one kind.

    Args:
        groups: each group's step, all of the same text.
        units: whether units do not mix: the trajectory is [T, n, N], n states with units among the
            N channels; else it is [T, N, n], n units of all states. Channels are samples, groups of
            a sample, and units of a group, in this order.
    """

    graphs: ClassVar[type[CallGraphs]] = CallGraphs  # replays repeated calls

    def __init__(self, groups: Sequence[Linearised], *, units: bool) -> None:
        self.groups, self.units = groups, units
        self._first = groups[0]
        self.n = self._first.n
        self.leaves = [leaf for group in groups for leaf in (*group.rows, *group.invariants)]
        self.jacobian_text, self.strayed_text = self._jacobian(), self._strayed()
        self.guess_text, self.values_text = self._guess(), self._values()

    def operands(
        self, values: Mapping[Node, Tensor], rows: int, batch: int
    ) -> tuple[Tensor, Tensor]:
        """Operands of kernels besides the iterate: values of rows, and of weight rate.

        Args:
            values: of :attr:`leaves`: of rows [rows, B, n] (scalars [rows, B]), or of weight rate.
            rows, batch: T and B.

        Returns:
            X [values, T, N] and vec [values, groups].
        """
        each = zip(*(group.rows for group in self.groups))
        planes = [
            self._planes([_column(leaf, values) for leaf in leaves], rows, batch) for leaves in each
        ]
        some = next(iter(values.values()))
        X = torch.cat(planes) if planes else some.new_zeros(1, rows, 1)
        flat = [
            torch.cat(
                [values[leaf].reshape(-1) for leaf in group.invariants] or [some.new_zeros(1)]
            )
            for group in self.groups
        ]
        return X.contiguous(), _stacked(flat, -1).reshape(-1)

    def _planes(self, values: Sequence[Tensor], rows: int, batch: int) -> Tensor:
        """A value of rows of all groups, [n, T, N]; [1, T, N] if units are channels."""
        if self.units:
            wide = [v.expand(rows, batch, self._first.width) for v in values]
            return _stacked(wide, 2).reshape(1, rows, -1)
        wide = [v.expand(rows, batch, -1) for v in values]
        return _stacked(wide, 2).reshape(rows, batch * len(wide), -1).movedim(-1, 0)

    def _head(self) -> list[str]:
        """Lines that place a block, and load the iterate before each of its steps."""
        lines = [*scans.PLACE, *self._channel(), "at = t * N + c"]
        for i in range(self.n):
            lines += [
                f"p{i} = tl.load({self._place('y', i, 't - 1')}, mask=inside & (t > 0), other=0.0)",
                f"s{i} = tl.load({self._place('y0', i, '0')}, mask=c < N, other=0.0)",
                f"h{i} = tl.where(t > 0, p{i}, s{i})",
            ]
        return lines

    def _channel(self) -> list[str]:
        """Lines of a channel's unit and group, and of the distance of planes of values."""
        width = self._first.width
        return [
            f"unit = c % {width}",
            f"group = c // {width} % {len(self.groups)}",
            "plane = T.to(tl.int64) * N",
        ]

    def _place(self, array: str, i: int, t: str) -> str:
        """Pointers to a component of a trajectory."""
        if self.units:
            return f"{array} + ({t}) * {self.n} * N + {i} * N + c"
        return f"{array} + ({t}) * {self.n} * N + c * {self.n} + {i}"

    def _loaded(self) -> list[str]:
        """Lines that load the iterate at a block's steps."""
        return [
            f"q{i} = tl.load({self._place('y', i, 't')}, mask=inside, other=0.0)"
            for i in range(self.n)
        ]

    def _extremes(self, value: str) -> list[str]:
        """Lines that record a block's largest residual and value in ``off`` [.., 2]; ``value``:
        ``q`` of the iterate, or ``g`` of f."""
        lines = ["worst = tl.zeros([1, 1], tl.float32)", "largest = worst"]
        for i in range(self.n):
            lines += [
                f"worst = tl.maximum(worst, lib.size(g{i} - q{i}, inside))",
                f"largest = tl.maximum(largest, lib.size({value}{i}, inside))",
            ]
        return [
            *lines,
            'tl.atomic_max(off + 2 * k, tl.max(worst), sem="relaxed")',
            'tl.atomic_max(off + 2 * k + 1, tl.max(largest), sem="relaxed")',
        ]

    def _near(self, lines: list[str]) -> scans.Near:
        """The early exit after a converged iteration: lines in place of a block's steps, with the
        iterate in ``q``, which also repeat the note."""
        before = [
            "before = tl.load(off + 2 * k - 2, mask=k > 0, other=float('inf'))",
            "top = tl.load(off + 2 * k - 1, mask=k > 0, other=0.0)",
            "near = (before < float('inf')) & (before <= demanded * tl.maximum(top, 1.0))",
        ]
        notes = ["tl.store(off + 2 * k, before)", "tl.store(off + 2 * k + 1, top)"]
        return scans.Near(before, [*scans.PLACE, *self._loaded(), *lines, *notes])

    def _guess(self) -> str:
        """The kernel of the first iterate: f of zeros."""
        zeros = [f"h{i} = tl.zeros([STEPS, CHANNELS], tl.float32)" for i in range(self.n)]
        lines = [*scans.PLACE, *self._channel(), "at = t * N + c", *zeros, *self._first.values()]
        for i in range(self.n):
            lines.append(f"tl.store({self._place('y', i, 't')}, lib.bounded(g{i}), mask=inside)")
        return kernel("guess", ("X, vec, y", *scans.SIZES), lines)

    def _values(self) -> str:
        """The kernel of f along the trajectory, and of the residual."""
        lines = [*self._head(), *self._first.values(), *self._loaded(), *self._extremes("q")]
        for i in range(self.n):
            lines.append(f"tl.store({self._place('f', i, 't')}, g{i}, mask=inside)")
        return kernel("values", (f"{OPERANDS}, f", *scans.SIZES), lines, scans.UNSPECIALISED)

    def _jacobian(self) -> str:
        """The kernel of each step's Jacobian ``A`` [T, n, n, N], and of f less the iterate,
        ``rest`` [T, n, N]: the correction is a linear recurrence of both."""
        n = self.n
        lines = [*self._head(), *self._first.values(), *self._loaded(), *self._extremes("g")]
        rest = [f"rest + (t * {n} + {i}) * N + c" for i in range(n)]
        lines += [f"tl.store({rest[i]}, f{i} - q{i}, mask=inside)" for i in range(n)]
        for i in range(n):
            lines += self._first.row(i)
            for j in range(n):
                at = f"A + (t * {n * n} + {i * n + j}) * N + c"
                lines.append(f"tl.store({at}, a{i}{j}, mask=inside)")
        zeros = [
            "zero = tl.zeros([STEPS, CHANNELS], tl.float32)",
            f"for e in range({n * n}):",
            f"    tl.store(A + (t * {n * n} + e) * N + c, zero, mask=inside)",
            *(f"tl.store({at}, zero, mask=inside)" for at in rest),
        ]
        near = self._near(zeros)
        return kernel(
            "jacobian",
            (f"{OPERANDS}, A, rest", *scans.SIZES),
            scans.unless(near.lines, near.steps, lines),
            scans.UNSPECIALISED,
        )

    def _strayed(self) -> str:
        """The kernel of a block of windows that run sequentially from the iterate's own states and
        record their largest distance from it. The first begins at the first step, the last ends at
        the last, the others are at equal distances."""
        lines = [
            "w = tl.program_id(0).to(tl.int64) * STEPS + tl.arange(0, STEPS)[:, None]",
            "c = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)[None, :]",
            "inside = (w < WINDOWS) & (c < N)",
            *self._channel(),
            "between: tl.constexpr = WINDOWS - 1 if WINDOWS > 1 else 1",
            "begin = (2 * (T - LENGTH) * w + between) // (2 * between)",
            "worst = tl.zeros([1, 1], tl.float32)",
        ]
        for i in range(self.n):
            before = self._place("y", i, "begin - 1")
            lines += [
                f"h{i} = tl.load({before}, mask=inside & (begin > 0), other=0.0)",
                f"h{i} += tl.load({self._place('y0', i, '0 * w')}, "
                "mask=inside & (begin == 0), other=0.0)",
            ]
        loop = ["t = begin + s", "at = t * N + c", *self._first.values(), *self._loaded()]
        for i in range(self.n):
            loop.append(f"worst = tl.maximum(worst, lib.size(g{i} - q{i}, inside))")
        loop += [f"h{i} = g{i}" for i in range(self.n)]
        lines += ["for s in range(LENGTH):", *indented(loop)]
        lines.append('tl.atomic_max(off + 2 * k, tl.max(worst), sem="relaxed")')
        numbers = ("WINDOWS: tl.constexpr", "LENGTH: tl.constexpr")
        arguments = (OPERANDS, *numbers, *scans.SIZES)
        return kernel("strayed", arguments, lines, scans.UNSPECIALISED)

    def guess(self, y0: Tensor, X: Tensor, vec: Tensor, T: int) -> Tensor:
        """The first iterate of T steps: f of zeros; for arguments see :meth:`improved`."""
        y = y0.new_empty(T, *y0.shape)
        N, sizes, grid = self._blocks(y)
        with launching(y):
            function("guess", self.guess_text)[grid](X, vec, y, T, N, **sizes)
        return y

    def values(self, y: Tensor, y0: Tensor, X: Tensor, vec: Tensor, progress: Progress) -> Tensor:
        """f along the iterate, in its layout; ``progress`` gets their largest distance and the
        iterate's largest value. For arguments see :meth:`improved`."""
        f = torch.empty_like(y)
        self._evaluate("values", self.values_text, (y, y0, X, vec, *progress, f))
        return f

    def strayed(
        self,
        y: Tensor,
        y0: Tensor,
        X: Tensor,
        vec: Tensor,
        progress: Progress,
        *,
        windows: int,
        length: int,
    ) -> None:
        """Record the largest distance of windows from a sequential run.

        Args:
            y, y0, X, vec, progress: see :meth:`improved`.
            windows, length: number of windows, and of the steps of each.
        """
        N = y.shape[2 if self.units else 1]
        channels = scans.shape(limits.GROUP_ELEMENTS, N)[1]
        grid = (-(-windows // limits.GROUP_WINDOWS), -(-N // channels))
        sizes = {"STEPS": limits.GROUP_WINDOWS, "CHANNELS": channels}
        kernel = function("strayed", self.strayed_text)
        with launching(y):
            kernel[grid](
                y, y0, X, vec, *progress, T=y.shape[0], N=N, WINDOWS=windows, LENGTH=length, **sizes
            )

    def linearised(
        self, y: Tensor, y0: Tensor, X: Tensor, vec: Tensor, progress: Progress
    ) -> tuple[Tensor, Tensor]:
        """Jacobians [T, n, n, N] along the iterate, and f less the iterate [T, n, N]; for arguments
        see :meth:`improved`. After a converged iteration both are zero."""
        T, n, N = y.shape[0], self.n, y.shape[2 if self.units else 1]
        A, rest = y.new_empty(T, n, n, N), y.new_empty(T, n, N)
        self._evaluate("jacobian", self.jacobian_text, (y, y0, X, vec, *progress, A, rest))
        return A, rest

    def _evaluate(self, name: str, text: str, arguments: Sequence[Any]) -> None:
        """Run a kernel on all blocks of an iterate, which is its first argument."""
        y = arguments[0]
        N, sizes, grid = self._blocks(y)
        with launching(y):
            function(name, text)[grid](*arguments, y.shape[0], N, **sizes)

    def _blocks(self, y: Tensor) -> tuple[int, dict[str, int], tuple[int, int]]:
        """Number of channels, the size of a block of steps that is evaluated without a scan, and
        the grid of blocks."""
        T, N = y.shape[0], y.shape[2 if self.units else 1]
        steps, channels = scans.shape(limits.GROUP_ELEMENTS, N)
        return N, {"STEPS": steps, "CHANNELS": channels}, (-(-T // steps), -(-N // channels))


def _stacked(tensors: Sequence[Tensor], axis: int) -> Tensor:
    """Tensors along a new axis; a view of one alone."""
    return torch.stack([*tensors], axis) if len(tensors) > 1 else tensors[0].unsqueeze(axis)


def _column(leaf: Node, values: Mapping[Node, Tensor]) -> Tensor:
    return values[leaf] if leaf.shape else values[leaf].unsqueeze(-1)

"""Kernels of groups of states, on all steps at once: f and its Jacobian, residuals, and sequential
runs of a few steps.

Groups that are alike, as heads are, lie side by side among the channels, each with weights of its
own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from elman.engines.triton import limits, scans
from elman.engines.triton.launch import launching
from elman.engines.triton.linearised import Linearised
from elman.engines.triton.source import function, indented, kernel
from elman.ir.graph import Node


class GroupKernels:
    """What Newton's iteration needs of groups of recurrent states of one kind.

    Args:
        groups: each group's step, all of the same text.
        units: whether units do not mix: the trajectory is [T, n, N], n states with units among the
            N channels; else it is [T, N, n], n units of all states. Channels are samples, groups of
            a sample, and units of a group, in this order.
    """

    def __init__(self, groups: Sequence[Linearised], *, units: bool) -> None:
        self.groups, self.units = groups, units
        self._first = groups[0]
        self.n = self._first.n
        self.leaves = [leaf for group in groups for leaf in (*group.rows, *group.invariants)]
        self.jacobian_text, self.strayed_text = self._jacobian(), self._strayed()
        lines = [*self._head(), *self._first.values(), *self._extremes()]
        self.residual_text = kernel("residual", ("y, y0, X, vec, off", *scans.SIZES), lines)

    def operands(
        self, values: Mapping[Node, Tensor], rows: int, batch: int
    ) -> tuple[Tensor, Tensor]:
        """What kernels read beside the iterate: values of rows, and of weight rate.

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
        return X.contiguous(), torch.stack(flat, -1).reshape(-1)

    def _planes(self, values: Sequence[Tensor], rows: int, batch: int) -> Tensor:
        """A value of rows of all groups, [n, T, N]; [1, T, N] if units are channels."""
        if self.units:
            wide = [v.expand(rows, batch, self._first.width) for v in values]
            return torch.stack(wide, 2).reshape(1, rows, -1)
        wide = [v.expand(rows, batch, -1) for v in values]
        return torch.stack(wide, 2).reshape(rows, batch * len(wide), -1).movedim(-1, 0)

    def _head(self) -> list[str]:
        """Where a block lies, and the iterate before each of its steps."""
        lines = [*scans.PLACE, *self._channel(), "at = t * N + c"]
        for i in range(self.n):
            lines += [
                f"p{i} = tl.load({self._place('y', i, 't - 1')}, mask=inside & (t > 0), other=0.0)",
                f"s{i} = tl.load({self._place('y0', i, '0')}, mask=c < N, other=0.0)",
                f"h{i} = tl.where(t > 0, p{i}, s{i})",
            ]
        return lines

    def _channel(self) -> list[str]:
        """Which unit and group a channel is, and how far planes of values are apart."""
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
        lines = [*self._head(), *self._first.values(), *self._extremes()]
        for i in range(n):
            at = f"rest + (t * {n} + {i}) * N + c"
            lines.append(f"tl.store({at}, f{i} - q{i}, mask=inside)")
        for i in range(n):
            lines += self._first.row(i)
            for j in range(n):
                at = f"A + (t * {n * n} + {i * n + j}) * N + c"
                lines.append(f"tl.store({at}, a{i}{j}, mask=inside)")
        return kernel("jacobian", ("y, y0, X, vec, A, rest, off", *scans.SIZES), lines)

    def _strayed(self) -> str:
        """The kernel of a block of windows whose steps run one after another, each from a state
        ``first``: their largest distance from ``y``, which holds LENGTH steps of each."""
        lines = [
            "w = tl.program_id(0).to(tl.int64) * STEPS + tl.arange(0, STEPS)[:, None]",
            "c = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)[None, :]",
            "inside = (w * LENGTH < T) & (c < N)",
            *self._channel(),
            "worst = tl.zeros([1, 1], tl.float32)",
        ]
        for i in range(self.n):
            at = self._place("first", i, "w")
            lines.append(f"h{i} = tl.load({at}, mask=inside, other=0.0)")
        loop = ["t = w * LENGTH + s", "at = t * N + c", *self._first.values()]
        for i in range(self.n):
            at = self._place("y", i, "t")
            loop.append(f"q{i} = tl.load({at}, mask=inside, other=0.0)")
            loop.append(f"worst = tl.maximum(worst, lib.size(g{i} - q{i}, inside))")
        loop += [f"h{i} = g{i}" for i in range(self.n)]
        lines += ["for s in range(LENGTH):", *indented(loop)]
        lines.append("number = tl.program_id(0) * tl.num_programs(1) + tl.program_id(1)")
        lines.append("tl.store(off + number, tl.max(worst))")
        return kernel(
            "strayed", ("first, y, X, vec, off, LENGTH: tl.constexpr", *scans.SIZES), lines
        )

    def residual(self, y: Tensor, y0: Tensor, X: Tensor, vec: Tensor) -> Tensor:
        """The largest distance of steps from f of what precedes them [], NaN counting as infinity;
        arguments as of :meth:`improved`."""
        return self._evaluated("residual", self.residual_text, y, y0, X, vec)[0].amax()

    def strayed(self, first: Tensor, y: Tensor, X: Tensor, vec: Tensor) -> Tensor:
        """The largest distance of windows from a sequential run [], NaN counting as infinity.

        Args:
            first: the state before each window [W, n, N], or [W, N, n].
            y: the windows' steps, one window after another.
            X, vec: of :meth:`operands`, for these steps.
        """
        T, _, N = self._sizes(y)
        windows = first.shape[0]
        channels = scans.shape(limits.GROUP_ELEMENTS, N)[1]
        grid = (-(-windows // limits.GROUP_WINDOWS), -(-N // channels))
        off = y.new_empty(grid[0] * grid[1])
        kernel = function("strayed", self.strayed_text)
        with launching(y):
            first, y = first.contiguous(), y.contiguous()
            sizes = {"LENGTH": T // windows, "STEPS": limits.GROUP_WINDOWS, "CHANNELS": channels}
            kernel[grid](first, y, X, vec, off, T=T, N=N, **sizes)
        return off.amax()

    def linearised(self, y: Tensor, y0: Tensor, X: Tensor, vec: Tensor) -> tuple[Tensor, ...]:
        """Jacobians [T, n, n, N] at what precedes each step, f less the iterate [T, n, N], and the
        largest residual and value [2]; arguments as of :meth:`improved`."""
        T, n, N = self._sizes(y)
        A, rest = y.new_empty(T, n, n, N), y.new_empty(T, n, N)
        off = self._evaluated("jacobian", self.jacobian_text, y, y0, X, vec, A, rest)
        return A, rest, off.amax(1)

    def _evaluated(self, name: str, text: str, y: Tensor, y0: Tensor, *arrays: Tensor) -> Tensor:
        """Run a kernel on all blocks; what :meth:`_extremes` stores."""
        T, _, N = self._sizes(y)
        steps, channels = scans.shape(limits.GROUP_ELEMENTS, N)
        grid = (-(-T // steps), -(-N // channels))
        off, sizes = self._off(y, grid), {"STEPS": steps, "CHANNELS": channels}
        with launching(y):
            y, y0 = y.contiguous(), y0.contiguous()
            function(name, text)[grid](y, y0, *arrays, off, T, N, **sizes)
        return off

    def _sizes(self, y: Tensor) -> tuple[int, int, int]:
        return y.shape[0], self.n, y.shape[2 if self.units else 1]

    def _off(self, y: Tensor, grid: tuple[int, int]) -> Tensor:
        return y.new_empty(2, grid[0] * grid[1])


def _column(leaf: Node, values: Mapping[Node, Tensor]) -> Tensor:
    return values[leaf] if leaf.shape else values[leaf].unsqueeze(-1)

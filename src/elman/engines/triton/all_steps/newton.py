"""Newton's iteration on all steps of a small cell at once: an iteration in a few kernels.

Up to four states that depend on each other (``ScannedNewton``): a block of steps loads the iterate,
evaluates the cell and its Jacobian in registers, and scans the linearised recurrence as ``scans``
does: once for the map of each block, and once more, from the state before each block, for all
steps. Jacobians never go to memory. For up to eight states (``WalkedNewton``), whose products do
not fit into registers, one kernel stores the Jacobians, and ``walks`` does the rest.

Source: Lim, Zhu, Selfridge & Kasim 2024 (DEER), arXiv:2309.12252v3, eq. 3 to 6.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from elman.engines.group_step import GroupStep, Progress
from elman.engines.triton.all_steps import scans, walks
from elman.engines.triton.all_steps.group_kernels import OPERANDS, GroupKernels
from elman.engines.triton.device import limits
from elman.engines.triton.device.launch import launching
from elman.engines.triton.text.linearised import Linearised
from elman.ir.graph import Node


class Newton(GroupKernels, ABC):
    """One iteration."""

    @abstractmethod
    def improved(self, y: Tensor, y0: Tensor, X: Tensor, vec: Tensor, progress: Progress) -> Tensor:
        """The next iterate; ``progress`` gets the largest residual and value of the given one.

        Args:
            y: the iterate [T, n, N], or [T, N, n], contiguous.
            y0: the states that precede it, contiguous.
            X, vec: of :meth:`operands`.
            progress: memory for the notes, and the tolerance.
        """


class ScannedNewton(Newton):
    """Newton's iteration that linearises and scans in one kernel."""

    def __init__(self, groups: Sequence[Linearised], *, units: bool) -> None:
        super().__init__(groups, units=units)
        n, lines = self.n, [*self._head(), *self._first.values()]
        for i in range(n):
            lines += self._first.row(i)
        for i in range(n):  # each step as the affine map A y + b
            along = " + ".join(f"a{i}{j} * h{j}" for j in range(n))
            lines.append(f"b{i} = tl.where(inside, f{i} - ({along}), 0.0)")
        self._made = [self._place("made", i, "t") for i in range(n)]
        same = [f"tl.store({made}, q{i}, mask=inside)" for i, made in enumerate(self._made)]
        self.scan = scans.BlockScan(
            n,
            OPERANDS,
            lines,
            "made",
            self._stores,
            first=[self._place("y0", i, "0") for i in range(n)],
            near=self._near(same),
        )

    def _stores(self, states: list[str]) -> list[str]:
        """Lines that store the next iterate, and the lines of :meth:`_extremes`."""
        stores = [
            f"tl.store({made}, lib.bounded({state}), mask=inside)"
            for made, state in zip(self._made, states, strict=True)
        ]
        return [*stores, *self._loaded(), *self._extremes("g")]

    def improved(self, y: Tensor, y0: Tensor, X: Tensor, vec: Tensor, progress: Progress) -> Tensor:
        iterate = torch.empty_like(y)
        with launching(y):
            start = y0 if self.units else y0.mT
            self.scan.run((y, y0, X, vec, *progress), (iterate,), start, y.shape[0])
        return iterate


class WalkedNewton(Newton):
    """Newton's iteration that linearises in one kernel, and solves the recurrence by ``walks``."""

    def improved(self, y: Tensor, y0: Tensor, X: Tensor, vec: Tensor, progress: Progress) -> Tensor:
        A, rest = self.linearised(y, y0, X, vec, progress)
        with launching(y):
            d = walks.solved(A, rest, torch.zeros_like(rest[0]))
        iterate = y + (d if self.units else d.mT)
        return torch.nan_to_num(iterate, 0.0).clamp_(-limits.ITERATE, limits.ITERATE)


def newton(
    groups: Sequence[GroupStep],
    sizes: Mapping[str, int],
    *,
    n: int,
    units: bool,
    passthrough: frozenset[Node],
    dtype: torch.dtype,
) -> Newton | str:
    """Kernels for groups of states of one kind; or why there are none.

    Args:
        groups: their steps.
        sizes: of the named dims.
        n: number of states that depend on each other.
        passthrough: held states.
        units, dtype: layout (see :class:`Newton`) and dtype of the trajectory.
    """
    if dtype != torch.float32:
        return f"its kernels compute in float32, not {str(dtype).removeprefix('torch.')}"
    if n > limits.WALKED:
        return f"{n} states of a group depend on each other, and its kernels take {limits.WALKED}"
    walked, count = n > limits.SCANNED, len(groups)
    steps = [
        Linearised(step, sizes, units=units, groups=count, passthrough=passthrough, again=walked)
        for step in groups
    ]
    if len({step.text for step in steps}) > 1:
        return "its groups of states are not alike"
    loads = steps[0].text.count("tl.load(vec")
    if count > 1 and loads > limits.GROUP_LOADS:
        return f"its kernels would load weights in {loads} places, and compile for a minute"
    return (WalkedNewton if walked else ScannedNewton)(steps, units=units)

"""Gradients of weight rate: sums over the rows of all steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from elman.engines.triton.device import limits
from elman.engines.triton.device.launch import Arrays
from elman.engines.triton.loops.batched_phase import multiplied
from elman.engines.triton.loops.sweeping import Sweeping
from elman.engines.triton.text.layout import ColumnRange, merged
from elman.engines.weights import Values
from elman.ir.graph import Node
from elman.ir.pair import Sum


@dataclass(frozen=True, eq=False)
class _JoinedSum:
    """Terms summed by one product, or one sum.

    Attributes:
        lefts: columns of the left operands, in order.
        right: columns of the right operand; None for plain sums.
        widths: width of each term.
        targets: targets of each term.
    """

    lefts: tuple[ColumnRange, ...]
    right: ColumnRange | None
    widths: tuple[int, ...]
    targets: tuple[tuple[Node, ...], ...]

    def totals(self, arrays: Arrays, dtype: torch.dtype) -> Sequence[Tensor]:
        """The sums of its terms [.., width, n], or [.., width], in float32; ``dtype`` is that of
        the products' operands."""
        rows = [place.view(arrays) for place in self.lefts]
        summed = rows[0] if len(rows) == 1 else torch.cat(rows, -1)
        if self.right is None:
            return summed.sum(-2, dtype=torch.float32).split(self.widths, -1)
        product = multiplied(summed.mT, self.right.view(arrays).to(dtype))
        return product.split(self.widths, -2)


class WeightGradients:
    """All sums of a backward, with as few reads of each operand as possible.

    Slots lie in the order of the weights' blocks (``TritonLayout``), so that most terms of one
    operand are one product without a copy.

    Args:
        sweep: the backward.
        sums: the sums.
        dtype: of the operands of products.
    """

    def __init__(self, sweep: Sweeping, sums: Sequence[Sum], dtype: torch.dtype) -> None:
        self._sweep, self._dtype = sweep, dtype
        groups: dict[Node | None, list[Sum]] = {}
        for term in sums:
            groups.setdefault(term.right, []).append(term)
        self._runs = [run for right, terms in groups.items() for run in self._cut(right, terms)]

    @property
    def arrays(self) -> set[str]:
        """Names of the arrays whose rows are summed."""
        return {
            place.base
            for run in self._runs
            for place in (*run.lefts, *([run.right] if run.right is not None else []))
        }

    def _place(self, value: Node) -> ColumnRange:
        return ColumnRange.of(self._sweep.lowering.summed(value))

    def _cut(self, right: Node | None, terms: Sequence[Sum]) -> list[_JoinedSum]:
        """Runs of contiguous terms with one right operand."""
        targets: dict[Node, list[Node]] = {}
        for term in terms:
            targets.setdefault(term.left, []).append(term.target)
        runs: list[list[tuple[Node, ColumnRange]]] = []
        for operand in sorted(targets, key=self._place):
            place = self._place(operand)
            if runs and runs[-1][-1][1].is_contiguous_with(place):
                runs[-1].append((operand, place))
            else:
                runs.append([(operand, place)])
        if right is not None and len(runs) > limits.JOINED_SUMS:
            runs = [[pair for run in runs for pair in run]]
        return [
            _JoinedSum(
                tuple(merged([place for _, place in run])),
                None if right is None else self._place(right),
                tuple(place.width for _, place in run),
                tuple(tuple(targets[operand]) for operand, _ in run),
            )
            for run in runs
        ]

    def __call__(self, arrays: Arrays) -> Values:
        """All sums by target, in float32.

        Args:
            arrays: [.., rows, n] each; the dots are heads, if there are any.
        """
        sums: Values = {}
        for run in self._runs:
            totals = run.totals(arrays, self._dtype)
            for total, targets in zip(totals, run.targets, strict=True):
                for target in targets:
                    gradient = total if target.shape else total[..., 0]
                    sums[target] = gradient if target not in sums else sums[target] + gradient
        return sums

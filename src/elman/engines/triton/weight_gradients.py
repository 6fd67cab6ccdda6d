"""Gradients of weight rate: sums over the rows of all steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from elman.engines.triton import limits
from elman.engines.triton.batched_phase import multiplied
from elman.engines.triton.launch import Arrays
from elman.engines.triton.layout import ColumnRange, merged
from elman.engines.triton.sweeping import Sweeping
from elman.engines.weights import Values
from elman.ir.graph import Node
from elman.ir.pair import Sum


@dataclass(frozen=True, eq=False)
class _JoinedSum:
    """Terms summed by one product, or one sum.

    Attributes:
        lefts: places, side by side after one another.
        right: what they are multiplied with, if anything.
        widths: of each term.
        targets: what each term is summed into.
        full_weights: weights of which all is summed here: the first of its rows, and how many.
    """

    lefts: tuple[ColumnRange, ...]
    right: ColumnRange | None
    widths: tuple[int, ...]
    targets: tuple[tuple[Node, ...], ...]
    full_weights: Mapping[str, tuple[int, int]]

    def total(self, arrays: Arrays, dtype: torch.dtype) -> Tensor:
        """The sum [.., Σ widths, n], or [.., Σ widths]; of rows in a type, in float32."""
        rows = [place.view(arrays) for place in self.lefts]
        summed = rows[0] if len(rows) == 1 else torch.cat(rows, -1)
        if self.right is None:
            return summed.sum(-2, dtype=torch.float32)
        return multiplied(summed.mT, self.right.view(arrays).to(dtype))


class WeightGradients:
    """All sums of a backward, each operand read as few times as can be.

    Slots lie in the order of the weights' blocks (``TritonLayout``), so that most gradients are
    products as they stand.

    Args:
        sweep: backward.
        sums: what is summed.
        dtype: of the results.
    """

    def __init__(self, sweep: Sweeping, sums: Sequence[Sum], dtype: torch.dtype) -> None:
        self._sweep, self._dtype = sweep, dtype
        pair = sweep.layout.program.pair
        self._blocks = pair.blocks
        self._weights: dict[str, dict[int, Node]] = {}
        for index, block in enumerate(pair.step.weights):
            self._weights.setdefault(block.name, {})[index] = block
        counts = {term.target: 0 for term in sums}
        groups: dict[Node | None, list[Sum]] = {}
        for term in sums:
            counts[term.target] += 1
            groups.setdefault(term.right, []).append(term)
        self._once = {target for target, count in counts.items() if count == 1}
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
        layout, sweep = self._sweep.layout, self._sweep.sweep
        place = self._sweep.place(sweep.summed(value))
        return ColumnRange(place.array, place.offset, layout.width(value))

    def _cut(self, right: Node | None, terms: Sequence[Sum]) -> list[_JoinedSum]:
        """Runs of terms that share what they are multiplied with."""
        targets: dict[Node, list[Node]] = {}
        for term in terms:
            targets.setdefault(term.left, []).append(term.target)
        last = len(self._sweep.layout.program.pair.step.weights)  # not a block's own gradient
        first = {
            operand: min(min(self._blocks.get(target, [last])) for target in summed_into)
            for operand, summed_into in targets.items()
        }
        runs: list[list[tuple[Node, ColumnRange]]] = []
        for operand in sorted(targets, key=lambda operand: first[operand]):
            place = self._place(operand)
            if runs and runs[-1][-1][1].is_contiguous_with(place):
                runs[-1].append((operand, place))
            else:
                runs.append([(operand, place)])
        if right is not None and len(runs) > limits.JOINED_SUMS:
            runs = [[pair for run in runs for pair in run]]
        return [self._run(right, run, targets) for run in runs]

    def _run(
        self,
        right: Node | None,
        run: Sequence[tuple[Node, ColumnRange]],
        targets: Mapping[Node, list[Node]],
    ) -> _JoinedSum:
        return _JoinedSum(
            tuple(merged([place for _, place in run])),
            None if right is None else self._place(right),
            tuple(place.width for _, place in run),
            tuple(tuple(targets[operand]) for operand, _ in run),
            self._full_weights(right, run, targets),
        )

    def _full_weights(
        self,
        right: Node | None,
        run: Sequence[tuple[Node, ColumnRange]],
        targets: Mapping[Node, list[Node]],
    ) -> dict[str, tuple[int, int]]:
        """Weights whose blocks are all in a run, in their order, each of one term."""
        where: dict[int, int] = {}  # by block: which term of the run
        for index, (operand, _) in enumerate(run):
            for target in targets[operand]:
                if target in self._once:
                    where |= dict.fromkeys(self._blocks.get(target, ()), index)
        edges = [0, *accumulate(place.width for _, place in run)]
        rank = 1 if right is None else 2
        spans: dict[str, tuple[int, int]] = {}
        for name, blocks in self._weights.items():
            start = where.get(next(iter(blocks)))
            if start is None or any(b.column or len(b.shape) != rank for b in blocks.values()):
                continue
            stop = start + len(blocks)
            if [where.get(index) for index in blocks] == [*range(start, stop)]:
                spans[name] = edges[start], edges[stop] - edges[start]
        return spans

    def __call__(self, arrays: Arrays) -> tuple[Values, dict[str, Tensor]]:
        """All sums, by what they are summed into; gradients of weights that are one of them.

        Args:
            arrays: [.., rows, n] each; the dots are heads, if there are any.
        """
        sums: Values = {}
        gradients: dict[str, Tensor] = {}
        for run in self._runs:
            total = run.total(arrays, self._dtype)
            if self._once.issuperset(target for gradient in run.targets for target in gradient):
                total = total.to(self._dtype)  # else what is summed of several is rounded once
            axis = -1 if run.right is None else -2
            spans: list[range] = []
            for name, (start, width) in run.full_weights.items():
                place = range(start, start + width)
                gradient = total.narrow(axis, start, width).to(self._dtype)
                shared = any(start < span.stop and span.start < place.stop for span in spans)
                gradients[name] = (
                    gradient.clone() if shared else gradient
                )  # each has memory of its own
                spans.append(place)
            pieces = total.split(run.widths, axis) if len(run.widths) > 1 else (total,)
            for piece, targets in zip(pieces, run.targets, strict=True):
                for target in targets:
                    gradient = piece if target.shape else piece[..., 0]
                    sums[target] = gradient if target not in sums else sums[target] + gradient
        return {target: value.to(self._dtype) for target, value in sums.items()}, gradients

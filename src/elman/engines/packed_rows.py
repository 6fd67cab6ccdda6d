"""Layout of packed rows: longest sequence first, as in torch's PackedSequence."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property, lru_cache
from itertools import accumulate, groupby

import torch
from torch import Tensor

from elman.errors import ShapeError


def _cached_tensor(make: Callable[[Packed], Tensor]) -> cached_property[Tensor]:
    """Cached property whose tensor is made outside inference mode, because autograd cannot save an
    inference tensor for a later backward."""
    return cached_property(torch.inference_mode(False)(make))


class Packed:
    """Layout of packed rows: the rows of step 0 first, then the rows of step 1 …

    Attributes:
        sizes: numbers of sequences that have a step 0, 1, …; never increasing.
        steps: T, of the longest sequence.
        batch: B.
        rows: N, rows of all steps together.
    """

    def __init__(self, sizes: Sequence[int]) -> None:
        self.sizes = tuple(sizes)
        if not self.sizes or min(self.sizes) < 1 or list(self.sizes) != sorted(sizes, reverse=True):
            raise ShapeError("batch sizes of packed sequences must be positive and never grow")
        self.steps, self.batch, self.rows = len(self.sizes), self.sizes[0], sum(self.sizes)
        self.offsets = (0, *accumulate(self.sizes))
        self._numbers: dict[int, Tensor] = {}
        self._orders: dict[torch.device, Tensor] = {}

    @property
    def mean_batch(self) -> int:
        """Sequences per step, rounded up."""
        return -(-self.rows // self.steps)

    @cached_property
    def lengths(self) -> tuple[int, ...]:
        """Steps of each sequence."""
        ending = [0] * self.batch
        for size in self.sizes:
            ending[size - 1] += 1
        return tuple(reversed(list(accumulate(reversed(ending)))))

    @cached_property
    def runs(self) -> list[tuple[slice, int, int]]:
        """Runs of steps that the same sequences have: (rows, steps, sequences)."""
        runs: list[tuple[slice, int, int]] = []
        row = 0
        for size, run in groupby(self.sizes):
            count = len(list(run))
            runs.append((slice(row, row + count * size), count, size))
            row += count * size
        return runs

    @_cached_tensor
    def sequence(self) -> Tensor:
        """Sequence of each row [N]."""
        return torch.cat([torch.arange(size) for size in self.sizes])

    @_cached_tensor
    def _step(self) -> Tensor:
        return torch.arange(self.steps).repeat_interleave(torch.tensor(self.sizes))

    def row(self, step: Tensor, sequence: Tensor) -> Tensor:
        """Row index of a step of a sequence."""
        return torch.tensor(self.offsets)[step] + sequence

    @_cached_tensor
    def _reversed(self) -> Tensor:
        last = torch.tensor(self.lengths)[self.sequence] - 1
        return self.row(last - self._step, self.sequence)

    def reversed(self, value: Tensor) -> Tensor:
        """Rows [N, ...] with every sequence reversed in time; an involution."""
        index = self._orders.get(value.device)
        if index is None:
            with torch.inference_mode(False):
                index = self._orders[value.device] = self._reversed.to(value.device)
        return value.index_select(0, index)

    def following(self, value: Tensor) -> Tensor:
        """For each row [N] the row of its sequence's next step; zero after the last step."""
        last = self._step + 1 == torch.tensor(self.lengths)[self.sequence]
        next_row = self.row((self._step + 1).clamp(max=self.steps - 1), self.sequence)
        next_row = next_row.clamp(max=self.rows - 1).to(value.device)
        return value.index_select(0, next_row).masked_fill(last.to(value.device), 0)

    def numbers(self, shares: int) -> Tensor:
        """First rows of all steps and the end, then boundaries of shares of samples, which have
        similar numbers of rows, hence equal work, rather than equal numbers of samples."""
        numbers = self._numbers.get(shares)
        if numbers is None:
            cuts, rows_before, at = [0], 0, 0
            for share in range(1, shares):
                while at < self.batch and rows_before < self.rows * share / shares:
                    rows_before += self.lengths[at]
                    at += 1
                cuts.append(at)
            numbers = self._numbers[shares] = torch.tensor((*self.offsets, *cuts, self.batch))
        return numbers


@lru_cache(maxsize=256)
def packed_of(sizes: tuple[int, ...]) -> Packed:
    """The layout of some batch sizes, cached with its derived tensors."""
    return Packed(sizes)

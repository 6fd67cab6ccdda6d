"""Sequences of several lengths: packed rows, longest sequence first, as torch's PackedSequence."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, lru_cache
from itertools import accumulate, groupby

import torch
from torch import Tensor

from elman.engines.base import Kernel
from elman.errors import ShapeError

Gradients = tuple[Tensor | None, ...]


class Ragged:
    """How many sequences have each step: rows of step 0 first, then those of step 1 …

    Attributes:
        sizes: sequences that have a step 0, 1, …; never more than before.
        steps: T, of the longest.
        batch: B.
        rows: N, of all steps together.
    """

    def __init__(self, sizes: Sequence[int]) -> None:
        self.sizes = tuple(sizes)
        if not self.sizes or min(self.sizes) < 1 or list(self.sizes) != sorted(sizes, reverse=True):
            raise ShapeError("batch sizes of packed sequences must be positive and never grow")
        self.steps, self.batch, self.rows = len(self.sizes), self.sizes[0], sum(self.sizes)
        self.offsets = (0, *accumulate(self.sizes))
        self._numbers: dict[int, Tensor] = {}
        self._turns: dict[torch.device, Tensor] = {}

    @property
    def mean_batch(self) -> int:
        """Sequences per step, rounded up."""
        return -(-self.rows // self.steps)

    @cached_property
    def lengths(self) -> tuple[int, ...]:
        """Steps of each sequence."""
        found = [0] * self.batch
        for size in self.sizes:
            found[size - 1] += 1
        return tuple(reversed(list(accumulate(reversed(found)))))

    @cached_property
    def runs(self) -> list[tuple[slice, int, int]]:
        """Stretches of steps that the same sequences have: (rows, steps, sequences)."""
        found: list[tuple[slice, int, int]] = []
        row = 0
        for size, same in groupby(self.sizes):
            count = len(list(same))
            found.append((slice(row, row + count * size), count, size))
            row += count * size
        return found

    @cached_property
    def _turn(self) -> Tensor:
        index = torch.empty(self.rows, dtype=torch.long)
        starts, lengths = torch.tensor(self.offsets), torch.tensor(self.lengths)
        for t, size in enumerate(self.sizes):
            index[starts[t] : starts[t + 1]] = starts[lengths[:size] - 1 - t] + torch.arange(size)
        return index

    def turned(self, value: Tensor) -> Tensor:
        """Rows [N, ...] with every sequence reversed in its own steps; twice is as before."""
        index = self._turns.get(value.device)
        if index is None:
            index = self._turns[value.device] = self._turn.to(value.device)
        return value.index_select(0, index)

    def numbers(self, shares: int) -> Tensor:
        """First rows of all steps and the end, then the cuts between shares of like many rows."""
        found = self._numbers.get(shares)
        if found is None:
            cuts, done, at = [0], 0, 0
            for share in range(1, shares):
                while at < self.batch and done < self.rows * share / shares:
                    done += self.lengths[at]
                    at += 1
                cuts.append(at)
            found = self._numbers[shares] = torch.tensor((*self.offsets, *cuts, self.batch))
        return found


@lru_cache(maxsize=256)
def ragged_of(sizes: tuple[int, ...]) -> Ragged:
    """The layout of some batch sizes; what follows from them is kept."""
    return Ragged(sizes)


def turned(value: Tensor, ragged: Ragged | None) -> Tensor:
    """A sequence [T, B, ...], or packed rows, backwards in time."""
    return value.flip(0) if ragged is None else ragged.turned(value)


def over(kernel: Kernel, ragged: Ragged | None) -> Kernel:
    """A kernel for packed rows: inputs, output and their gradients are [N, n] (or [N]), states
    [B, n] (or [B]), those after each sequence's own last step."""
    if ragged is None:
        return kernel
    return kernel.over(ragged) or Runs(kernel, ragged)


class Runs(Kernel):
    """Any kernel over packed rows: one call for each stretch of steps with the same sequences."""

    def __init__(self, kernel: Kernel, ragged: Ragged) -> None:
        self.kernel, self.layout = kernel, ragged
        self.engine, self.differentiable = kernel.engine, kernel.differentiable
        self._kept: list[int] = []

    def forward(
        self, inputs: Sequence[Tensor], states: Sequence[Tensor], weights: Sequence[Tensor]
    ) -> tuple[Tensor, tuple[Tensor, ...], tuple[Tensor, ...]]:
        """See :meth:`Kernel.forward`; inputs and output are packed rows."""
        now = list(states)
        outputs: list[Tensor] = []
        ends: list[list[Tensor]] = [[] for _ in states]
        kept: list[tuple[Tensor, ...]] = []
        starts: list[Tensor] = []
        for (rows, steps, size), after in zip(
            self.layout.runs, (*(run[2] for run in self.layout.runs[1:]), 0), strict=True
        ):
            now = [state[:size] for state in now]
            own = [value[rows].unflatten(0, (steps, size)) for value in inputs]
            output, last, saved = self.kernel.forward(own, now, weights)
            outputs.append(output.flatten(0, 1))
            for end, state in zip(ends, last, strict=True):
                end.append(state[after:])
            kept.append(saved)
            starts += now
            now = list(last)
        self._kept = [len(saved) for saved in kept]
        whole = tuple(torch.cat(end[::-1]) for end in ends)
        if not any(kept):
            return torch.cat(outputs), whole, ()
        return torch.cat(outputs), whole, (*starts, *(value for saved in kept for value in saved))

    def backward(
        self,
        inputs: Sequence[Tensor],
        states: Sequence[Tensor],
        weights: Sequence[Tensor],
        saved: Sequence[Tensor],
        d_output: Tensor | None,
        d_last: Sequence[Tensor | None],
        keep: bool,
    ) -> tuple[Gradients, Gradients, Gradients]:
        """See :meth:`Kernel.backward`."""
        runs, count = self.layout.runs, len(states)
        starts, rest = saved[: count * len(runs)], list(saved[count * len(runs) :])
        pieces: list[Gradients] = []
        d_weights: Gradients = (None,) * len(weights)
        d_now: Gradients = (None,) * count
        after = 0
        for index in reversed(range(len(runs))):
            rows, steps, size = runs[index]
            kept = self._kept[index]
            own, rest = rest[len(rest) - kept :], rest[: len(rest) - kept]
            begun = starts[count * index : count * (index + 1)]
            d_ends = [
                _joined(d, None if end is None else end[after:size], begin, after)
                for d, end, begin in zip(d_now, d_last, begun, strict=True)
            ]
            d_inputs, d_now, d_own = self.kernel.backward(
                [value[rows].unflatten(0, (steps, size)) for value in inputs],
                begun,
                weights,
                own,
                None if d_output is None else d_output[rows].unflatten(0, (steps, size)),
                d_ends,
                keep,
            )
            pieces.append(tuple(None if d is None else d.flatten(0, 1) for d in d_inputs))
            d_weights = tuple(
                d if total is None else total if d is None else total + d
                for total, d in zip(d_weights, d_own, strict=True)
            )
            after = size
        found = tuple(
            None if parts[0] is None else torch.cat([p for p in parts[::-1] if p is not None])
            for parts in zip(*pieces, strict=True)
        )
        return found, d_now, d_weights

    def describe(self) -> dict[str, object]:
        """The kernel's own facts."""
        return self.kernel.describe()

    def counters(self) -> dict[str, int]:
        """The kernel's own counts."""
        return self.kernel.counters()


def _joined(going: Tensor | None, ended: Tensor | None, like: Tensor, after: int) -> Tensor | None:
    """The cotangent of a stretch's last states: of sequences that go on, and of those that end."""
    if going is None and ended is None:
        return None
    made = torch.zeros_like(like)
    if going is not None:
        made[:after] = going
    if ended is not None:
        made[after:] = ended
    return made

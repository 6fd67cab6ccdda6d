"""Several kernels as one: the layers of a stack, or the two directions of a layer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor

from elman.engines.base import Job, Kernel
from elman.engines.call import Call, Cotangents, Gradients, Result
from elman.engines.packed import Packed, for_layout, reversed_in_time
from elman.engines.spans import added
from elman.engines.streams import Streams
from elman.errors import VerifyError


class Arrangement(NamedTuple):
    """How kernels stand to one another, and which arguments of all of them are whose.

    Layers: each further one reads the output of the one below as its first input. Directions: the
    second runs over the reversed sequence, and outputs are joined. Further inputs go to all, but
    the last ``own`` of each, which follow in the kernels' order and lie in its order of time. So do
    states and weights.

    Attributes:
        states, weights: how many each kernel has.
        directions: whether they are the two directions of a layer, not layers.
        own: inputs that each kernel has for itself.
    """

    states: tuple[int, ...]
    weights: tuple[int, ...]
    directions: bool
    own: int = 0

    @staticmethod
    def of(jobs: Sequence[Job], directions: bool, own: int = 0) -> Arrangement:
        """The arrangement of some jobs."""
        graphs = [job.graph for job in jobs]
        states, weights = ([len(g.states) for g in graphs], [len(g.weights) for g in graphs])
        return Arrangement(tuple(states), tuple(weights), directions, own)

    def joined(self, calls: Sequence[Call]) -> Call:
        """One call of the calls of all kernels; those of the layers above lack their first
        input."""
        inputs = calls[0].inputs
        if self.own:
            shared = len(inputs) - self.own
            own = [x for call in calls for x in call.inputs[shared:]]
            inputs = (*inputs[:shared], *own)
        return Call(
            inputs,
            tuple([state for call in calls for state in call.states]),
            tuple([weight for call in calls for weight in call.weights]),
            calls[0].packed,
        )

    def shared(self, call: Call) -> tuple[Tensor, ...]:
        """The inputs that are not one kernel's own."""
        own = self.own * len(self.states)
        return call.inputs[: len(call.inputs) - own] if own else call.inputs

    def split(self, call: Call, first: tuple[Tensor, ...], index: int) -> Call:
        """The call of one kernel, given what stands for its shared inputs."""
        inputs = first
        if self.own:
            at = len(call.inputs) - self.own * (len(self.states) - index)
            inputs = (*first, *call.inputs[at : at + self.own])
        states = call.states[_cuts(self.states)[index]]
        return Call(inputs, states, call.weights[_cuts(self.weights)[index]], call.packed)


@lru_cache(maxsize=256)
def _cuts(counts: tuple[int, ...]) -> tuple[slice, ...]:
    """Where so many values of each kernel lie, kernel by kernel."""
    return tuple(slice(a, b) for a, b in pairwise(accumulate(counts, initial=0)))


class Together(Kernel):
    """Runs its kernels one after another. On a GPU directions run side by side.

    Args:
        kernels: lowest layer first; or forward and reverse. Either all are differentiable or none.
        arrangement: of the kernels.
    """

    packs = True

    def __init__(self, kernels: Sequence[Kernel], arrangement: Arrangement) -> None:
        self.kernels, self.arrangement = tuple(kernels), arrangement
        self.differentiable = kernels[0].differentiable
        self.engine = kernels[0].engine
        if any(kernel.differentiable != self.differentiable for kernel in kernels):
            raise VerifyError("kernels that autograd sees through and others in one")
        self._saves: tuple[int, ...] = ()  # how many tensors each saves of a call it takes whole

    def describe(self) -> dict[str, Any]:
        """The facts of all kernels, in order."""
        return {"engine": self.engine, "parts": [kernel.describe() for kernel in self.kernels]}

    def counters(self) -> dict[str, int]:
        """The sums over all kernels; one that is used twice counts once."""
        total: dict[str, int] = {}
        for kernel in dict.fromkeys(self.kernels):
            for name, count in kernel.counters().items():
                total[name] = total.get(name, 0) + count
        return total

    def forward(self, call: Call) -> Result:
        """See :meth:`Kernel.forward`."""
        of, kernels = self.arrangement, self._for_layout(call.packed)
        shared = of.shared(call)
        firsts = [shared]
        if of.directions:
            firsts.append(tuple(reversed_in_time(value, call.packed) for value in shared))
        results: list[Result] = []
        with self._launched() as launched, self._streams(call) as streams:
            for index, kernel in enumerate(kernels):
                if index and not of.directions:
                    firsts.append((results[-1].output, *shared[1:]))
                with streams.on(index):
                    results.append(launched(kernel).forward(of.split(call, firsts[index], index)))
            streams.hand_over((*results[-1].values, *results[-1].saved))
        return self._joined(results, firsts, call.packed)

    def _launched(self) -> AbstractContextManager[Callable[[Kernel], Kernel]]:
        """Results stand after it; gives what to call in place of each kernel."""
        return nullcontext(_itself)

    def _for_layout(self, packed: Packed | None) -> Sequence[Kernel]:
        if packed is None:
            return self.kernels
        return [for_layout(kernel, packed) for kernel in self.kernels]

    def _streams(self, call: Call) -> Streams:
        """Directions side by side; layers one after another."""
        side_by_side = self.arrangement.directions and not self.differentiable
        return Streams(call.inputs[0], 2 if side_by_side else 1)

    def _joined(
        self,
        results: Sequence[Result],
        firsts: Sequence[tuple[Tensor, ...]],
        packed: Packed | None,
    ) -> Result:
        """The result of all kernels. What is saved: the shared inputs of the kernels above, then
        what each saved."""
        output = results[-1].output
        if self.arrangement.directions:
            output = torch.cat((results[0].output, reversed_in_time(output, packed)), -1)
        last = tuple([end for result in results for end in result.last])
        counts = tuple([len(result.saved) for result in results])
        if not any(counts):
            return Result(output, last)
        if not self._saves:
            self._saves = self._counts(counts, packed, whole=False)
        between = firsts[1] if self.arrangement.directions else [first[0] for first in firsts[1:]]
        saved = (*between, *[value for result in results for value in result.saved])
        return Result(output, last, saved)

    def _counts(
        self, counts: tuple[int, ...], packed: Packed | None, whole: bool
    ) -> tuple[int, ...]:
        """From how many tensors each kernel saves of a call it takes whole to how many it saved of
        one that lies so, and back: of packed rows some take a call per run, and keep states."""
        if packed is None or all(kernel.packs for kernel in self.kernels):
            return counts
        runs = len(packed.runs)
        return tuple(
            count
            if kernel.packs or not count
            else runs * count + states
            if whole
            else (count - states) // runs
            for kernel, count, states in zip(
                self.kernels, counts, self.arrangement.states, strict=True
            )
        )

    def backward(
        self, call: Call, saved: Sequence[Tensor], cotangents: Cotangents, keep: bool
    ) -> Gradients:
        """See :meth:`Kernel.backward`."""
        kernels, d_output = self._for_layout(call.packed), cotangents.output
        d_outputs = self._halves(cotangents.output, call.packed)
        results: list[Gradients | None] = [None] * len(kernels)
        with self._launched() as launched, self._streams(call) as streams:
            for index, own, kept, d_last in self._backwards(call, saved, cotangents):
                d = d_outputs[index] if self.arrangement.directions else d_output
                with streams.on(index):
                    gradients = launched(kernels[index]).backward(
                        own, kept, Cotangents(d, d_last), keep
                    )
                d_output, *others = gradients.inputs
                if index and not self.arrangement.directions:  # only the layer below reads it
                    gradients = gradients._replace(inputs=(None, *others))
                results[index] = gradients
            if results[-1] is not None:
                streams.hand_over(results[-1].tensors)
        return self._gradients(call, results)

    def _backwards(
        self, call: Call, saved: Sequence[Tensor], cotangents: Cotangents
    ) -> Iterator[tuple[int, Call, tuple[Tensor, ...], tuple[Tensor | None, ...]]]:
        """For each kernel in which something has a gradient, the last first: its place, its call,
        what it saved, and cotangents of its last states."""
        of, shared = self.arrangement, self.arrangement.shared(call)
        counts = self._counts(self._saves, call.packed, whole=True)
        between = tuple(saved[: len(saved) - sum(counts)])
        kept, places = saved[len(between) :], _cuts(counts)
        for index in reversed(range(len(self.kernels))):
            if counts[index]:
                first = shared
                if index:
                    first = between if of.directions else (between[index - 1], *shared[1:])
                d_last = cotangents.last[_cuts(of.states)[index]]
                yield index, of.split(call, first, index), tuple(kept[places[index]]), d_last

    def _halves(self, d_output: Tensor | None, packed: Packed | None) -> tuple[Tensor | None, ...]:
        """Cotangents of both directions."""
        if d_output is None or not self.arrangement.directions:
            return (None, None)
        first, second = d_output.chunk(2, -1)
        return first, _reversed(second, packed)

    def _gradients(self, call: Call, results: Sequence[Gradients | None]) -> Gradients:
        """The gradients of the whole call from those of every kernel's."""
        of, count = self.arrangement, len(call.inputs) - self.arrangement.own * len(results)
        none = (None,) * (count + of.own)
        parts = [
            result or Gradients(none, (None,) * states, (None,) * weights)
            for result, states, weights in zip(results, of.states, of.weights, strict=True)
        ]
        total, *further = (part.inputs[:count] for part in parts)
        for d_inputs in further:
            if of.directions:
                time_reversed = [_reversed(d, call.packed) for d in d_inputs]
                total = tuple(map(added, total, time_reversed))
            else:
                total = (total[0], *map(added, total[1:], d_inputs[1:]))
        return Gradients(
            (*total, *[d for part in parts for d in part.inputs[count:]]),
            tuple([d for part in parts for d in part.states]),
            tuple([d for part in parts for d in part.weights]),
        )


def _itself(kernel: Kernel) -> Kernel:
    return kernel


def _reversed(d: Tensor | None, packed: Packed | None) -> Tensor | None:
    return None if d is None else reversed_in_time(d, packed)

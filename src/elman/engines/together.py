"""Several kernels as one: the layers of a stack, or the two directions of a layer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from elman.engines.base import Arrangement, Kernel, cuts_of
from elman.engines.call import Call, Cotangents, Gradients, Result
from elman.engines.packed import for_layout, reversed_in_time
from elman.engines.packed_rows import Packed
from elman.engines.spans import added
from elman.engines.streams import Streams
from elman.errors import VerifyError


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
        self._saves: tuple[int, ...] = ()  # tensors that each kernel saves of a dense call

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
        of, kernels = self.arrangement, self._for_layout(call.packed)
        common = of.shared(call)
        firsts = [common]
        if of.directions:
            firsts.append(tuple(reversed_in_time(value, call.packed) for value in common))
        results: list[Result] = []
        with self._launched() as launched, self._streams(call) as streams:
            for index, kernel in enumerate(kernels):
                if index and not of.directions:
                    firsts.append((results[-1].output, *common[1:]))
                with streams.on(index):
                    results.append(launched(kernel).forward(of.split(call, firsts[index], index)))
            streams.hand_over((*results[-1].values, *results[-1].saved))
        return self._join(results, firsts, call.packed)

    def _launched(self) -> AbstractContextManager[Callable[[Kernel], Kernel]]:
        """Context whose value wraps a kernel for a launch; its exit completes the results."""
        return nullcontext(_itself)

    def _for_layout(self, packed: Packed | None) -> Sequence[Kernel]:
        if packed is None:
            return self.kernels
        return [for_layout(kernel, packed) for kernel in self.kernels]

    def _streams(self, call: Call) -> Streams:
        """Directions side by side; layers one after another."""
        side_by_side = self.arrangement.directions and not self.differentiable
        return Streams(call.inputs[0], 2 if side_by_side else 1)

    def _join(
        self,
        results: Sequence[Result],
        firsts: Sequence[tuple[Tensor, ...]],
        packed: Packed | None,
    ) -> Result:
        """The result of all kernels. ``saved`` has the first inputs of all kernels but the lowest,
        then the saved tensors of each."""
        output = results[-1].output
        if self.arrangement.directions:
            output = torch.cat((results[0].output, reversed_in_time(output, packed)), -1)
        last = tuple([end for result in results for end in result.last])
        counts = tuple([len(result.saved) for result in results])
        if not any(counts):
            return Result(output, last)
        if not self._saves:
            self._saves = self._counts(counts, packed, of_whole_calls=False)
        between = firsts[1] if self.arrangement.directions else [first[0] for first in firsts[1:]]
        saved = (*between, *[value for result in results for value in result.saved])
        return Result(output, last, saved)

    def _counts(
        self, counts: tuple[int, ...], packed: Packed | None, of_whole_calls: bool
    ) -> tuple[int, ...]:
        """Convert numbers of saved tensors per kernel between dense and packed calls. A kernel
        without packed rows is called once per run of steps, and saves the states of each run."""
        if packed is None or all(kernel.packs for kernel in self.kernels):
            return counts
        runs = len(packed.runs)
        return tuple(
            count
            if kernel.packs or not count
            else runs * count + states
            if of_whole_calls
            else (count - states) // runs
            for kernel, count, states in zip(
                self.kernels, counts, self.arrangement.states, strict=True
            )
        )

    def backward(
        self, call: Call, saved: Sequence[Tensor], cotangents: Cotangents, keep: bool
    ) -> Gradients:
        kernels, d_output = self._for_layout(call.packed), cotangents.output
        d_outputs = self._halves(cotangents.output, call.packed)
        results: list[Gradients | None] = [None] * len(kernels)
        with self._launched() as launched, self._streams(call) as streams:
            for index, kernel_call, saved_by_kernel, d_last in self._backwards(
                call, saved, cotangents
            ):
                d = d_outputs[index] if self.arrangement.directions else d_output
                with streams.on(index):
                    gradients = launched(kernels[index]).backward(
                        kernel_call, saved_by_kernel, Cotangents(d, d_last), keep
                    )
                d_output, *further = gradients.inputs
                if index and not self.arrangement.directions:  # only the layer below reads it
                    gradients = gradients._replace(inputs=(None, *further))
                results[index] = gradients
            if results[-1] is not None:
                streams.hand_over(results[-1].tensors)
        return self._gradients(call, results)

    def _backwards(
        self, call: Call, saved: Sequence[Tensor], cotangents: Cotangents
    ) -> Iterator[tuple[int, Call, tuple[Tensor, ...], tuple[Tensor | None, ...]]]:
        """For each kernel with a backward, the last first: its index, its call, its saved tensors,
        and cotangents of its last states."""
        of, common = self.arrangement, self.arrangement.shared(call)
        counts = self._counts(self._saves, call.packed, of_whole_calls=True)
        between = tuple(saved[: len(saved) - sum(counts)])
        saved_by_all, places = saved[len(between) :], cuts_of(counts)
        for index in reversed(range(len(self.kernels))):
            if counts[index]:
                first = common
                if index:
                    first = between if of.directions else (between[index - 1], *common[1:])
                d_last = cotangents.last[cuts_of(of.states)[index]]
                yield (
                    index,
                    of.split(call, first, index),
                    tuple(saved_by_all[places[index]]),
                    d_last,
                )

    def _halves(self, d_output: Tensor | None, packed: Packed | None) -> tuple[Tensor | None, ...]:
        """Cotangents of both directions."""
        if d_output is None or not self.arrangement.directions:
            return (None, None)
        first, second = d_output.chunk(2, -1)
        return first, _reversed(second, packed)

    def _gradients(self, call: Call, results: Sequence[Gradients | None]) -> Gradients:
        """The gradients of the whole call from those of all kernels."""
        of, count = self.arrangement, len(call.inputs) - self.arrangement.private * len(results)
        none = (None,) * (count + of.private)
        by_kernel = [
            result or Gradients(none, (None,) * states, (None,) * weights)
            for result, states, weights in zip(results, of.states, of.weights, strict=True)
        ]
        total, *further = (of_kernel.inputs[:count] for of_kernel in by_kernel)
        for d_inputs in further:
            if of.directions:
                time_reversed = [_reversed(d, call.packed) for d in d_inputs]
                total = tuple(map(added, total, time_reversed))
            else:
                total = (total[0], *map(added, total[1:], d_inputs[1:]))
        return Gradients(
            (*total, *[d for of_kernel in by_kernel for d in of_kernel.inputs[count:]]),
            tuple([d for of_kernel in by_kernel for d in of_kernel.states]),
            tuple([d for of_kernel in by_kernel for d in of_kernel.weights]),
        )


def _itself(kernel: Kernel) -> Kernel:
    return kernel


def _reversed(d: Tensor | None, packed: Packed | None) -> Tensor | None:
    return None if d is None else reversed_in_time(d, packed)

"""Several kernels as one: the layers of a stack, or the two directions of a layer."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from typing import Any

import torch
from torch import Tensor

from elman.engines.base import Kernel
from elman.engines.lanes import Lanes
from elman.engines.ragged import Ragged, over, turned
from elman.errors import VerifyError

Gradients = tuple[Tensor | None, ...]


def _sum(a: Tensor | None, b: Tensor | None) -> Tensor | None:
    return b if a is None else a if b is None else a + b


class Together(Kernel):
    """Runs its kernels one after another; arguments and results as of :class:`Kernel`. On a GPU
    directions run side by side.

    Layers: each further one reads the output of the one below as its first input. Directions: the
    second runs over the reversed sequence, and outputs are joined. Further inputs go to all.
    States and weights of all kernels follow each other, in the kernels' order.

    Args:
        kernels: lowest layer first; or forward and reverse. Either all are differentiable or none.
        counts: (states, weights) of each.
        beside: whether they are directions.
    """

    def __init__(
        self, kernels: Sequence[Kernel], counts: Sequence[tuple[int, int]], beside: bool
    ) -> None:
        self.kernels, self.counts, self.beside = tuple(kernels), tuple(counts), beside
        self.differentiable = kernels[0].differentiable
        self.engine = kernels[0].engine
        if any(kernel.differentiable != self.differentiable for kernel in kernels):
            raise VerifyError("kernels that autograd sees through and others in one")
        self._states = self._cuts([states for states, _ in counts])
        self._weights = self._cuts([weights for _, weights in counts])
        self.ragged: Ragged | None = None
        self._saved: list[slice] = []  # where each kernel's own tensors lie in what is saved

    def over(self, ragged: Ragged) -> Together:
        """See :meth:`Kernel.over`."""
        made = copy(self)
        made.kernels = tuple(over(kernel, ragged) for kernel in self.kernels)
        made.ragged, made._saved = ragged, []
        return made

    @staticmethod
    def _cuts(counts: Sequence[int]) -> list[slice]:
        found, at = [], 0
        for count in counts:
            found.append(slice(at, at + count))
            at += count
        return found

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

    def _begin(self) -> Any:
        """What every kernel is given beside its arguments."""
        return ()

    def _end(self, more: Any) -> None:
        """After it all results stand."""

    def forward(
        self, inputs: Sequence[Tensor], states: Sequence[Tensor], weights: Sequence[Tensor]
    ) -> tuple[Tensor, tuple[Tensor, ...], tuple[Tensor, ...]]:
        """See :meth:`Kernel.forward`."""
        given: Sequence[Tensor] = tuple(inputs)
        between: list[Tensor] = []  # what the backward needs beside the arguments
        if self.beside:
            between = [turned(value, self.ragged) for value in inputs]
        more = self._begin()
        outputs: list[Tensor] = []
        ends: list[Tensor] = []
        kept: list[tuple[Tensor, ...]] = []
        with self._lanes(inputs[0]) as lanes:
            for index, kernel in enumerate(self.kernels):
                if index:
                    given = between if self.beside else (outputs[-1], *inputs[1:])
                with lanes.lane(index):
                    output, last, saved = kernel.forward(
                        given, states[self._states[index]], weights[self._weights[index]], *more
                    )
                outputs.append(output)
                ends.extend(last)
                kept.append(saved)
            lanes.hand_over((outputs[-1], *ends[self._states[-1]], *kept[-1]))
        self._end(more)
        return self._whole(outputs, between if self.beside else outputs[:-1], ends, kept)

    def _lanes(self, like: Tensor) -> Lanes:
        """Directions side by side; layers one after another."""
        return Lanes(like, 2 if self.beside and not self.differentiable else 1)

    def _whole(
        self,
        outputs: Sequence[Tensor],
        between: Sequence[Tensor],
        ends: Sequence[Tensor],
        kept: Sequence[tuple[Tensor, ...]],
    ) -> tuple[Tensor, tuple[Tensor, ...], tuple[Tensor, ...]]:
        """What a forward returns, from what its kernels did."""
        output = outputs[-1]
        if self.beside:
            output = torch.cat((outputs[0], turned(outputs[1], self.ragged)), -1)
        if not any(kept):
            return output, tuple(ends), ()
        if not self._saved:
            self._saved = self._cuts([len(between), *map(len, kept)])
        return output, tuple(ends), (*between, *(value for saved in kept for value in saved))

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
        none: Gradients = (None,) * len(inputs)
        found: list[Gradients] = [none] * len(self.kernels)
        d_states: list[Tensor | None] = [None] * len(states)
        d_weights: list[Tensor | None] = [None] * len(weights)
        between = saved[self._saved[0]]
        d_outputs = self._halves(d_output)
        more = self._begin()
        with self._lanes(inputs[0]) as lanes:
            for index in reversed(range(len(self.kernels))):
                own = saved[self._saved[1 + index]]
                if not own:  # nothing in it has a gradient
                    continue
                if not self.beside:
                    given: Sequence[Tensor] = (between[index - 1], *inputs[1:]) if index else inputs
                else:
                    given = between if index else inputs
                of_states, of_weights = self._states[index], self._weights[index]
                with lanes.lane(index):
                    groups = self.kernels[index].backward(
                        given,
                        states[of_states],
                        weights[of_weights],
                        own,
                        d_outputs[index] if self.beside else d_output,
                        d_last[of_states],
                        keep,
                        *more,
                    )
                found[index], d_states[of_states], d_weights[of_weights] = groups
                d_output = found[index][0]
            last, final = self._states[-1], self._weights[-1]
            lanes.hand_over((*found[-1], *d_states[last], *d_weights[final]))
        self._end(more)
        return self._of_inputs(found), tuple(d_states), tuple(d_weights)

    def _halves(self, d_output: Tensor | None) -> tuple[Tensor | None, ...]:
        """Cotangents of both directions."""
        if d_output is None or not self.beside:
            return (None, None)
        first, second = d_output.chunk(2, -1)
        return first, turned(second, self.ragged)

    def _of_inputs(self, found: list[Gradients]) -> Gradients:
        """Gradients of the inputs from those of every kernel's."""
        if self.beside:
            back = [d if d is None else turned(d, self.ragged) for d in found[1]]
            return tuple(map(_sum, found[0], back))
        total = found[0]
        for more in found[1:]:
            total = (total[0], *map(_sum, total[1:], more[1:]))
        return total

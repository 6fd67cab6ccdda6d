"""Layers of a stack side by side: each computes a stretch of steps behind the layer below."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import sqrt
from typing import Any

from torch import Tensor

from elman.engines.lanes import Lanes
from elman.engines.ragged import Ragged
from elman.engines.together import Gradients, Together
from elman.engines.triton.kernel import TritonKernel
from elman.engines.triton.launch import launching
from elman.engines.triton.runs import BackwardRun, ForwardRun

_LAUNCH = 13  # steps that take as long as a stretch takes to be launched, and to load its weights
_MULTIPLE = 16  # steps of a stretch, so that addresses stay as aligned as they were


def stretches(steps: int, layers: int) -> list[tuple[int, int]]:
    """The first step of each stretch, and the one after its last.

    With S stretches a stack takes S + L - 1 of them instead of L · S, but launches more often:
    S = √((L - 1) T / c) is fastest if a launch takes as long as c steps.
    """
    count = max(1, round(sqrt((layers - 1) * steps / _LAUNCH)))
    length = -(-steps // (count * _MULTIPLE)) * _MULTIPLE
    return [(first, min(first + length, steps)) for first in range(0, steps, length)]


def forecast(steps: int, layers: int) -> float:
    """The time of a wave as a share of that of one layer after another."""
    count = len(stretches(steps, layers))
    return (count + layers - 1) * (steps / count + _LAUNCH) / (layers * (steps + _LAUNCH))


def wave(layers: int, count: int) -> Iterator[tuple[int, int]]:
    """Layers and stretches in an order in which whatever a layer needs of the one below has just
    been begun, and nothing after it."""
    for diagonal in range(layers + count - 1):
        for layer in reversed(range(layers)):
            if 0 <= diagonal - layer < count:
                yield layer, diagonal - layer


class Wave(Together):
    """:class:`Together` of layers, on a stream each.

    All arrays of a layer are made before its first stretch; a layer reads its stretch of the output
    of the one below once that is computed.

    Args:
        kernels: lowest layer first; each runs all its steps in one kernel, and all of them find
            room on the chip at once.
        counts: (states, weights) of each.
    """

    def __init__(self, kernels: Sequence[TritonKernel], counts: Sequence[tuple[int, int]]) -> None:
        super().__init__(kernels, counts, beside=False)
        self.layers = tuple(kernels)

    def over(self, ragged: Ragged) -> Together:
        """See :meth:`Kernel.over`: one layer after another."""
        return Together(self.layers, self.counts, beside=False).over(ragged)

    def forward(
        self, inputs: Sequence[Tensor], states: Sequence[Tensor], weights: Sequence[Tensor]
    ) -> tuple[Tensor, tuple[Tensor, ...], tuple[Tensor, ...]]:
        """See :meth:`Kernel.forward`; raises as :meth:`TritonKernel.forward`."""
        runs: list[ForwardRun] = []
        given: Sequence[Tensor] = inputs
        with launching(states[0]):
            for layer, own, read in zip(self.layers, self._states, self._weights, strict=True):
                runs.append(ForwardRun(layer, given, states[own], weights[read]))
                given = (runs[-1].output, *inputs[1:])
            found = self._run(runs, inputs[0], reverse=False)
        outputs, ends, kept = zip(*found, strict=True)
        return self._whole(outputs, outputs[:-1], [end for last in ends for end in last], kept)

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
        between, *kept = (saved[own] for own in self._saved)
        order = [index for index, own in enumerate(kept) if own][::-1]  # those with gradients
        runs: list[BackwardRun] = []
        with launching(states[0]):
            for index in order:
                own, read = self._states[index], self._weights[index]
                given = (between[index - 1], *inputs[1:]) if index else inputs
                of, ends = self.layers[index], d_last[own]
                arguments = given, states[own], weights[read], kept[index]
                runs.append(BackwardRun(of, *arguments, d_output, ends, keep))
                d_output = runs[-1].d_inputs[0]
            found = self._run(runs, inputs[0], reverse=True)
        none: Gradients = (None,) * len(inputs)
        d_inputs: list[Gradients] = [none] * len(self.layers)
        d_states: list[Tensor | None] = [None] * len(states)
        d_weights: list[Tensor | None] = [None] * len(weights)
        for index, groups in zip(order, found, strict=True):
            d_inputs[index], d_states[self._states[index]], d_weights[self._weights[index]] = groups
        return self._of_inputs(d_inputs), tuple(d_states), tuple(d_weights)

    def _run(self, runs: Sequence[Any], like: Tensor, *, reverse: bool) -> list[Any]:
        """All stretches of all runs, each of which reads the results of the one before it."""
        cuts = stretches(runs[0].T, len(runs))
        if reverse:
            cuts.reverse()
        found: list[Any] = []
        with Lanes(like, len(runs)) as lanes:
            for place, cut in wave(len(runs), len(cuts)):
                if place:
                    lanes.after(place, place - 1)
                with lanes.lane(place):
                    runs[place].stretch(*cuts[cut])
            for place, run in enumerate(runs):
                with lanes.lane(place):
                    found.append(run.results())
            lanes.hand_over(_tensors(found))
        return found


def _tensors(found: Any) -> Iterator[Tensor]:
    """All tensors in nested lists and tuples."""
    if isinstance(found, Tensor):
        yield found
    elif found is not None:
        for value in found:
            yield from _tensors(value)

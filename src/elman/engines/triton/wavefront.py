"""Layers of a stack side by side: each computes a time chunk behind the layer below."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import sqrt
from typing import Any

from torch import Tensor

from elman.engines.call import Call, Cotangents, Gradients, Result
from elman.engines.streams import Streams
from elman.engines.together import Arrangement, Together
from elman.engines.triton import limits
from elman.engines.triton.call_buffers import BackwardCallBuffers, ForwardCallBuffers
from elman.engines.triton.kernel import TritonKernel
from elman.engines.triton.launch import launching


def time_chunks(steps: int, layers: int) -> list[tuple[int, int]]:
    """The first step of each time chunk, and the one after its last.

    With S time chunks a stack takes S + L - 1 of them instead of L · S, but launches more often:
    S = √((L - 1) T / c) is fastest if a launch takes as long as c steps.
    """
    count = max(1, round(sqrt((layers - 1) * steps / limits.CHUNK_LAUNCH)))
    length = -(-steps // (count * limits.CHUNK_MULTIPLE)) * limits.CHUNK_MULTIPLE
    return [(first, min(first + length, steps)) for first in range(0, steps, length)]


def forecast(steps: int, layers: int) -> float:
    """The time of a wavefront as a share of that of one layer after another."""
    count = len(time_chunks(steps, layers))
    return (
        (count + layers - 1)
        * (steps / count + limits.CHUNK_LAUNCH)
        / (layers * (steps + limits.CHUNK_LAUNCH))
    )


def wavefront(layers: int, count: int) -> Iterator[tuple[int, int]]:
    """Layers and time chunks in an order in which whatever a layer needs of the one below has just
    been begun, and nothing after it."""
    for diagonal in range(layers + count - 1):
        for layer in reversed(range(layers)):
            if 0 <= diagonal - layer < count:
                yield layer, diagonal - layer


class Wavefront(Together):
    """:class:`Together` of layers, on a stream each.

    All arrays of a layer are made before its first time chunk; a layer reads its time chunk of the
    output of the one below once that is computed.

    Args:
        kernels: lowest layer first; each runs all its steps in one kernel, and all of them find
            room on the chip at once.
        arrangement: of the layers.
    """

    def __init__(self, kernels: Sequence[TritonKernel], arrangement: Arrangement) -> None:
        super().__init__(kernels, arrangement)
        self.layers = tuple(kernels)
        self._apart = Together(kernels, arrangement)

    def forward(self, call: Call) -> Result:
        """See :meth:`Kernel.forward`; raises as :meth:`TritonKernel.forward`. Packed rows run one
        layer after another."""
        if call.packed is not None:
            return self._apart.forward(call)
        of = self.arrangement
        shared = of.shared(call)
        firsts, runs = [shared], list[ForwardCallBuffers]()
        with launching(call.states[0]):
            for index, layer in enumerate(self.layers):
                runs.append(ForwardCallBuffers(layer, of.split(call, firsts[index], index)))
                firsts.append((runs[-1].output, *shared[1:]))
            results: list[Result] = self._run(runs, call.inputs[0], reverse=False)
        firsts = [shared, *((result.output, *shared[1:]) for result in results[:-1])]
        return self._joined(results, firsts, None)

    def backward(
        self, call: Call, saved: Sequence[Tensor], cotangents: Cotangents, keep: bool
    ) -> Gradients:
        """See :meth:`Kernel.backward`."""
        if call.packed is not None:
            return self._apart.backward(call, saved, cotangents, keep)
        order: list[int] = []
        runs: list[BackwardCallBuffers] = []
        d_output = cotangents.output
        with launching(call.states[0]):
            for index, layer_call, saved_by_layer, d_last in self._backwards(
                call, saved, cotangents
            ):
                order.append(index)
                ends = Cotangents(d_output, d_last)
                runs.append(
                    BackwardCallBuffers(self.layers[index], layer_call, saved_by_layer, ends, keep)
                )
                d_output = runs[-1].d_inputs[0]
            gradients: list[Gradients] = self._run(runs, call.inputs[0], reverse=True)
        by_layer: list[Gradients | None] = [None] * len(self.layers)
        for index, of_layer in zip(order, gradients, strict=True):
            by_layer[index] = of_layer
        return self._gradients(call, by_layer)

    def _run(self, runs: Sequence[Any], like: Tensor, *, reverse: bool) -> list[Any]:
        """All time chunks of all runs, each of which reads the results of the one before it."""
        cuts = time_chunks(runs[0].T, len(runs))
        if reverse:
            cuts.reverse()
        results: list[Any] = []
        with Streams(like, len(runs)) as streams:
            for place, cut in wavefront(len(runs), len(cuts)):
                if place:
                    streams.after(place, place - 1)
                with streams.on(place):
                    runs[place].run_steps(*cuts[cut])
            for place, run in enumerate(runs):
                with streams.on(place):
                    results.append(run.results())
            streams.hand_over(_tensors(results))
        return results


def _tensors(value: Any) -> Iterator[Tensor]:
    """All tensors in nested lists and tuples."""
    if isinstance(value, Tensor):
        yield value
    elif value is not None:
        for item in value:
            yield from _tensors(item)

"""Run a call in spans of steps with states carried between them; backward in reverse order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from elman.engines.call import Call, Cotangents, Gradients, Result

if TYPE_CHECKING:
    from elman.engines.packed_rows import Packed


class Span(NamedTuple):
    """Some steps of a call.

    Attributes:
        rows: its part of the first axis of inputs and output.
        batch: sequences that have its first step.
        after: sequences among them that go on after its last step.
        packed: layout of its rows; None if all its sequences have all its steps.
        dense: (steps, sequences) of packed rows that are passed as [steps, sequences, ...].
    """

    rows: slice
    batch: int
    after: int
    packed: Packed | None = None
    dense: tuple[int, int] | None = None

    def part(self, value: Tensor) -> Tensor:
        """The part of an input, or of the output's cotangent."""
        part = value[self.rows]
        return part if self.dense is None else part.unflatten(0, self.dense)

    def flat(self, value: Tensor | None) -> Tensor | None:
        """The span's output, or gradient of an input, in the layout of the call."""
        return value if value is None or self.dense is None else value.flatten(0, 1)

    def call(self, call: Call, states: Sequence[Tensor]) -> Call:
        """The call of the span, from its initial states."""
        return Call(tuple(map(self.part, call.inputs)), tuple(states), call.weights, self.packed)


def same_sequences(packed: Packed) -> list[Span]:
    """Dense spans: runs of steps that the same sequences have."""
    after = (*(run[2] for run in packed.runs[1:]), 0)
    return [
        Span(rows, size, going, None, (steps, size))
        for (rows, steps, size), going in zip(packed.runs, after, strict=True)
    ]


class SpanAssembler:
    """Assembles a tensor from its spans: in place, or under autograd by one concatenation at the
    end (writing in place would copy the tensor once per span).

    Args:
        rows: number of rows of all spans.
        watched: whether autograd records; parts must then arrive in order.
    """

    def __init__(self, rows: int, watched: bool = False) -> None:
        self._rows, self._watched = rows, watched
        self._memory: Tensor | None = None
        self._missing: list[slice] = []
        self._pieces: list[Tensor] = []

    def put(self, rows: slice, part: Tensor | None) -> None:
        """Add a span; None for zeros."""
        if part is None:
            self._missing.append(rows)
            return
        if self._watched:
            self._pieces.append(part)
            return
        if self._memory is None:
            self._memory = part.new_empty((self._rows, *part.shape[1:]))
        self._memory[rows] = part

    @property
    def tensor(self) -> Tensor | None:
        """The assembled tensor; None if all spans were None."""
        if self._pieces:
            return torch.cat(self._pieces)
        if self._memory is not None:
            for rows in self._missing:
                self._memory[rows] = 0
        return self._memory


def forward_in(
    spans: Sequence[Span], call: Call, run: Callable[[Call], Result]
) -> tuple[Result, tuple[Tensor, ...]]:
    """Run spans one after another.

    Args:
        spans: all spans of the call, in order of time.
        call: the whole call.
        run: runs the call of one span.

    Returns:
        The result of the whole call, with the saved tensors of each span in order; and for each
        state one tensor of the rows that all spans began with.
    """
    states: Sequence[Tensor] = call.states
    places = _places(spans)
    output = SpanAssembler(spans[-1].rows.stop, torch.is_grad_enabled())
    ends: list[list[Tensor]] = [[] for _ in states]
    # one tensor for all spans: many small ones among large temporaries would fragment the heap
    starts = tuple([state.new_empty((places[-1][1], *state.shape[1:])) for state in states])
    saved: list[Tensor] = []
    for span, (first, end) in zip(spans, places, strict=True):
        states = [state[: span.batch] for state in states]
        for start, state in zip(starts, states, strict=True):
            start[first:end] = state.detach()
        result = run(span.call(call, states))
        output.put(span.rows, span.flat(result.output))
        if span.after < span.batch or span is spans[-1]:
            for pieces, state in zip(ends, result.last, strict=True):
                pieces.append(state[span.after :])
        saved += result.saved
        states = result.last
    assert output.tensor is not None, "an output is never None"
    # longest sequences come first, so those that end in later spans are the first rows
    last = tuple([torch.cat(pieces[::-1]) for pieces in ends])
    return Result(output.tensor, last, tuple(saved)), starts


def backward_in(
    spans: Sequence[Span],
    call: Call,
    starts: Sequence[Tensor],
    cotangents: Cotangents,
    run: Callable[[int, Call, Cotangents], Gradients],
) -> Gradients:
    """Gradients of the whole from those of its spans.

    Args:
        spans, call: see :func:`forward_in`.
        starts: for each state, the rows that all spans began with.
        cotangents: of the whole call.
        run: computes the gradients of one span from its index, call and cotangents.
    """
    d_inputs = [SpanAssembler(spans[-1].rows.stop) for _ in call.inputs]
    d_states: tuple[Tensor | None, ...] = (None,) * len(call.states)
    d_weights: tuple[Tensor | None, ...] = (None,) * len(call.weights)
    for index, (a, b) in reversed(list(enumerate(_places(spans)))):
        span, first = spans[index], [start[a:b] for start in starts]
        d_last = tuple(
            [
                _join(going, end, start, span.after)
                for going, end, start in zip(d_states, cotangents.last, first, strict=True)
            ]
        )
        d_output = None if cotangents.output is None else span.part(cotangents.output)
        d_span, d_states, d_span_weights = run(
            index, span.call(call, first), Cotangents(d_output, d_last)
        )
        for d_input, d in zip(d_inputs, d_span, strict=True):
            d_input.put(span.rows, span.flat(d))
        d_weights = tuple(map(added, d_weights, d_span_weights))
    return Gradients(tuple([d_input.tensor for d_input in d_inputs]), d_states, d_weights)


def _places(spans: Sequence[Span]) -> list[tuple[int, int]]:
    """Row ranges of the spans in the tensor of all spans' initial states."""
    return list(pairwise(accumulate([span.batch for span in spans], initial=0)))


def added(a: Tensor | None, b: Tensor | None) -> Tensor | None:
    """The sum of two gradients, None being zero."""
    return b if a is None else a if b is None else a + b


def _join(going: Tensor | None, last: Tensor | None, like: Tensor, after: int) -> Tensor | None:
    """The cotangent of a span's last states, of sequences that go on and of sequences that end.

    Args:
        going: cotangent of the sequences that go on [after, ...].
        last: cotangent of the last states of all sequences [B, ...].
        like: the states that the span began with.
        after: how many sequences go on.
    """
    if after == len(like):
        return going
    last = None if last is None else last[after : len(like)]
    if going is None and last is None:
        return None
    whole = torch.zeros_like(like)
    if going is not None:
        whole[:after] = going
    if last is not None:
        whole[after:] = last
    return whole

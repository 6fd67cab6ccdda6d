"""Arguments and results of kernels: a run over all steps, and its gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

from elman.engines.packed_rows import Packed


class Call(NamedTuple):
    """One run of a cell over all steps.

    Attributes:
        inputs: one per input of the cell: [T, B, n], or [T, B] for a scalar; any strides. Packed:
            [N, n] or [N].
        states: initial, one per state: [B, n] or [B]; all with a leading axis if ``stacked``.
        weights: one per weight, in the declared shape.
        packed: layout of sequences of several lengths; None if all have T steps.
        stacked: whether the states are those of a stack of layers, [layers, B, n]. Only kernels
            with a backward of their own take stacked states; of several layers only prepared ones.
    """

    inputs: tuple[Tensor, ...]
    states: tuple[Tensor, ...]
    weights: tuple[Tensor, ...]
    packed: Packed | None = None
    stacked: bool = False

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """All of them: inputs, states, weights."""
        return (*self.inputs, *self.states, *self.weights)

    @property
    def form(self) -> Form:
        """The call without its tensors."""
        return Form(len(self.inputs), len(self.states), self.packed, self.stacked)

    def with_tensors(self, tensors: Sequence[Tensor]) -> Call:
        """The same call with other tensors, in the order of :attr:`tensors`."""
        return self.form.call(tensors)

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Steps, samples, and rows of all steps together."""
        if self.packed is not None:
            return self.packed.steps, self.packed.batch, self.packed.rows
        steps, batch = self.inputs[0].shape[:2]
        return steps, batch, steps * batch


class Form(NamedTuple):
    """Signature of a call: numbers of inputs and states, and their layout."""

    inputs: int
    states: int
    packed: Packed | None = None
    stacked: bool = False

    def call(self, tensors: Sequence[Tensor]) -> Call:
        """The call of tensors in the order inputs, states, weights."""
        values, first, second = tuple(tensors), self.inputs, self.inputs + self.states
        return Call(
            values[:first], values[first:second], values[second:], self.packed, self.stacked
        )

    def gradients(self, grads: Sequence[Tensor | None]) -> Gradients:
        """Group gradients in the order of a call's tensors by inputs, states and weights."""
        values, first, second = tuple(grads), self.inputs, self.inputs + self.states
        return Gradients(values[:first], values[first:second], values[second:])


class Result(NamedTuple):
    """Results of a forward.

    Attributes:
        output: [T, B, n] or [T, B]; packed: [N, n] or [N].
        last: the states after the last step of each sequence, each as in ``Call.states``.
        saved: tensors that the backward needs besides the call; empty if no backward can follow.
    """

    output: Tensor
    last: tuple[Tensor, ...]
    saved: tuple[Tensor, ...] = ()

    @property
    def values(self) -> tuple[Tensor, ...]:
        """The output and the last states."""
        return (self.output, *self.last)


class Cotangents(NamedTuple):
    """Cotangents of a call's results; None for zero.

    Attributes:
        output: in the output's shape, any strides (0 included).
        last: one per state, as in ``Call.states``.
    """

    output: Tensor | None
    last: tuple[Tensor | None, ...]


class Gradients(NamedTuple):
    """Results of a backward: the requested gradients, None for the others, and the gradients of all
    initial states."""

    inputs: tuple[Tensor | None, ...]
    states: tuple[Tensor | None, ...]
    weights: tuple[Tensor | None, ...]

    @property
    def tensors(self) -> tuple[Tensor | None, ...]:
        """All of them, in the order of :attr:`Call.tensors`."""
        return (*self.inputs, *self.states, *self.weights)

"""Gradient checkpointing in time: the forward keeps the states at the beginning of each span of
steps and no tape; the backward recomputes the tape of each span, the last one first."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from elman.engines.base import Kernel, WrappedKernel
from elman.engines.call import Call, Cotangents, Gradients, Result
from elman.engines.packed_rows import packed_of
from elman.engines.spans import Span, backward_in, forward_in
from elman.engines.together import Together
from elman.engines.vjp import leaves_of, vjp


def spans_of(call: Call, most: int) -> list[Span]:
    """Split a call into spans of at most ``most`` steps."""
    steps, batch, _ = call.sizes
    cuts = [(first, min(first + most, steps)) for first in range(0, steps, most)]
    packed = call.packed
    if packed is None:
        return [Span(slice(a, b), batch, batch if b < steps else 0) for a, b in cuts]
    sizes = (*packed.sizes, 0)
    return [
        Span(slice(packed.offsets[a], packed.offsets[b]), sizes[a], sizes[b], packed_of(sizes[a:b]))
        for a, b in cuts
    ]


class Checkpointed(WrappedKernel):
    """Any kernel with gradient checkpointing: run in spans of steps, without keeping the tape.

    Args:
        kernel: runs each span; torch differentiates one that is plain torch code.
        steps: number of steps of a span.
        wants: which tensors of a call get gradients, for a kernel that autograd sees through.
    """

    def __init__(self, kernel: Kernel, steps: int, wants: Sequence[bool] = ()) -> None:
        super().__init__(kernel)
        self.steps, self._wants, self.packs = steps, wants, kernel.packs

    def forward(self, call: Call) -> Result:
        """See :meth:`Kernel.forward`. ``saved`` has the first states of all spans, one tensor per
        state."""
        unstacked = _unstacked(call)
        result, saved = forward_in(spans_of(unstacked, self.steps), unstacked, self._tapeless)
        if not call.stacked:
            return result._replace(saved=saved)
        # stacked, not viewed: a user may detach_() a state, and no view allows that
        return Result(result.output, tuple([torch.stack((end,)) for end in result.last]), saved)

    def _tapeless(self, call: Call) -> Result:
        with torch.no_grad():
            result = self.kernel.forward(call)
        self.kernel.discard(result.saved)
        return result._replace(saved=())

    def backward(
        self, call: Call, saved: Sequence[Tensor], cotangents: Cotangents, keep: bool
    ) -> Gradients:
        """See :meth:`Kernel.backward`; it never overwrites ``saved``."""
        unstacked = _unstacked(call)
        shapes = [state.shape for state in unstacked.states]
        d_last = tuple(
            None if d is None else d.reshape(shape)
            for d, shape in zip(cotangents.last, shapes, strict=True)
        )
        run = self._by_torch if self.kernel.differentiable else self._rerun
        d = cotangents._replace(last=d_last)
        gradients = backward_in(spans_of(unstacked, self.steps), unstacked, saved, d, run)
        if not call.stacked:
            return gradients
        return gradients._replace(
            states=tuple([None if d is None else d.unsqueeze(0) for d in gradients.states])
        )

    def _rerun(self, _: int, call: Call, cotangents: Cotangents) -> Gradients:
        """Gradients of a span by the kernel's backward, after running its forward again."""
        saved = self.kernel.forward(call).saved
        return self.kernel.backward(call, saved, cotangents, False)

    def _by_torch(self, _: int, call: Call, cotangents: Cotangents) -> Gradients:
        """Gradients of a span by autograd."""
        first, second = len(call.inputs), len(call.inputs) + len(call.states)
        all_states = (True,) * len(call.states)  # the span before needs them, wanted or not
        wants = (*self._wants[:first], *all_states, *self._wants[second:])
        return torch_gradients(self.kernel, call, wants, cotangents)


def torch_gradients(
    kernel: Kernel, call: Call, wants: Sequence[bool], cotangents: Cotangents
) -> Gradients:
    """Gradients of a call of a kernel that autograd sees through; its forward runs again."""
    leaves = leaves_of(call.tensors, wants)
    with torch.enable_grad():
        result = kernel.forward(call.with_tensors(leaves))
    d_output, d_last = cotangents
    return call.form.gradients(vjp(result.values, leaves, (d_output, *d_last), wants))


def all_checkpointed(kernel: Together, steps: int, training: Sequence[bool]) -> Kernel:
    """Several kernels in spans of steps: layers share spans, each direction has its own, since it
    starts at the other end.

    Args:
        kernel, steps: see :class:`Checkpointed`.
        training: which of its kernels have a backward.
    """
    if not kernel.arrangement.directions:
        return Checkpointed(kernel, steps)
    kernels = [
        Checkpointed(part, steps) if differentiable else part
        for part, differentiable in zip(kernel.kernels, training, strict=True)
    ]
    return Together(kernels, kernel.arrangement)


def _unstacked(call: Call) -> Call:
    """The call with states [B, ...]."""
    if not call.stacked:
        return call
    return call._replace(states=tuple([state.squeeze(0) for state in call.states]), stacked=False)

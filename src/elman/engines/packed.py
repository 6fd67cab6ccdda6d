"""Sequences of several lengths: packed rows, longest sequence first, as torch's PackedSequence."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from elman.engines.base import Kernel, WrappedKernel
from elman.engines.call import Call, Cotangents, Gradients, Result
from elman.engines.packed_rows import Packed
from elman.engines.spans import backward_in, forward_in, same_sequences


def reversed_in_time(value: Tensor, packed: Packed | None) -> Tensor:
    """A sequence [T, B, ...], or packed rows, backwards in time."""
    return value.flip(0) if packed is None else packed.reversed(value)


def for_layout(kernel: Kernel, packed: Packed | None) -> Kernel:
    """The kernel, wrapped in :class:`DenseRuns` for packed calls that it does not support."""
    return kernel if packed is None or kernel.packs else DenseRuns(kernel)


class DenseRuns(WrappedKernel):
    """Any kernel over packed rows: one dense call for each run of steps of the same sequences."""

    packs = True

    def __init__(self, kernel: Kernel) -> None:
        super().__init__(kernel)
        self.differentiable = kernel.differentiable

    def forward(self, call: Call) -> Result:
        """See :meth:`Kernel.forward`; the call is packed."""
        runs = same_sequences(_packed(call))
        result, starts = forward_in(runs, call, self.kernel.forward)
        if not result.saved:
            return result
        return result._replace(saved=(*starts, *result.saved))

    def backward(
        self, call: Call, saved: Sequence[Tensor], cotangents: Cotangents, keep: bool
    ) -> Gradients:
        runs, count = same_sequences(_packed(call)), len(call.states)
        of_runs = saved[count:]
        per_run = len(of_runs) // len(runs)

        def of_run(index: int, run_call: Call, d: Cotangents) -> Gradients:
            return self.kernel.backward(
                run_call, of_runs[per_run * index : per_run * (index + 1)], d, keep
            )

        return backward_in(runs, call, saved[:count], cotangents, of_run)


def _packed(call: Call) -> Packed:
    assert call.packed is not None, "for_layout wraps kernels for packed calls only"
    return call.packed

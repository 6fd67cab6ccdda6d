"""A program on Triton: batched phases on all rows, and the steps in one kernel or one by one."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from elman.engines.call import Call, Cotangents, Gradients, Result
from elman.engines.triton.run.call_buffers import BackwardCallBuffers, ForwardCallBuffers
from elman.engines.triton.run.kernel_parts import KernelParts
from elman.errors import EngineError


class TritonKernel(KernelParts):
    """All steps of one layer in one direction on a GPU, or in Triton's interpreter.

    Args:
        job, program, schedule: the job, its program and its schedule.
        heads: number of heads side by side, whose arguments and results are [heads, …]; 0: none.
    """

    def compute_forward(self, call: Call) -> Result:
        return ForwardCallBuffers(self, call).run()

    def compute_backward(
        self, call: Call, saved: Sequence[Tensor], cotangents: Cotangents, keep: bool
    ) -> Gradients:
        if self.back is None:
            raise EngineError("this kernel was compiled without a backward")
        return BackwardCallBuffers(self, call, saved, cotangents, keep).run()

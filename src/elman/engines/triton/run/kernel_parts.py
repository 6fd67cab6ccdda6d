"""The parts of a layer's kernel: layouts, loops, sums of gradients."""

from __future__ import annotations

from typing import Any

import torch
import triton.language as tl

from elman.engines.base import Job
from elman.engines.call import Call
from elman.engines.triton.device.call_graphs import CapturedKernel
from elman.engines.triton.device.schedule import TritonSchedule
from elman.engines.triton.loops.sweeping import Sweeping
from elman.engines.triton.loops.weight_gradients import WeightGradients
from elman.engines.triton.text.layout import TritonLayout
from elman.engines.weights import WeightRate
from elman.plan.build import output_is_state
from elman.plan.program import Program, Sweep

DTYPES = {
    "float32": (torch.float32, tl.float32),
    "bfloat16": (torch.bfloat16, tl.bfloat16),
    "float16": (torch.float16, tl.float16),
}


class KernelParts(CapturedKernel):
    """All steps of one layer in one direction on a GPU, or in Triton's interpreter.

    Args:
        job, program, schedule: the job, its program and its schedule.
        heads: number of heads side by side, whose arguments and results are [heads, …]; 0: none.
    """

    engine = "triton"

    def __init__(
        self, job: Job, program: Program, schedule: TritonSchedule, heads: int = 0
    ) -> None:
        super().__init__(schedule)
        self.job, self.program = job, program
        self.heads = (heads,) if heads else ()
        self.layout = layout = TritonLayout(program)
        self.dtype, self.element = DTYPES[job.spec.dtype]
        self.rate = WeightRate(job)
        # single steps hand values on in memory that a loop has in float32 registers
        self.slots = torch.float32 if schedule.kind == "steps" else self.dtype
        step = program.pair.step
        self.output_is_state = output_is_state(program.pair)
        training = job.spec.training
        late = bool(program.forward.after.segments)
        self.kept_states = tuple(
            (training or late or schedule.kind == "grid" or (not k and self.output_is_state))
            and k not in layout.held | layout.matrices
            for k in range(len(layout.state_widths))
        )
        self.scalar_output = not job.graph.output_shape
        self.ahead = Sweeping(layout, program.forward, schedule, self.kept_states, heads=heads > 0)
        self.back = None
        self.replays = program.backward is not None and program.backward.replay is not None
        if program.backward is not None:
            self.back = Sweeping(
                layout, program.backward, schedule, self.kept_states, heads=heads > 0
            )
            self.weight_gradients = WeightGradients(self.back, program.sums, self.dtype)
        self.declared = [leaf.name for leaf in job.graph.inputs]
        flows = zip(step.inputs, program.pair.d_inputs, strict=True)
        part = {leaf.name for leaf, d in flows if d is None}  # some gate block has no gradient
        self.filled = frozenset(self.declared) - part
        self._packed: tuple[Sweeping, Sweeping | None] | None = None

    def sweepings(self, packed: bool) -> tuple[Sweeping, Sweeping | None]:
        """Both directions, of dense calls or of packed ones, where each sample has its own number
        of steps."""
        if not packed:
            return self.ahead, self.back
        if self._packed is None:
            forward, backward = self.program.forward, self.program.backward
            back = None if backward is None else self._of_packed(backward)
            self._packed = self._of_packed(forward), back
        return self._packed

    def _of_packed(self, sweep: Sweep) -> Sweeping:
        heads = bool(self.heads)
        return Sweeping(self.layout, sweep, self.fixed, self.kept_states, packed=True, heads=heads)

    def describe(self) -> dict[str, Any]:
        """Engine and schedule."""
        return {"engine": self.engine, "schedule": self.fixed.name}

    @property
    def texts(self) -> list[str]:
        """The text of every kernel."""
        runners = [runner for sweep in self._sweeps for runner in sweep.runners]
        texts = [text for runner in runners for text in runner.texts]
        return [*texts, *(sweep.text for sweep in self._sweeps if sweep.loop is not None)]

    @property
    def _sweeps(self) -> list[Sweeping]:
        """Its directions."""
        return [sweep for sweep in (self.ahead, self.back) if sweep is not None]

    def sizes(self, call: Call) -> tuple[int, int, int]:
        """Steps, samples, and rows of all steps together."""
        if call.packed is not None:
            return call.packed.steps, call.packed.batch, call.packed.rows
        T, B = call.inputs[0].shape[len(self.heads) :][:2]
        return T, B, T * B

"""Engine triton: programs spelled as Triton kernels, for a GPU or for Triton's interpreter."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar
from weakref import WeakKeyDictionary

import numpy
import triton
from triton import knobs

from elman.engines.base import Engine, Job, Kernel
from elman.engines.cross_entropy import CrossEntropy
from elman.engines.triton import cross_entropy
from elman.engines.triton.all_steps import scans
from elman.engines.triton.all_steps.newton import newton
from elman.engines.triton.device import limits
from elman.engines.triton.device.schedule import TritonSchedule
from elman.engines.triton.device.source import defined
from elman.engines.triton.loops.matrix_schedules import fitting_schedules, matrix_schedules, refusal
from elman.engines.triton.occupancy import grids, loops, spills
from elman.engines.triton.run.heads import HeadsKernel
from elman.engines.triton.run.kernel import TritonKernel
from elman.engines.triton.run.kernel_parts import DTYPES
from elman.errors import EngineError
from elman.plan.build import program
from elman.plan.prices import Prices
from elman.plan.program import Program

PRICES = Prices()
# a step of one sample waits for each of its sums, so the plan moves as many as possible to the
# phases on all rows: 1 to 10 % fewer instructions a step
MATRIX_PRICES = Prices(save=0.1, late=1.0)


class TritonEngine(Engine):
    """Generated Triton on CUDA and ROCm devices."""

    name = "triton"
    dtypes: ClassVar[Mapping[str, tuple[str, ...]]] = {"cuda": tuple(DTYPES)}
    fuses = packs = True

    def __init__(self) -> None:
        self._programs: WeakKeyDictionary[Job, Program] = WeakKeyDictionary()

    def supports(self, job: Job) -> str | None:
        """A GPU (or the interpreter, with TRITON_INTERPRET=1); float32, bfloat16, float16."""
        lacking = self.lacks(job.spec.device, job.spec.dtype)
        if lacking is not None or not job.graph.has_matrices:
            return lacking
        of = self._program(job.single or job)
        if not of.pair.step.has_matrices:
            return None
        return refusal(of)

    def lacks(self, device: str, dtype: str) -> str | None:
        interpreted = device == "cpu" and knobs.runtime.interpret
        triton_version, numpy_version = triton.__version__, numpy.__version__
        if interpreted and _version(triton_version) < (3, 7) and _version(numpy_version) >= (2, 4):
            return (
                f"the interpreter of Triton {triton_version} does not know numpy {numpy_version}: "
                "pip install 'numpy<2.4', or a Triton from 3.7 on"
            )
        return super().lacks("cuda" if interpreted else device, dtype)

    def scans(self) -> Any:
        return scans

    def cross_entropy(self) -> CrossEntropy | None:
        return cross_entropy.losses_and_gradients

    def newton(self) -> Any:
        return newton

    def release(self) -> None:
        defined.cache_clear()

    def prune_reason(self, job: Job, steps: int, batch: int) -> str | None:
        """The interpreter is for tests."""
        return None if job.spec.device == "cuda" else "it is interpreted: not benchmarked"

    def schedules(self, job: Job, steps: int, batch: int) -> tuple[str, ...]:
        """Schedules that the model of shared memory does not rule out.

        All steps in one kernel if one program holds the weights; else units cut over as many
        programs as hold them, all resident at once; and step by step if neither fits, or for many
        samples. (On an H200 grids took 1.2 to 1.8 times as long as loops, and single steps 2.6
        times as long as grids.)
        """
        of = self._program(job.single or job)
        if of.pair.step.has_matrices:
            return tuple(each.name for each in fitting_schedules(of, steps * batch))
        persistent = loops(of, batch, job.heads)
        if not persistent or spills(of):  # a grid may beat a loop whose products spill
            persistent += grids(of, batch, job.heads)
        if not persistent or batch > limits.STEPPED_BATCH:
            persistent.append(TritonSchedule("steps"))
        return tuple(schedule.name for schedule in persistent)

    def compile(self, job: Job, schedule: str | None = None) -> Kernel:
        """Plan and spell; Triton compiles at the first call."""
        self.check(job)
        chosen = TritonSchedule.parse(schedule or self.schedules(job, 1, 1)[0])
        of = self._program(job.single or job)
        if of.pair.step.has_matrices and chosen not in matrix_schedules(of):
            offered = ", ".join(each.name for each in matrix_schedules(of))
            raise EngineError(f"{job.name} has no schedule {chosen.name}; there are {offered}")
        if job.single is not None:
            return HeadsKernel(job, self._program(job.single), chosen)
        return TritonKernel(job, self._program(job), chosen)

    def _program(self, job: Job) -> Program:
        planned = self._programs.get(job)
        if planned is None:
            prices = MATRIX_PRICES if job.pair.step.has_matrices else PRICES
            planned = self._programs[job] = program(job.pair, job.spec, prices)
        return planned


def _version(text: str) -> tuple[int, int]:
    """The first two numbers of a version."""
    major, minor, *_ = text.split(".")
    return int(major), int(minor)


ENGINE = TritonEngine()

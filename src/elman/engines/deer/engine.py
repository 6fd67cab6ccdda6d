"""Engines deer (parallel in time, both ways) and scan-backward (forward sequential)."""

from __future__ import annotations

from elman.engines import registry
from elman.engines.base import Engine, Job, Kernel
from elman.engines.deer.convergence import TOLERANCES
from elman.engines.deer.kernel import DeerKernel
from elman.engines.deer.problem import Formula
from elman.engines.deer.solvers import CHAIN, METHODS
from elman.errors import EngineError

_LARGEST = 64  # most rows of a Jacobian with which the engine is benchmarked
_UNITS = 4  # … if a compiled loop, which needs no Jacobians, runs the steps
_FEWEST = 32  # steps with which the engine is benchmarked
_WIDE = 8  # rows of a Jacobian from which "quasi" is benchmarked, too
_DTYPES = tuple(str(dtype).removeprefix("torch.") for dtype in TOLERANCES)


class Deer(Engine):
    """Newton's iteration on all steps at once; one scan where the cell is linear in its state.

    A schedule names the solvers in the order in which they are tried: ``quasi+newton``.
    """

    name = "deer"

    def supports(self, job: Job) -> str | None:
        """float32 and float64 on any device; states that are vectors."""
        if job.graph.has_matrices:
            return f"{job.name} has a matrix per sample, whose Jacobian has [K·V, K·V] elements"
        if job.graph.clips:
            return f"{job.name} clips gradients: its backward is not a linear recurrence"
        surrogates = [value for value in job.graph.walk() if value.op == "surrogate"]
        if any(arg.op == "round" for value in surrogates for arg in value.args[0].args):
            return f"{job.name} has integers: what an iteration comes near to may round elsewhere"
        return self.lacks(job.spec.device, job.spec.dtype)

    def lacks(self, device: str, dtype: str) -> str | None:
        if dtype not in _DTYPES:
            return f"it has no {dtype}; it has {' and '.join(_DTYPES)}"
        return None

    def prune_reason(self, job: Job, steps: int, batch: int) -> str | None:
        """Dense Jacobians cost at least n times a sequential step; few steps fill no device."""
        n = max((state_group.rows for state_group in Formula(job).state_groups), default=0)
        if n > _LARGEST:
            return f"its Jacobians are {n} x {n}: not benchmarked"
        if steps < _FEWEST:
            return f"{steps} steps are too few to run at once: not benchmarked"
        if n > _UNITS and _compiled(job):
            return f"its Jacobians are {n} x {n}, and engine c runs this: not benchmarked"
        return None

    def schedules(self, job: Job, steps: int, batch: int) -> tuple[str, ...]:
        """Newton's first; where no compiled loop runs the steps also ``quasi``, whose Jacobians
        take a backward step per state instead of one per unit."""
        formula = Formula(job)
        n = max((state_group.rows for state_group in formula.state_groups), default=0)
        if n < _WIDE or formula.unitwise is None or _compiled(job):
            return ("",)
        return ("", "+".join(("quasi", *CHAIN)))

    def compile(self, job: Job, schedule: str | None = None) -> Kernel:
        """Nothing is compiled but the scans."""
        self.check(job)
        return DeerKernel(job, self.name, self._solvers(schedule))

    def _solvers(self, schedule: str | None) -> tuple[str, ...]:
        names = tuple(schedule.split("+")) if schedule else CHAIN
        for name in names:
            if name not in METHODS:
                raise EngineError(f"no solver {name!r}; there are {', '.join(METHODS)}")
        return names


def _compiled(job: Job) -> bool:
    """Whether engine c runs a job."""
    return job.spec.device == "cpu" and registry.find("c").supports(job) is None


class ScanBackward(Deer):
    """Sequential steps forward, all at once backward: exact, without any iteration."""

    name = "scan-backward"

    def prune_reason(self, job: Job, steps: int, batch: int) -> str | None:
        """See :class:`Deer`; and a compiled loop, whose backward is compiled, too, is faster."""
        if _compiled(job):
            return "its forward is engine c's, whose own backward is compiled: not benchmarked"
        return super().prune_reason(job, steps, batch)

    def schedules(self, job: Job, steps: int, batch: int) -> tuple[str, ...]:
        """None: nothing is solved."""
        return ("",)

    def _solvers(self, schedule: str | None) -> tuple[str, ...]:
        if schedule:
            raise EngineError(f"engine {self.name} has no schedules, but {schedule!r} was named")
        return ()


ENGINE = Deer()
SCAN_BACKWARD = ScanBackward()

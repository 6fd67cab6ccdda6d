"""Engine c: programs spelled as C, the whole time loop in one native call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, ClassVar
from weakref import WeakKeyDictionary

from elman.engines.base import Arrangement, Engine, Job, Kernel
from elman.engines.c.compilation.build import find_compiler
from elman.engines.c.compilation.isa import lacks_pairs
from elman.engines.c.kernels import cross_entropy, scans
from elman.engines.c.process import memory
from elman.engines.c.process.threads import oversubscription, threads
from elman.engines.c.run.kernel import DTYPES, CKernel
from elman.engines.c.run.merged import MergedSteps
from elman.engines.c.run.prepared import prepare
from elman.engines.c.run.together import side_by_side
from elman.engines.call import Call
from elman.engines.cross_entropy import CrossEntropy
from elman.engines.together import Together
from elman.errors import EngineError
from elman.plan.build import program
from elman.plan.forecast import ranked
from elman.plan.prices import Prices
from elman.plan.program import Program
from elman.plan.schedule import USUAL_BLOCKS, Blocks, Schedule
from elman.plan.spec import OPTIMIZATIONS, USUAL, PlanOptions

PRICES = Prices()
_PRUNE_RATIO = 1.6  # of the forecasts at once and one after another: above it not benchmarked
MOST_OPERATIONS = 20_000  # of a formula: more take minutes to plan; 8000 already exceed MOST_TEXT
_MOST_MERGED = 1500  # operations of merged steps: kernels of more take too long to compile
# samples of a call, bytes of weights beyond a third cache: only such calls are limited by reading
# weights, and bfloat16 halves that
FEW_SAMPLES, LARGE_WEIGHTS = 2, 16 << 20


class CEngine(Engine):
    """Generated C on the CPU."""

    name = "c"
    fuses = packs = True
    leaves_out = frozenset(OPTIMIZATIONS)
    dtypes: ClassVar[Mapping[str, tuple[str, ...]]] = {"cpu": tuple(DTYPES)}

    def __init__(self) -> None:
        self._programs: WeakKeyDictionary[Job, Program] = WeakKeyDictionary()
        self._kernels: WeakKeyDictionary[Job, dict[Blocks, CKernel]] = WeakKeyDictionary()

    def supports(self, job: Job) -> str | None:
        """A CPU, float32 or float64, and a C compiler."""
        lacking = self.lacks(job.spec.device, job.spec.dtype)
        if lacking is not None:
            return lacking
        compiler = find_compiler()
        return compiler if isinstance(compiler, str) else None

    def lacks_bf16(self, options: PlanOptions = USUAL) -> str | None:
        """None unless tiles are left out; a processor without an instruction for pairs multiplies
        them in float32."""
        plain = options.without & {"simd", "tiling"}
        return f"without {min(plain)} there are none" if plain else None

    def slow_bf16(self, samples: int, weights: int) -> str | None:
        """Without an instruction for pairs products take 1.3 to 1.5 times as long, so only calls
        gain that are limited by reading large weights."""
        reason = lacks_pairs()
        if reason is None or (0 < samples <= FEW_SAMPLES and weights >= LARGE_WEIGHTS):
            return None
        sizes = f"{FEW_SAMPLES} samples and matrices of {LARGE_WEIGHTS >> 20} MiB"
        return f"{reason}; it gains from them with up to {sizes} or more"

    def scans(self) -> Any:
        return scans

    def cross_entropy(self) -> CrossEntropy | None:
        return cross_entropy.losses_and_gradients

    def undisturbed(self) -> AbstractContextManager[None]:
        """Use all workers, also under oversubscription."""
        return oversubscription.ignored()

    def release(self) -> None:
        memory.release()

    def schedules(self, job: Job, steps: int, batch: int) -> tuple[str, ...]:
        """Schedules that the forecast does not rule out. It assumes an idle machine, because the
        choice outlives today's load."""
        plain = ranked(self._program(job), batch, _threads(job))
        several = job.several
        is_long = several is not None and several.spec.steps <= steps
        best: list[Schedule] = []
        if several is not None and is_long and self._merges(several):
            best = [Schedule(plain[0], steps=several.spec.steps)]
        return tuple(schedule.name for schedule in (*best, *plain))

    def together(
        self,
        jobs: Sequence[Job],
        kernels: Sequence[Kernel],
        steps: int,
        batch: int,
        arrangement: Arrangement,
    ) -> tuple[Kernel, float] | None:
        """Layers staggered in time, or directions side by side, on teams of threads."""
        free = min(map(_threads, jobs), default=1)
        if free == 1 or len(jobs) == 1 or any(self.supports(job) for job in jobs):
            return None
        c_kernels = [self._kernel(job) for job in jobs]
        kernel, share = side_by_side(c_kernels, arrangement, batch, free)
        return (kernel, share) if share <= _PRUNE_RATIO else None

    def prepare(self, kernel: Kernel, call: Call) -> Kernel:
        """A kernel with argument blocks that lack only addresses."""
        members = kernel.kernels if type(kernel) is Together else (kernel,)
        c_kernels = [member for member in members if isinstance(member, CKernel)]
        return prepare(kernel, c_kernels, call) if len(c_kernels) == len(members) else kernel

    def compile(self, job: Job, schedule: str | None = None) -> Kernel:
        """Plan, spell, compile (or find in the cache), load; schedules of a job that have the same
        blocks share one library."""
        self.check(job)
        chosen = Schedule.parse(schedule) if schedule else Schedule()
        kernel = self._kernel(job, chosen.blocks).scheduled(chosen.division)
        if chosen.steps == 1:
            return kernel
        several = job.several
        if several is None or several.spec.steps != chosen.steps or not self._merges(several):
            raise EngineError(f"steps of {job.name} cannot be merged: schedule {schedule!r}")
        grouped = self._kernel(several, chosen.blocks).scheduled(chosen.division)
        return MergedSteps(kernel, grouped, chosen.steps)

    def timed(self, job: Job, schedule: str = "") -> Kernel:
        chosen = Schedule.parse(schedule) if schedule else Schedule()
        kernel = CKernel(job, self._program(job), chosen.blocks, timed=True)
        return kernel.scheduled(chosen.division)

    def _merges(self, several: Job) -> bool:
        """Whether a kernel of merged steps is short enough, and its sums can read their operands.
        Rows of the output's cotangent lie step by step, so those of several groups have no common
        distance, and no sum can read them, such as that for W of ``S @ q + W @ x``."""
        if len([*several.graph.walk()]) > _MOST_MERGED:
            return False
        planned = self._program(several)
        operands = [v for term in planned.sums for v in (term.left, term.right) if v is not None]
        sweep = planned.backward
        return sweep is None or all(sweep.summed(v).where != "d_output" for v in operands)

    def _kernel(self, job: Job, blocks: Blocks = USUAL_BLOCKS) -> CKernel:
        kernels = self._kernels.setdefault(job, {})
        if blocks not in kernels:
            kernels[blocks] = CKernel(job, self._program(job), blocks)
        return kernels[blocks]

    def _program(self, job: Job) -> Program:
        planned = self._programs.get(job)
        if planned is None:
            count = sum(1 for _ in job.pair.step.walk())
            if count > MOST_OPERATIONS:
                size = f"{count} operations and blocks of weights, which planning takes minutes for"
                raise EngineError(f"{job.name} has {size}: it has thousands of operations")
            planned = self._programs[job] = program(job.pair, job.spec, PRICES)
        return planned


def _threads(job: Job) -> int:
    """Number of threads that share a call of a job on a quiet machine."""
    return 1 if "threads" in job.spec.options.without else threads()


ENGINE = CEngine()

"""Base classes of engines and kernels."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from elman.engines.call import Call
from elman.errors import EngineError, VerifyError
from elman.ir.graph import Graph
from elman.ir.pair import Pair
from elman.plan.spec import USUAL, PlanOptions, Spec

if TYPE_CHECKING:
    from torch import Tensor

    from elman.engines.call import Cotangents, Gradients, Result
    from elman.engines.cross_entropy import CrossEntropy
    from elman.engines.time_shards import TimeShards

WAITING = "waiting for other threads"  # among the phases of a call


@dataclass(frozen=True, eq=False)
class Job:
    """Specification of a kernel to compile.

    Attributes:
        name: the cell's name.
        graph: the step as written, which ``reference`` runs.
        pair: the canonical step and its backward step, which all other engines run.
        spec: sizes, dtype, device, wanted gradients.
        heads: number of copies of ``single`` side by side; 1 without heads.
        single: the job of one head, with its own sizes.
        several: the job of several steps merged into one; None if they cannot be merged.
    """

    name: str
    graph: Graph
    pair: Pair
    spec: Spec
    heads: int = 1
    single: Job | None = None
    several: Job | None = None


class Kernel(ABC):
    """Forward and backward over all time steps of one layer in one direction.

    Attributes:
        engine: the name of the engine that made it.
        differentiable: whether it is plain torch code: autograd and every transform see through
            ``forward``, nothing is saved, and ``backward`` is never called.
        packs: whether it runs packed rows directly, without a dense call for each run of steps.
    """

    engine: str
    differentiable: bool = False
    packs: bool = False

    @abstractmethod
    def forward(self, call: Call) -> Result:
        """Run all steps.

        Args:
            call: packed only if the kernel ``packs``; with stacked states [1, B, n] only if it is
                not ``differentiable``.
        """

    @abstractmethod
    def backward(
        self, call: Call, saved: Sequence[Tensor], cotangents: Cotangents, keep: bool
    ) -> Gradients:
        """Gradients of the wanted inputs and weights, and of all initial states.

        Args:
            call: as given to ``forward``.
            saved: the tensors that ``forward`` saved; may be overwritten unless ``keep``.
            cotangents: of the output and the last states.
            keep: whether ``saved`` must survive (a second backward may follow).
        """

    def over_time(self, shards: TimeShards) -> Kernel:
        """This kernel for sequences whose time axis is sharded over processes, each of which calls
        it with its own steps.

        Raises:
            EngineError: it does not support time shards.
        """
        raise EngineError(
            f"engine {self.engine} does not run time-sharded sequences",
            "engine deer, or scan-backward",
        )

    def discard(self, saved: Sequence[Tensor]) -> None:
        """Reclaim the memory of saved tensors that no backward will read."""
        return None

    def fingerprint(self) -> str | None:
        """A hash of the program that runs, the same in every process; None if there is none."""
        return None

    def tape_bytes(self, T: int, B: int) -> int | None:
        """States and tape that the forward keeps for the backward (bytes); None if not known."""
        return None

    def workspace_bytes(self, T: int, B: int) -> int:
        """Temporary memory of a call, freed or reused after it (bytes); 0 if unknown."""
        return 0

    def stressed(self) -> tuple[Kernel, ...]:
        """Variants of this kernel for verification, with the shortest chunks on all workers, which
        small sizes would not exercise otherwise."""
        return ()

    def describe(self) -> dict[str, Any]:
        """Facts for records and ``explain``: engine, plan digest, schedule; JSON-able."""
        return {"engine": self.engine}

    def phases(self) -> Mapping[str, float]:
        """Seconds of each phase since the last call of this method, summed over threads; one phase
        is :data:`WAITING`. Empty unless :meth:`Engine.timed` made the kernel."""
        return {}

    def counters(self) -> dict[str, int]:
        """Counts of events in this kernel's calls so far, by name: ``fallbacks`` …"""
        return {}


class WrappedKernel(Kernel):
    """A kernel that runs another one, and reports its facts and counts."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel, self.engine = kernel, kernel.engine

    def describe(self) -> dict[str, Any]:
        return self.kernel.describe()

    def counters(self) -> dict[str, int]:
        return self.kernel.counters()


class DifferentiableKernel(Kernel):
    """A kernel of plain torch code, which autograd and every transform see through."""

    differentiable = True

    def backward(
        self, call: Call, saved: Sequence[Tensor], cotangents: Cotangents, keep: bool
    ) -> Gradients:
        """Never called: torch differentiates ``forward``."""
        raise VerifyError(f"engine {self.engine} is differentiated by torch, not by a backward")


class Arrangement(NamedTuple):
    """How kernels are combined, and which arguments of the combined call belong to which kernel.

    Layers: each further one reads the output of the one below as its first input. Directions: the
    second runs over the reversed sequence, and outputs are joined. All kernels read the further
    inputs, except the last ``private`` ones of each kernel: those follow kernel by kernel, in that
    kernel's direction of time, as states and weights do.

    Attributes:
        states, weights: numbers of states and weights of each kernel.
        directions: whether they are the two directions of a layer, not layers.
        private: inputs that each kernel has for itself.
    """

    states: tuple[int, ...]
    weights: tuple[int, ...]
    directions: bool
    private: int = 0

    @staticmethod
    def of(jobs: Sequence[Job], directions: bool, private: int = 0) -> Arrangement:
        """The arrangement of some jobs."""
        graphs = [job.graph for job in jobs]
        states, weights = ([len(g.states) for g in graphs], [len(g.weights) for g in graphs])
        return Arrangement(tuple(states), tuple(weights), directions, private)

    def joined(self, calls: Sequence[Call]) -> Call:
        """The combined call of the calls of all kernels; calls of layers above the first lack their
        first input."""
        inputs = calls[0].inputs
        if self.private:
            common = len(inputs) - self.private
            by_kernel = [x for call in calls for x in call.inputs[common:]]
            inputs = (*inputs[:common], *by_kernel)
        return Call(
            inputs,
            tuple([state for call in calls for state in call.states]),
            tuple([weight for call in calls for weight in call.weights]),
            calls[0].packed,
        )

    def shared(self, call: Call) -> tuple[Tensor, ...]:
        """The inputs that all kernels read."""
        count = self.private * len(self.states)
        return call.inputs[: len(call.inputs) - count] if count else call.inputs

    def split(self, call: Call, first: tuple[Tensor, ...], index: int) -> Call:
        """The call of one kernel, with ``first`` in place of the shared inputs."""
        inputs = first
        if self.private:
            at = len(call.inputs) - self.private * (len(self.states) - index)
            inputs = (*first, *call.inputs[at : at + self.private])
        states = call.states[cuts_of(self.states)[index]]
        return Call(inputs, states, call.weights[cuts_of(self.weights)[index]], call.packed)


@lru_cache(maxsize=256)
def cuts_of(counts: tuple[int, ...]) -> tuple[slice, ...]:
    """Slices of consecutive values, one slice per kernel."""
    return tuple(slice(a, b) for a, b in pairwise(accumulate(counts, initial=0)))


class Engine(ABC):
    """A target. One instance per process, found by name in ``engines/registry``."""

    name: str
    fuses: bool = False  # whether it compiles any step, derived ones (tangents) included
    packs: bool = False  # whether its kernels run packed rows directly
    leaves_out: frozenset[str] = frozenset()  # the plan.spec.OPTIMIZATIONS that can be left out
    # device type -> dtypes; an engine that runs all of them overrides `lacks`
    dtypes: ClassVar[Mapping[str, tuple[str, ...]]] = {}

    @abstractmethod
    def supports(self, job: Job) -> str | None:
        """None if this engine can run the job, else the reason why not."""

    def check(self, job: Job) -> None:
        """Raise EngineError with the reason of :meth:`supports` if this engine cannot run a job."""
        reason = self.supports(job)
        if reason is not None:
            raise EngineError(f"engine {self.name!r} cannot run {job.name}: {reason}")

    def lacks(self, device: str, dtype: str) -> str | None:
        """Why this engine does not support a dtype on a device, or None if it does."""
        if device not in self.dtypes:
            return f"device {device}: it runs on {' and '.join(self.dtypes)} alone"
        if dtype not in self.dtypes[device]:
            return f"dtype {dtype} on {device}: it has {', '.join(self.dtypes[device])} alone"
        return None

    def lacks_bf16(self, options: PlanOptions = USUAL) -> str | None:
        """Why this engine has no products of bfloat16 in float32 steps, or None if it has.

        Args:
            options: of a job.
        """
        return "its products do not round their operands"

    def slow_bf16(self, samples: int, weights: int) -> str | None:
        """Why products of bfloat16 would be no faster than those of float32 here, or None if they
        would.

        Args:
            samples: of a call; 0: any number.
            weights: bytes of a layer's matrices in float32.
        """
        return None

    def scans(self) -> Any:
        """This engine's kernels for linear recurrences: a module with the functions ``forward`` and
        ``backward`` of ``elman.engines.c.kernels.scans``; None if it has none."""
        return None

    def newton(self) -> Any:
        """This engine's constructor of kernels for Newton's iteration, see
        ``elman.engines.triton.all_steps.newton``; None if it has none."""
        return None

    def cross_entropy(self) -> CrossEntropy | None:
        """This engine's kernel for a decoder and its loss, or None."""
        return None

    @abstractmethod
    def compile(self, job: Job, schedule: str | None = None) -> Kernel:
        """Compile a job.

        Args:
            job: the job.
            schedule: the name of a schedule; None: the best forecast at each call.

        Raises:
            EngineError: ``supports`` refuses the job; with its reason.
        """

    def timed(self, job: Job, schedule: str = "") -> Kernel | None:
        """A kernel like that of :meth:`compile` that measures its phases; None if there is none."""
        return None

    def prune_reason(self, job: Job, steps: int, batch: int) -> str | None:
        """Why ``auto`` should not benchmark this engine for a job that it supports, or None."""
        return None

    def undisturbed(self) -> AbstractContextManager[None]:
        """A context in which kernels use all threads, for benchmarks on a busy machine too."""
        return nullcontext()

    def release(self) -> None:
        """Free cached memory and programs that are not in use."""
        return None

    def together(
        self,
        jobs: Sequence[Job],
        kernels: Sequence[Kernel],
        steps: int,
        batch: int,
        arrangement: Arrangement,
    ) -> tuple[Kernel, float] | None:
        """A kernel that runs several jobs concurrently, where that may be faster than sequentially.

        Args:
            jobs: the layers of a stack, lowest first; or both directions of one layer.
            kernels: the kernel of each job by itself.
            steps: T.
            batch: B.
            arrangement: of the jobs.

        Returns:
            A kernel like :class:`elman.engines.together.Together`, and its forecast time as a
            share of that of the jobs run sequentially; None if there is no such kernel.
        """
        return None

    def prepare(self, kernel: Kernel, call: Call) -> Kernel:
        """Make a kernel for further calls of the same kind, in which only addresses change.

        Args:
            kernel: of this engine, or layers of its kernels as one
                (:class:`elman.engines.together.Together`).
            call: a call of the kind, with stacked states [kernels, B, n]; all tensors but the input
                are contiguous. Further calls have tensors of the same sizes, strides, dtypes and
                devices.

        Returns:
            A prepared kernel, which takes stacked states; ``kernel`` if there is none.
        """
        return kernel

    def schedules(self, job: Job, steps: int, batch: int) -> tuple[str, ...]:
        """Names of the schedules worth measuring for a job at these T and B, best guess first."""
        return ("",)

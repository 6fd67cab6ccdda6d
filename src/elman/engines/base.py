"""What an engine is: ``supports`` says why not, ``compile`` makes a kernel."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from elman.errors import VerifyError
from elman.ir.graph import Graph
from elman.ir.pair import Pair
from elman.plan.spec import Spec

if TYPE_CHECKING:
    from torch import Tensor

    from elman.engines.call import Call, Cotangents, DirectCall, Gradients, Result
    from elman.engines.cross_entropy import CrossEntropy
    from elman.engines.together import Arrangement

WAITING = "waiting for other threads"  # among the phases of a call


@dataclass(frozen=True, eq=False)
class Job:
    """What is to be compiled.

    Attributes:
        name: the cell's name.
        graph: the step as written (what ``reference`` runs).
        pair: the canonical step and its backward step (what everything else runs).
        spec: sizes, dtype, device, wanted gradients.
        heads: how many copies of ``single`` it is, side by side; 1 if it is none.
        single: the job of one head, with sizes of its own part.
    """

    name: str
    graph: Graph
    pair: Pair
    spec: Spec
    heads: int = 1
    single: Job | None = None


class Kernel(ABC):
    """Forward and backward over all time steps of one layer in one direction.

    Attributes:
        engine: the name of who made it.
        differentiable: whether it is plain torch code: autograd and every transform see through
            ``forward``, nothing is saved, and ``backward`` is never called.
        packs: whether it runs packed rows as they lie.
    """

    engine: str
    differentiable: bool = False
    packs: bool = False

    @abstractmethod
    def forward(self, call: Call) -> Result:
        """Run all steps. Packed rows only where ``packs``; stacked states only where not
        ``differentiable``."""

    @abstractmethod
    def backward(
        self, call: Call, saved: Sequence[Tensor], cotangents: Cotangents, keep: bool
    ) -> Gradients:
        """Gradients of the wanted inputs and weights, and of all initial states.

        Args:
            call: as given to ``forward``.
            saved: what ``forward`` saved; destroyed unless ``keep``.
            cotangents: of the output and the last states.
            keep: whether ``saved`` must survive (a second backward may follow).
        """

    def fingerprint(self) -> str | None:
        """The content of what runs: equal for equal programs, in every process; None if it has no
        such name."""
        return None

    def tape_bytes(self, T: int, B: int) -> int | None:
        """What the forward keeps for the backward, states and tape (bytes); None where it is not
        known."""
        return None

    def workspace_bytes(self, T: int, B: int) -> int:
        """What a call works in, and ends with it or is kept for the next one (bytes), as far as it
        is known."""
        return 0

    def stressed(self) -> tuple[Kernel, ...]:
        """This program as small sizes alone do not run it: cut into the shortest pieces, shared by
        all workers. Compared with the oracle beside the kernel itself."""
        return ()

    def describe(self) -> dict[str, Any]:
        """Facts for records and ``explain``: engine, plan digest, schedule; JSON-able."""
        return {"engine": self.engine}

    def phases(self) -> Mapping[str, float]:
        """How long each phase of the calls since the last question took, all threads together (s);
        nothing unless :meth:`Engine.timed` made it. One of them is :data:`WAITING`."""
        return {}

    def counters(self) -> dict[str, int]:
        """What happened in this kernel's calls so far, by name: ``fallbacks`` …"""
        return {}


class DifferentiableKernel(Kernel):
    """A kernel of plain torch code, which autograd and every transform see through."""

    differentiable = True

    def backward(
        self, call: Call, saved: Sequence[Tensor], cotangents: Cotangents, keep: bool
    ) -> Gradients:
        """Never called: torch differentiates ``forward``."""
        raise VerifyError(f"engine {self.engine} is differentiated by torch, not by a backward")


class Engine(ABC):
    """A target. One instance per process, found by name in ``engines/registry``."""

    name: str
    fuses: bool = False  # whether it compiles any step, also such as are derived from a cell's
    packs: bool = False  # whether its kernels run packed rows as they lie
    leaves_out: frozenset[str] = frozenset()  # of plan.spec.OPTIMIZATIONS, what it can do without
    # device type -> what it computes in; whoever computes in everything has its own `lacks`
    dtypes: ClassVar[Mapping[str, tuple[str, ...]]] = {}

    @abstractmethod
    def supports(self, job: Job) -> str | None:
        """None if this engine can run the job, else the reason why not."""

    def lacks(self, device: str, dtype: str) -> str | None:
        """Why this engine computes nothing of a type on a device, or None."""
        if device not in self.dtypes:
            return f"device {device}: it runs on {' and '.join(self.dtypes)} alone"
        if dtype not in self.dtypes[device]:
            return f"dtype {dtype} on {device}: it has {', '.join(self.dtypes[device])} alone"
        return None

    def scans(self) -> Any:
        """A module of linear recurrences of this engine's own, with ``forward`` and ``backward`` as
        of ``elman.engines.c.scans``; or None."""
        return None

    def newton(self) -> Any:
        """What makes kernels of Newton's iteration, as of ``elman.engines.triton.newton``; or
        None."""
        return None

    def cross_entropy(self) -> CrossEntropy | None:
        """What computes a decoder and its loss in one kernel of this engine's own, or None."""
        return None

    @abstractmethod
    def compile(self, job: Job, schedule: str | None = None) -> Kernel:
        """Make a kernel; ``schedule`` names one of its schedules (None: the best
        guess at every call).

        Raises:
            EngineError: with the reason of ``supports``.
        """

    def timed(self, job: Job, schedule: str = "") -> Kernel | None:
        """A kernel as of :meth:`compile` that says how long its phases take; None if there is no
        such."""
        return None

    def prune_reason(self, job: Job, steps: int, batch: int) -> str | None:
        """Why ``auto`` need not even benchmark this engine for a job that it can run, or None."""
        return None

    def undisturbed(self) -> AbstractContextManager[None]:
        """Inside, kernels run as on a quiet machine, so that they can be benchmarked."""
        return nullcontext()

    def together(
        self,
        jobs: Sequence[Job],
        kernels: Sequence[Kernel],
        steps: int,
        batch: int,
        arrangement: Arrangement,
    ) -> tuple[Kernel, float] | None:
        """A kernel that runs several jobs at once, if that may be faster than one after another.

        Args:
            jobs: the layers of a stack, lowest first; or both directions of one layer.
            kernels: what each would run on by itself.
            steps: T.
            batch: B.
            arrangement: of the jobs.

        Returns:
            A kernel as of :class:`elman.engines.together.Together`, and its forecast time as a
            share of that of all jobs one after another; or None.
        """
        return None

    def direct(self, kernels: Sequence[Kernel], call: Call) -> DirectCall | None:
        """A faster way for further calls of a kind without a backward, or None.

        Args:
            kernels: of this engine; each reads the output of the one before.
            call: of all of them: states [kernels, B, n], all weights. Further ones have tensors of
                the same sizes, strides, types and devices.
        """
        return None

    def schedules(self, job: Job, steps: int, batch: int) -> tuple[str, ...]:
        """Names of the schedules worth measuring for a job at these T and B, best guess first."""
        return ("",)

"""What an engine is: ``supports`` says why not, ``compile`` makes a kernel."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from elman.ir.graph import Graph
from elman.ir.pair import Pair
from elman.plan.spec import Spec

if TYPE_CHECKING:
    from torch import Tensor

    from elman.engines.ragged import Ragged


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

    ``differentiable`` kernels are plain torch code: autograd and every transform see through
    ``forward``, ``saved`` is empty, and ``backward`` is never called.
    """

    engine: str
    differentiable: bool = False

    @abstractmethod
    def forward(
        self, inputs: Sequence[Tensor], states: Sequence[Tensor], weights: Sequence[Tensor]
    ) -> tuple[Tensor, tuple[Tensor, ...], tuple[Tensor, ...]]:
        """Run all steps.

        Args:
            inputs: one per input of the cell: [T, B, n], or [T, B] for a scalar; any strides.
            states: one per state: [B, n] or [B]. A kernel with its own backward takes [1, B, n] and
                [1, B] as well; last states and gradients of states have the shapes of the states.
            weights: one per weight, in the declared shape.

        Returns:
            output [T, B, n] (or [T, B]); the last states, each as in ``states``; tensors that
            ``backward`` needs beside the arguments (none if the spec is not for training).
        """

    @abstractmethod
    def backward(
        self,
        inputs: Sequence[Tensor],
        states: Sequence[Tensor],
        weights: Sequence[Tensor],
        saved: Sequence[Tensor],
        d_output: Tensor | None,
        d_last: Sequence[Tensor | None],
        keep: bool,
    ) -> tuple[tuple[Tensor | None, ...], tuple[Tensor | None, ...], tuple[Tensor | None, ...]]:
        """Gradients of the wanted inputs and weights, and of all initial states.

        Args:
            inputs, states, weights: as given to ``forward``.
            saved: what ``forward`` returned last; destroyed unless ``keep``.
            d_output: cotangent of the output, any strides (0 included), or None for zero.
            d_last: cotangent of each last state, or None for zero.
            keep: whether ``saved`` must survive (a second backward may follow).

        Returns:
            gradients of inputs, states and weights; None where not wanted.
        """

    def over(self, ragged: Ragged) -> Kernel | None:
        """This kernel for packed rows (``ragged.over``), or None: one call for each stretch of
        steps that the same sequences have."""
        return None

    def fingerprint(self) -> str | None:
        """The content of what runs: equal for equal programs, in every process; None if it has no
        such name."""
        return None

    def stressed(self) -> tuple[Kernel, ...]:
        """This program as small sizes alone do not run it: cut into the shortest pieces, shared by
        all workers. Compared with the oracle beside the kernel itself."""
        return ()

    def describe(self) -> dict[str, Any]:
        """Facts for records and ``explain``: engine, plan digest, schedule; JSON-able."""
        return {"engine": self.engine}

    def counters(self) -> dict[str, int]:
        """What happened in this kernel's calls so far, by name: ``fallbacks`` …"""
        return {}


class Engine(ABC):
    """A target. One instance per process, found by name in ``engines/registry``."""

    name: str
    derives: bool = False  # whether it runs any step, also such as are derived from a cell's
    packs: bool = False  # whether its kernels run packed rows without a call per stretch of steps

    @abstractmethod
    def supports(self, job: Job) -> str | None:
        """None if this engine can run the job, else the reason why not."""

    @abstractmethod
    def compile(self, job: Job, schedule: str | None = None) -> Kernel:
        """Make a kernel; ``schedule`` names one of its schedules (None: the best
        guess at every call).

        Raises:
            EngineError: with the reason of ``supports``.
        """

    def hopeless(self, job: Job, steps: int, batch: int) -> str | None:
        """Why ``auto`` need not even measure this engine for a job that it can run, or None."""
        return None

    def undisturbed(self) -> AbstractContextManager[None]:
        """Inside, kernels run as on a quiet machine, so that they can be measured."""
        return nullcontext()

    def together(
        self,
        jobs: Sequence[Job],
        kernels: Sequence[Kernel],
        steps: int,
        batch: int,
        beside: bool,
    ) -> tuple[Kernel, float] | None:
        """A kernel that runs several jobs at once, if that may be faster than one after another.

        Args:
            jobs: the layers of a stack, lowest first; or both directions of one layer.
            kernels: what each would run on by itself.
            steps: T.
            batch: B.
            beside: whether they are directions.

        Returns:
            A kernel as of :class:`elman.engines.together.Together`, and its forecast time as a
            share of that of all jobs one after another; or None.
        """
        return None

    def schedules(self, job: Job, steps: int, batch: int) -> tuple[str, ...]:
        """Names of the schedules worth measuring for a job at these T and B, best guess first."""
        return ("",)

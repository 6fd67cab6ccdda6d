"""State that a module derives from its cell, sizes and options."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from torch import Tensor

from elman.nn.call.cache import CallCache
from elman.nn.call.heads import Heads
from elman.nn.call.weights import Grid
from elman.nn.execute.layer import Runner
from elman.nn.execute.stack import Stack
from elman.nn.layout.signature import Signature
from elman.plan.spec import USUAL, PlanOptions

RUNTIME = "_runtime"  # name of the module's attribute


class Runtime(NamedTuple):
    """State derived from a module's cell, sizes and options; no copy and no pickle has it.

    Attributes:
        runners: one per layer and direction, by the suffix of its weights' names: ``l0``,
            ``l0_reverse`` …
        stack: all runners.
        stack_key: name of the stack for torch's compiler.
        names: parameter names of each runner.
        signature: arguments of the module.
        cuts: slice of each runner's weights in the list of all.
        plans: plans of earlier calls.
        recurrent: for each weight of each runner, whether it is a matrix that multiplies a
            state-dependent value.
        draws: how often cells draw random numbers: per ``step``, per ``sequence``.
        has_initial: whether default initial states are learned or declared (``init=``), not zeros.
        options: of all layers, when this was made.
        heads: which axes of the caller's tensors are samples or matrices inside; None of cells
            without a matrix per sample.
        grids: how each weight of each runner is rounded; None: none is.
    """

    runners: dict[str, Runner]
    stack: Stack
    stack_key: str
    names: list[list[str]]
    signature: Signature
    cuts: list[slice]
    plans: CallCache
    recurrent: list[list[bool]]
    draws: tuple[str, ...] = ()
    has_initial: bool = False
    options: PlanOptions = USUAL
    heads: Heads | None = None
    grids: list[list[Grid | None]] | None = None

    @property
    def head_axis(self) -> tuple[int, ...]:
        """Size of the axis of heads that are samples, if there are several."""
        return () if self.heads is None else self.heads.sizes

    @property
    def input_sizes(self) -> list[tuple[int, ...]]:
        """Size of each input of one sample, as a caller gives it; with an axis of heads."""
        return self._outer_sizes("inputs")

    @property
    def static_sizes(self) -> list[tuple[int, ...]]:
        """Size of each static input of one sample."""
        return self._outer_sizes("static")

    @property
    def state_sizes(self) -> list[tuple[int, ...]]:
        """Size of each state of one sample, as a caller gives and gets it."""
        return self._outer_sizes("states")

    def _outer_sizes(self, kind: str) -> list[tuple[int, ...]]:
        named = getattr(self.signature if self.heads is None else self.heads, kind)
        return [(*self.head_axis, *size) for _, size in named]


class CalledModule(Protocol):
    """What a plan reads of a module."""

    training: bool
    batch_first: bool
    bidirectional: bool
    dropout: float
    residual: bool
    weight_dropout: float
    plan: PlanOptions

    @property
    def runtime(self) -> Runtime:
        """State derived from the cell, the sizes and the options."""
        ...

    def follow_plan(self) -> None:
        """Follow a ``plan`` that was changed."""

    def check_calibrated(self) -> None:
        """Check that ranges of values are known, if the formula needs them."""

    def _weights(self) -> list[list[Tensor]]:
        """The present weights of each layer and direction."""
        ...

    def _initial(self) -> list[Tensor]:
        """Default initial states; none: zeros."""
        ...

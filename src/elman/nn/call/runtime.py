"""State that a module derives from its cell, sizes and options; the arguments of one call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from torch import Tensor

from elman.engines.packed import Packed
from elman.nn.autograd.transforms import unshared
from elman.nn.call.layout import Layout
from elman.nn.call.packing import Rows
from elman.nn.call.signature import Signature
from elman.nn.options.base import StepValues
from elman.plan.spec import USUAL, PlanOptions

if TYPE_CHECKING:
    from elman.nn.call.cache import CallCache
    from elman.nn.call.heads import Heads
    from elman.nn.execute.layer import Runner
    from elman.nn.execute.stack import Stack

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


@dataclass
class BoundCall:
    """The arguments of one call in the inner layout; options change it as they enter.

    Attributes:
        runtime: of the module.
        training: whether the module trains.
        directions: 1 or 2.
        layout: how the arguments lay.
        options: as given, by name.
        inputs: [T, B, n] each (packed [N, n]); then static ones [B, n].
        states: as of :class:`elman.nn.call.layout.StateForm`.
        weights: of each layer and direction, in declared order.
        initial: default initial states [lead, 1, n], as ``states``; None: zeros.
        has_state: whether the call was given a state.
        rows: how packed sequences lie; None: every sequence has T steps.
        lengths: of a padded batch that is packed only inside a compiled program.
        steps: the values of options in use.
    """

    runtime: Runtime
    training: bool
    directions: int
    layout: Layout
    options: Mapping[str, Any]
    inputs: tuple[Tensor, ...]
    states: tuple[Tensor, ...]
    weights: Sequence[Sequence[Tensor]]
    initial: tuple[Tensor, ...] | None = None
    has_state: bool = False
    rows: Rows | None = None
    lengths: Tensor | None = None
    steps: list[StepValues] = field(default_factory=list)

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """Inputs, states and weights."""
        return *self.inputs, *self.states, *[w for layer in self.weights for w in layer]

    def unshare(self) -> None:
        """Copy tensors that users may write to before the backward: see :func:`unshared`."""
        self.inputs, self.states = unshared(self.inputs), unshared(self.states)
        self.weights = [unshared(layer) for layer in self.weights]
        self.initial = None if self.initial is None else unshared(self.initial)
        self.steps = [step._replace(tensors=unshared(step.tensors)) for step in self.steps]

    @property
    def packed(self) -> Packed | None:
        """Sizes of the packed steps; None for sequences of T steps."""
        return None if self.rows is None else self.rows.packed

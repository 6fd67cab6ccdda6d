"""The arguments of one call in the inner layout, and the facts of a module that options read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Sized
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from torch import Tensor

from elman.engines.packed_rows import Packed
from elman.nn.autograd.transforms import unshared
from elman.nn.layout.layout import Layout
from elman.nn.layout.packing import Rows
from elman.nn.layout.signature import Signature


class Facts(Protocol):
    """The part of a module's :class:`elman.nn.call.runtime.Runtime` that options and compiled
    programs read."""

    @property
    def runners(self) -> Sized:
        """One per layer and direction."""
        ...

    @property
    def stack_key(self) -> str:
        """Name of all layers for torch's compiler."""
        ...

    @property
    def signature(self) -> Signature:
        """Arguments of the module."""
        ...

    @property
    def draws(self) -> tuple[str, ...]:
        """Periods of the cells' random numbers: ``step``, ``sequence``."""
        ...


class SequenceLike(Protocol):
    """The part of a module on which the layout of a call depends."""

    training: bool
    batch_first: bool

    @property
    def runtime(self) -> Facts:
        """State of the module."""
        ...


class StepValues(NamedTuple):
    """The values that an option in use adds to every step of a call.

    Attributes:
        option: name of the option.
        facts: words that, together with the option, determine the rule.
        tensors: [T, B, ...] each; of packed rows [N, ...].
    """

    option: str
    facts: tuple[str, ...]
    tensors: tuple[Tensor, ...]


@dataclass
class BoundCall:
    """The arguments of one call in the inner layout; options change it as they enter.

    Attributes:
        runtime: of the module.
        training: whether the module trains.
        directions: 1 or 2.
        layout: layout of the caller's arguments.
        options: the caller's options, by name.
        inputs: [T, B, n] each (packed [N, n]); then static ones [B, n].
        states: see :class:`elman.nn.layout.layout.StateForm`.
        weights: of each layer and direction, in declared order.
        initial: default initial states [lead, 1, n], in the form of ``states``; None: zeros.
        has_state: whether the caller passed a state.
        rows: layout of packed sequences; None: every sequence has T steps.
        lengths: of a padded batch that is packed only inside a compiled program.
        steps: the values of options in use.
    """

    runtime: Facts
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

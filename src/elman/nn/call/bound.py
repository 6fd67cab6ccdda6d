"""The arguments of one call in the inner layout."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torch import Tensor

from elman.engines.packed import Packed
from elman.nn.call.layout import Layout
from elman.nn.call.packing import Rows
from elman.nn.options.base import StepValues

if TYPE_CHECKING:
    from elman.nn.call.parts import Parts


@dataclass
class BoundCall:
    """The arguments of one call in the inner layout; options change it as they enter.

    Attributes:
        parts: of the module.
        training: whether the module trains.
        directions: 1 or 2.
        layout: how the arguments lay.
        options: as given, by name.
        inputs: [T, B, n] each (packed [N, n]); then static ones [B, n].
        states: as of :class:`elman.nn.call.states.StateForm`.
        weights: of each layer and direction, in declared order.
        initial: default initial states [lead, 1, n], as ``states``; None: zeros.
        state_given: whether the call was given a state.
        rows: how packed sequences lie; None: every sequence has T steps.
        lengths: of a padded batch that is packed only inside a compiled program.
        steps: the values of options in use.
    """

    parts: Parts
    training: bool
    directions: int
    layout: Layout
    options: Mapping[str, Any]
    inputs: tuple[Tensor, ...]
    states: tuple[Tensor, ...]
    weights: Sequence[Sequence[Tensor]]
    initial: tuple[Tensor, ...] | None = None
    state_given: bool = False
    rows: Rows | None = None
    lengths: Tensor | None = None
    steps: list[StepValues] = field(default_factory=list)

    @property
    def packed(self) -> Packed | None:
        """How packed sequences lie."""
        return None if self.rows is None else self.rows.packed

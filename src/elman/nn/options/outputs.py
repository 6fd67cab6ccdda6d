"""Outputs of the layers: the first output between layers; all outputs of the last layer, with its
states after every step for ``outputs="states"``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, TypeVar

import torch
from torch import Tensor

from elman.checks import shown
from elman.errors import InputError
from elman.frontend.cell import Cell
from elman.ir.graph import Graph
from elman.ir.types import shape_size
from elman.nn.autograd.transforms import transform_reason
from elman.nn.options.base import register_rule
from elman.plan.checkpoint import EVERYTHING, Checkpoint
from elman.tuning.request import Rule

Outputs = Literal["states"] | None
Handle = TypeVar("Handle")


@dataclass(frozen=True)
class OutputRule:
    """The step with its first output alone, which the layer above reads; or with those next states
    as further outputs that are not outputs yet."""

    name: Literal["first_output", "states"]

    def rewrite(self, graph: Graph) -> Graph:
        """See :class:`Rule`."""
        outputs = graph.outputs[:1]
        if self.name == "states":
            states = dict.fromkeys(graph.next_states)
            outputs = (*graph.outputs, *[root for root in states if root not in graph.outputs])
        return replace(graph, outputs=outputs)


FIRST, STATES = register_rule(OutputRule("first_output")), register_rule(OutputRule("states"))


def rules_for(cell: Cell, last: bool, outputs: Outputs = None) -> tuple[Rule, ...]:
    """The rules that give a layer's step the wanted outputs; none if it has them.

    Args:
        cell: of the layer.
        last: whether it is the last layer.
        outputs: of the call.
    """
    graph = cell.graph
    if not last:
        return (FIRST,) if len(graph.outputs) > 1 else ()
    needs_states = outputs is not None and not {*graph.next_states} <= {*graph.outputs}
    return (STATES,) if needs_states else ()


def check_outputs(outputs: Any) -> None:
    """Check ``outputs=`` of a call.

    Raises:
        InputError: there are no such outputs.
    """
    if outputs is not None and not (isinstance(outputs, str) and outputs == "states"):
        raise InputError(
            f'outputs must be None or "states", got {shown(outputs)}',
            'out, states, last = net(x, outputs="states")',
        )


class OutputLayout(NamedTuple):
    """The values that lie side by side in the output array of a last layer.

    Attributes:
        shapes: of each value, without T and B.
        outputs: indices of the values that are the cell's outputs.
        states: indices of the values that are its states.
        directions: 1 or 2.
    """

    shapes: tuple[tuple[int, ...], ...]
    outputs: tuple[int, ...]
    states: tuple[int, ...]
    directions: int

    @staticmethod
    def of(cell: Cell, dims: dict[str, int], directions: int) -> tuple[OutputLayout, OutputLayout]:
        """The layouts of a cell under a binding of its dims: without and with states."""
        graph = cell.graph
        outputs = STATES.rewrite(graph).outputs
        shapes = tuple(shape_size(value.shape, dims) for value in outputs)
        count = len(graph.outputs)
        states = tuple(outputs.index(root) for root in graph.next_states)
        layout = OutputLayout(shapes, tuple(range(count)), states, directions)
        return layout._replace(shapes=shapes[:count], states=()), layout

    def select(self, results: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        """Outputs and states among the results of :func:`run_layers`. A first output that is also a
        state appears as a state without the residual. A state that is an output, or equals another
        state, is a copy, so that no two results share memory."""
        taken, states = [*self.outputs], []
        for k in self.states:
            place = len(results) - 1 if not k and len(results) > len(self.shapes) else k
            states.append(results[place].clone() if place in taken else results[place])
            taken.append(place)
        return [results[k] for k in self.outputs], states

    def split(self, joined: Tensor) -> list[Tensor]:
        """Every value [T, B, n · directions]; of packed rows [N, n · directions]. A scalar has the
        last axis in two directions only.

        Args:
            joined: all values, [T, B, Σn · directions], direction by direction.
        """
        if len(self.shapes) == 1:
            return [joined]
        widths = [shape[0] if shape else 1 for shape in self.shapes]
        cut = torch.split  # makes views that torch does not let users change in place
        if torch.compiler.is_compiling() or transform_reason((joined,)) is None:
            cut = torch.unsafe_split_with_sizes
        pieces, count = cut(joined, widths * self.directions, -1), len(widths)
        if self.directions == 2:
            return [torch.cat((pieces[k], pieces[k + count]), -1) for k in range(count)]
        return [v if shape else v.squeeze(-1) for v, shape in zip(pieces, self.shapes, strict=True)]


class RunSettings(NamedTuple):
    """Settings of a run of all layers, for one call.

    Attributes:
        engine: a name, ``auto``, or None: so that every transform goes through.
        dropout: share of values dropped after each layer but the last.
        residual: whether each layer from the second on adds its input to its (first) output.
        checkpoint: which states the forward keeps for the backward.
        outputs: further outputs of the last layer, see :func:`check_outputs`.
    """

    engine: str | None
    dropout: float = 0.0
    residual: bool = False
    checkpoint: Checkpoint = EVERYTHING
    outputs: Outputs = None

    @property
    def between(self) -> bool:
        """Whether there is dropout or a residual between layers."""
        return self.residual or self.dropout > 0.0


def run_layers(
    groups: Sequence[tuple[Handle, int]],
    run_group: Callable[[Handle, tuple[Tensor, ...], int, int], tuple[Tensor, Sequence[Tensor]]],
    inputs: Sequence[Tensor],
    settings: RunSettings,
    layout: OutputLayout,
) -> tuple[list[Tensor], list[Sequence[Tensor]]]:
    """Run one group of layers after another: eager, under transforms, and while compiling.

    Args:
        groups: handle of each group, and its number of layers and directions.
        run_group: takes a group, its inputs, the index of its first layer and the index after its
            last; returns the output and further results.
        inputs: [T, B, n] each (packed [N, n]); the first goes to the lowest layer.
        settings: of the call; with dropout or residuals each layer is a group of its own.
        layout: of the output of the last group.

    Returns:
        Every value of the last group's output, then, with a residual, its first without it
        (:meth:`OutputLayout.select`); and the further results of all groups.
    """
    collected: list[Sequence[Tensor]] = []
    values: list[Tensor] = []
    at, out = 0, inputs[0]
    for number, (group, count) in enumerate(groups):
        results, further = run_group(group, (out, *inputs[1:]), at, at + count)
        collected.append(further)
        at += count
        if number == len(groups) - 1:
            results, *values = layout.split(results)
            if settings.residual and number and 0 in layout.states:
                values.append(results)
        elif settings.dropout > 0.0:
            results = torch.dropout(results, settings.dropout, True)
        out = results + out if settings.residual and number else results
    return [out, *values], collected

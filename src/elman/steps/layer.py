"""The layer that runs a step's formula, with weights that are given in each call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor
from torch.nn import Parameter

from elman.frontend.cell import Cell
from elman.frontend.signature import Declared
from elman.ir.types import dim_size, gate_block_size
from elman.nn.execute.layer import Formula, Runner
from elman.nn.layout.signature import Signature
from elman.nn.modules.sequence import SequenceModule
from elman.nn.options.registry import select_options


class StepLayer(SequenceModule):
    """One layer of a step's formula.

    Args:
        cell: the formula; its dims are numbers.
        engine: a name, or ``auto``.
        whole: whether torch computes nothing of the step but its weights.
    """

    def __init__(self, cell: Cell, engine: str, whole: bool) -> None:
        super().__init__()
        self.whole = whole
        self._set_options({"engine": engine})
        self.cell = cell
        self.input_size, self.hidden_size = _units(cell.inputs), _units(cell.states)
        self.num_layers, self.bidirectional, self.batch_first = 1, False, False
        self.dropout = 0.0
        self._names = [weight.name for weight in cell.weights]
        self.training = True  # a step that draws numbers draws them in each call

    def _formulas(self) -> list[Formula]:
        return [(self.cell, self.hidden_size, {})]

    def _make_heads(self, runners: Mapping[str, Runner], signature: Signature) -> None:
        """None: matrices come as they are inside."""

    def _parameter_names(self, runners: Mapping[str, Runner]) -> list[list[str]]:
        return [[weight.name for weight in self.cell.weights]]

    def run(self, x: Any, state: Any, options: dict[str, Any]) -> tuple[Any, ...]:
        """Run the formula over a batch of sequences.

        Args:
            x, state: in the inner layout, a matrix of each sample as one axis.
            options: of the call.

        Returns:
            As ``forward`` of a layer, in the inner layout.
        """
        return self._forward(x, state, options)

    def forward(self, x: Any, state: Any = None, **options: Any) -> tuple[Any, ...]:
        """As :meth:`run`; states are zeros if omitted."""
        return self.run(x, state, select_options(options))

    def copied(self) -> StepLayer:
        """The same layer with copies of its weights, as parameters."""
        weights = [Parameter(weight.detach().clone()) for weight in self._weights()[0]]
        return self.with_weights(weights)

    def with_weights(self, weights: Sequence[Tensor]) -> StepLayer:
        """The same layer with the weights of a call: what is derived of it is shared."""
        _ = self.runtime
        layer = object.__new__(StepLayer)
        attributes = {**self.__dict__, "_parameters": dict(zip(self._names, weights))}
        object.__setattr__(layer, "__dict__", attributes)
        return layer


def _units(declared: Sequence[Declared]) -> int:
    """The size of the first argument: its units, or the columns of a matrix."""
    if not declared or not declared[0].shape:
        return 1
    (first, *_), *_ = declared[0].shape
    return (
        gate_block_size(first[1], {})
        if isinstance(first, tuple)
        else dim_size(declared[0].shape[0], {})
    )

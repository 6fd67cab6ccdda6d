"""A call of recurrent layers as torch's compiler traces it: one operator per group of layers."""

from __future__ import annotations

import torch
from torch import Tensor

from elman.errors import EngineError
from elman.nn.call.parts import BoundCall
from elman.nn.compile.names import facts_of, names_of, transforming
from elman.nn.compile.operator import BELOW
from elman.nn.options.outputs import RunSettings, run_layers
from elman.nn.options.registry import STEP_OPTIONS


def trace_layers(call: BoundCall, settings: RunSettings) -> tuple[list[Tensor], tuple[Tensor, ...]]:
    """:meth:`elman.nn.execute.stack.Stack.run` as the compiler traces it.

    Args:
        call: in the inner layout; padded sequences are packed inside the operators.
        settings: of the call; an engine is named, or ``auto``.

    Raises:
        EngineError: a transform of torch.func surrounds what is compiled.
    """
    if transforming():
        raise EngineError(
            "torch.func transforms of recurrent layers run at full speed as they are, but not "
            "inside torch.compile: its operators have no rules for them. Compile what is around."
        )
    key, inputs, weights = call.parts.stack_key, call.inputs, call.weights
    layout, form, takes, draws = facts_of(key, settings.outputs)
    starts = form.rows(call.states)
    between = settings.residual
    if settings.dropout > 0.0:  # a branch, not a value: from its second value on, it is a symbol
        between = True
    groups = names_of(key, between)
    memory = [settings.checkpoint.steps, settings.checkpoint.budget, len(groups)]

    def run_group(
        name: str, given: tuple[Tensor, ...], first: int, end: int
    ) -> tuple[Tensor, list[Tensor]]:
        states = [state for each in starts[first:end] for state in each]
        matrices = [weight for each in weights[first:end] for weight in each]
        needs = torch.is_grad_enabled()
        given = tuple([given[k] for k in takes[first]])
        wants = [needs and tensor.requires_grad for tensor in (*given, *states, *matrices)]
        outputs = BELOW if end < len(starts) else settings.outputs or ""
        options: list[str] = []
        tensors: list[Tensor] = []
        for every in call.steps:
            values = STEP_OPTIONS[every.option].for_layers(every, first, end, draws[first])
            if values is not None:
                words = values.option, str(len(values.tensors)), *values.facts
                options.append(" ".join(words))
                tensors += values.tensors
        output, *last, _ = torch.ops.elman.recurrent(
            given,
            states,
            matrices,
            tensors,
            call.lengths,
            wants,
            name,
            settings.engine,
            ";".join(options),
            memory,
            outputs,
        )
        return output, last

    output, ends = run_layers(groups, run_group, inputs, settings, layout)
    return output, form.joined(ends)

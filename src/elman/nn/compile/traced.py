"""A call of recurrent layers as torch's compiler traces it: one operator per group of layers."""

from __future__ import annotations

import torch
from torch import Tensor

from elman.errors import EngineError
from elman.nn.call.bound import BoundCall
from elman.nn.compile.names import form_of, names_of, output_layout_of, read_by, transforming
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
    form = form_of(key)
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
        takes, reads_draws = read_by(key, first)
        given = tuple([given[k] for k in takes])
        wants = [needs and tensor.requires_grad for tensor in (*given, *states, *matrices)]
        outputs = BELOW if end < len(starts) else settings.outputs or ""
        options: list[str] = []
        tensors: list[Tensor] = []
        for values in call.steps:
            layer_values = STEP_OPTIONS[values.option].for_layers(values, first, end, reads_draws)
            if layer_values is not None:
                options.append(
                    " ".join(
                        [layer_values.option, str(len(layer_values.tensors)), *layer_values.facts]
                    )
                )
                tensors += layer_values.tensors
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

    layout = output_layout_of(key, settings.outputs)
    output, ends = run_layers(groups, run_group, inputs, settings, layout)
    return output, form.joined(ends)

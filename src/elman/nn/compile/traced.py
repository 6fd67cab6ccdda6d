"""A call of recurrent layers as torch's compiler traces it: one operator per group of layers."""

from __future__ import annotations

import torch
from torch import Tensor

from elman.errors import EngineError
from elman.nn.arguments import Prepared
from elman.nn.compile.names import form_of, names_of, output_layout_of, read_by, transforming
from elman.nn.compile.operator import BELOW
from elman.nn.draws import keys_of
from elman.nn.outputs import RunSettings, run_layers


def run_compiled(
    stack_key: str, prepared: Prepared, settings: RunSettings, per: tuple[str, ...]
) -> tuple[list[Tensor], tuple[Tensor, ...]]:
    """:meth:`Stack.run` as the compiler traces it.

    Args:
        stack_key: of the stack of the layers, as of :func:`key_of`.
        prepared: the call.
        settings: of the call; an engine is named, or ``auto``.
        per: how often random numbers are drawn anew.
    """
    if transforming():
        raise EngineError(
            "torch.func transforms of recurrent layers run at full speed as they are, but not "
            "inside torch.compile: its operators have no rules for them. Compile what is around."
        )
    inputs, states, _, weights, marks, lengths, *_ = prepared
    engine, dropout, residual, checkpoint, outputs = settings
    between = residual
    if dropout > 0.0:  # a branch, not a value: from its second value on, the share is a symbol
        between = True
    counts = None if lengths is None else torch.as_tensor(lengths)
    reset, to = marks.reset, "" if marks.reset is None else marks.reset_to
    form = form_of(stack_key)
    starts = form.rows(states)
    groups = names_of(stack_key, between)
    memory = [checkpoint.steps, checkpoint.budget, len(groups)]
    like = inputs[0]
    keys: list[Tensor] = []
    if marks.draws is not None:
        keys = keys_of(marks.draws, like.dtype)
    elif per:
        sizes = [len(weights), like.shape[0], like.shape[1]]
        keys = torch.ops.elman.keys(" ".join(per), sizes, like.dtype, like.device)

    def run_group(
        name: str, given: tuple[Tensor, ...], first: int, end: int
    ) -> tuple[Tensor, list[Tensor]]:
        flat = [state for each in starts[first:end] for state in each]
        matrices = [weight for each in weights[first:end] for weight in each]
        needs = torch.is_grad_enabled()
        takes, drawn = read_by(stack_key, first)
        given = tuple([given[k] for k in takes])
        wants = [needs and tensor.requires_grad for tensor in (*given, *flat, *matrices)]
        handed = BELOW if end < len(starts) else outputs or ""
        own = [each[first:end] for often, each in zip(per, keys) if often in drawn]
        made, *last, _ = torch.ops.elman.recurrent(
            given,
            flat,
            matrices,
            own,
            counts,
            reset,
            marks.mask,
            wants,
            name,
            engine,
            to,
            memory,
            handed,
        )
        return made, last

    layout = output_layout_of(stack_key, outputs)
    made, ends = run_layers(groups, run_group, inputs, settings, layout)
    return made, form.joined(ends)

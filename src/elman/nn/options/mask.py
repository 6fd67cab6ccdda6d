"""``mask=``: steps that do not count, such as missing values and padding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from elman.engines.call import Call
from elman.engines.packed import reversed_in_time
from elman.ir.graph import Graph, Node, node
from elman.nn.engine_choice import traces_onnx
from elman.nn.options.base import StepOption, further_leaf, register_rule
from elman.nn.options.bound import BoundCall, StepValues
from elman.tuning.request import Rule

MaskedOutput = Literal["held", "zeros"]


@dataclass(frozen=True)
class MaskRule:
    """The step that keeps its states where it does not count.

    An output that is a next state keeps its value, too; any other is zero there. Input: ``mask``, a
    scalar that is not 0 where the step counts.
    """

    name: str = "mask"

    def rewrite(self, graph: Graph) -> Graph:
        """See :class:`Rule`."""
        counts = further_leaf(graph, "input", "mask")
        zero = node("const", (), (0.0,))

        def select(value: Node, otherwise: Node) -> Node:
            # `where`, not a product with the mask, which would pass NaN on
            return node("where", (counts, value, otherwise), (), value.shape)

        states: list[Node] = []
        guarded: dict[Node, Node] = {}  # by the next state of a step that counts
        for old, after in zip(graph.states, graph.next_states, strict=True):
            states.append(old if after is old else select(after, old))
            guarded.setdefault(after, states[-1])
        outputs = tuple([guarded.get(out) or select(out, zero) for out in graph.outputs])
        inputs = (*graph.inputs, counts)
        return replace(graph, inputs=inputs, next_states=tuple(states), outputs=outputs)


MASK: Rule = register_rule(MaskRule())


class Mask(StepOption):
    """The mask of one call, the same for all layers and both directions."""

    name = "mask"
    companion = (
        "masked_output",
        get_args(MaskedOutput),
        "net(x, mask=known, masked_output=…), not 0 where a step counts",
    )

    def enter(self, value: Tensor, call: BoundCall) -> None:
        """See :meth:`StepOption.enter`.

        For a backward, masked inputs are set to zero: a NaN there reaches no state, but times a
        zero derivative it would make a weight's gradient NaN.
        """
        counts = value != 0
        if torch.is_grad_enabled():
            varying = len(call.runtime.signature.inputs)
            read, static = call.inputs[:varying], call.inputs[varying:]
            call.inputs = (*[fill_zeros(x, ~counts) for x in read], *static)
        call.steps.append(StepValues(self.name, (), (counts,)))

    def rule(self, facts: Sequence[str]) -> Rule:
        return MASK

    def extend(self, values: StepValues, call: Call, reverse: bool, member: int) -> Call:
        (counts,) = values.tensors
        if reverse:
            counts = reversed_in_time(counts, call.packed)
        return call._replace(inputs=(*call.inputs, counts.to(call.inputs[0].dtype)))


def fill_zeros(value: Tensor, where: Tensor) -> Tensor:
    """A value [T, B, ...] that is zero where flags [T, B] are set."""
    flags = where.view(*where.shape, *[1] * (value.dim() - where.dim()))
    if traces_onnx():  # masked_fill reads the strides of a transposed value, which fixes B = 1
        return torch.where(flags, 0, value)
    return value.masked_fill(flags, 0)


def masked_outputs(output: Any, mask: Any) -> Any:
    """An output in the caller's layout, zero where the mask, in the same layout, is 0."""
    if isinstance(output, PackedSequence):
        return output._replace(data=fill_zeros(output.data, mask.data == 0))
    return fill_zeros(output, mask == 0)

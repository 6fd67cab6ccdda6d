"""``mask=``: steps that do not count, as where a value is missing or a sequence is padded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from elman.checks import check_choice
from elman.engines.call import Call
from elman.engines.packed import reversed_in_time
from elman.errors import InputError, diagnostic
from elman.ir.graph import Graph, Node, node
from elman.nn.options import Option, further_leaf, known
from elman.tuning.request import Rule

MaskedOutput = Literal["held", "zeros"]


@dataclass(frozen=True)
class MaskRule:
    """The step whose states stay as they are where it does not count.

    An output that is a next state stays with it; any other is zero there. Input: ``mask``, a
    scalar that is not 0 where the step counts.
    """

    name: str = "mask"

    def rewrite(self, graph: Graph) -> Graph:
        """See :class:`Rule`."""
        counts = further_leaf(graph, "input", "mask")
        zero = node("const", (), (0.0,))

        def select(value: Node, otherwise: Node) -> Node:
            return node("where", (counts, value, otherwise), (), value.shape)

        states: list[Node] = []
        held: dict[Node, Node] = {}  # by the next state of a step that counts
        for old, after in zip(graph.states, graph.next_states, strict=True):
            states.append(old if after is old else select(after, old))
            held.setdefault(after, states[-1])
        outputs = tuple([held.get(out) or select(out, zero) for out in graph.outputs])
        inputs = (*graph.inputs, counts)
        return Graph(inputs, graph.states, graph.weights, tuple(states), outputs)


MASK: Rule = known(MaskRule())


class Mask(Option):
    """The mask of one call, the same for all layers and both directions.

    Args:
        mask: [T, B], or [N] of packed rows: whether a step counts.
    """

    rule = MASK

    def __init__(self, mask: Tensor) -> None:
        self._mask = mask

    def extend(self, call: Call, reverse: bool, member: int = 0) -> Call:
        """See :meth:`Option.extend`."""
        own = reversed_in_time(self._mask, call.packed) if reverse else self._mask
        return call._replace(inputs=(*call.inputs, own.to(call.inputs[0].dtype)))


def without_masked(inputs: Sequence[Tensor], mask: Tensor) -> tuple[Tensor, ...]:
    """Inputs [T, B, ...] that are zero where a mask [T, B] is not set, for a backward: NaN there
    reaches no state, but times a derivative of zero it would be a weight's gradient."""
    return tuple([_zeroed(value, ~mask) for value in inputs])


def masked_outputs(output: Any, mask: Any) -> Any:
    """An output as the caller has it, zero where a mask that is laid out so is 0."""
    if isinstance(output, PackedSequence):
        return output._replace(data=_zeroed(output.data, mask.data == 0))
    return _zeroed(output, mask == 0)


def _zeroed(value: Tensor, where: Tensor) -> Tensor:
    return value.masked_fill(where.view(*where.shape, *[1] * (value.dim() - where.dim())), 0)


def check_mask(mask: Any, masked_output: Any) -> None:
    """Refuse ``masked_output`` of a call that masks nothing, and what it cannot be.

    Raises:
        InputError: there is no mask, or no such thing.
    """
    if masked_output is not None:
        check_choice("masked_output", masked_output, ("held", "zeros"))
    if mask is None and masked_output is not None:
        message = f"masked_output={masked_output!r} has no effect without mask="
        hint = f"net(x, mask=known, masked_output={masked_output!r}), not 0 where a step counts"
        raise InputError(diagnostic(message, [], hint))

"""``reset=``: steps before which the state becomes the initial one, as where an episode begins."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from elman.checks import check_choice
from elman.engines.call import Call
from elman.engines.packed import Packed
from elman.errors import InputError, diagnostic
from elman.ir.graph import Graph, node
from elman.nn.options import Option, further_leaf, known

ResetTo = Literal["zeros", "initial"]
Starts = Literal["zeros", "initial", "learned"]  # what a reset state becomes: see ResetRule


@dataclass(frozen=True)
class ResetRule:
    """The step whose next state is the initial one wherever the following step is reset.

    The output is the state before that. Inputs: ``reset``, a scalar that is not 0 where the next
    step of the sequence is reset; for ``initial`` one more per state, the initial one. For
    ``learned`` that is one more weight per state: the same for all samples.
    """

    to: Starts

    @property
    def name(self) -> str:
        """See :class:`Rule`."""
        return "reset" if self.to == "zeros" else f"reset_to_{self.to}"

    def rewrite(self, graph: Graph) -> Graph:
        """See :class:`Rule`."""
        flag = further_leaf(graph, "input", "reset")
        op = "weight" if self.to == "learned" else "input"
        first = [
            further_leaf(graph, op, f"{state.name}_initial", state.shape) for state in graph.states
        ]
        zeros = [node("const", (), (0.0,))] * len(first)
        starts = zeros if self.to == "zeros" else first
        next_states = tuple(
            node("where", (flag, start, after), (), after.shape)
            for start, after in zip(starts, graph.next_states, strict=True)
        )
        inputs, weights = (*graph.inputs, flag), graph.weights
        inputs += tuple(first) if self.to == "initial" else ()
        weights += tuple(first) if self.to == "learned" else ()
        return Graph(inputs, graph.states, weights, next_states, graph.outputs)


RESETS: dict[str, ResetRule] = {to: known(ResetRule(to)) for to in get_args(Starts)}


class Reset(Option):
    """Resets of one call.

    A reset before step t parts the sequence there, for both directions: the reverse one begins anew
    at step t - 1.

    Args:
        mask: [T, B], or [N] of packed rows: not 0 where a step is reset.
        to: what the state becomes. Of a ``learned`` one calls have it already: their last weights.
    """

    def __init__(self, mask: Tensor, to: Starts) -> None:
        own = mask.dtype is not torch.bool or torch.is_grad_enabled()  # to be saved, or of numbers
        self._mask, self._to, self.rule = (mask != 0) if own else mask, to, RESETS[to]

    def extend(self, call: Call, reverse: bool, member: int = 0) -> Call:
        """See :meth:`Option.extend`."""
        mask, packed, states = self._mask, call.packed, call.states
        dtype = call.inputs[0].dtype
        ends = _backwards(mask, packed) if reverse else _following(mask, packed)
        more = [ends.to(dtype)]
        if self._to == "initial":
            more += [_repeated(state, call) for state in states]
        elif not reverse:  # nothing lies before the first step of the other direction
            first = mask[0] if packed is None else mask[: packed.batch]
            axes = (1,) * call.stacked
            begins = call.weights[-len(states) :] if self._to == "learned" else None
            states = _begun(states, first.reshape(*axes, -1), begins)
        return call._replace(inputs=(*call.inputs, *more), states=states)

    def only_step(
        self, states: tuple[Tensor, ...], learned: Sequence[Tensor] | None
    ) -> tuple[Tensor, ...]:
        """States [layers, B, ...] before a call of one step: nothing else of it is reset.

        Args:
            states: as given.
            learned [layers, 1, ...]: initial ones.
        """
        if self._to == "initial":
            return states
        return _begun(states, self._mask, learned if self._to == "learned" else None)


def _begun(
    states: Sequence[Tensor], mask: Tensor, begins: Sequence[Tensor] | None
) -> tuple[Tensor, ...]:
    """States [..., B, ...] where a mask [..., B] is not set; elsewhere zeros, or what they begin
    with."""
    made: list[Tensor] = []
    for k, state in enumerate(states):
        own = mask.view(*mask.shape, *[1] * (state.dim() - mask.dim()))
        made.append(
            state.masked_fill(own, 0) if begins is None else torch.where(own, begins[k], state)
        )
    return tuple(made)


def _following(mask: Tensor, packed: Packed | None) -> Tensor:
    """For each row whether the sequence's next step is reset."""
    if packed is not None:
        return packed.following(mask)
    return torch.cat((mask[1:], torch.zeros_like(mask[:1])))


def _backwards(mask: Tensor, packed: Packed | None) -> Tensor:
    """For each row of the reversed sequence whether a reset parts it from the row after it."""
    if packed is not None:
        first = torch.arange(packed.rows, device=mask.device) < packed.batch
        return packed.reversed(mask & ~first)
    return torch.cat((torch.zeros_like(mask[:1]), mask[1:])).flip(0)


def _repeated(state: Tensor, call: Call) -> Tensor:
    """An initial state at every step of its sequence."""
    own = state[0] if call.stacked else state
    if call.packed is not None:
        return own.index_select(0, call.packed.sequence.to(own.device))
    steps, batch, _ = call.sizes
    return own.expand(steps, batch, *own.shape[1:])


def reset_start(to: Any, learned: bool, given: bool) -> Starts:
    """What a reset state becomes.

    Args:
        to: as of a call; None: what a sequence begins with that is given no state.
        learned: whether that is learned.
        given: whether a state was given.

    """
    if to is None:
        return "learned" if learned else "zeros"
    return "learned" if to == "initial" and learned and not given else to


def check_reset(reset: Any, to: Any) -> None:
    """Refuse ``reset_to`` of a call that resets nothing, and what it cannot be.

    Raises:
        InputError: there is no reset, or no such thing.
    """
    if to is not None:
        check_choice("reset_to", to, ("zeros", "initial"))
    if reset is None and to is not None:
        raise InputError(
            diagnostic(
                f"reset_to={to!r} has no effect without reset=",
                [],
                f"net(x, state, reset=flags, reset_to={to!r}), not 0 where an episode begins",
            )
        )

"""``reset=``: steps before which the state becomes the initial one, as where an episode begins."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

import torch
from torch import Tensor

from elman.checks import check_choice
from elman.engines.call import Call
from elman.engines.packed import Packed
from elman.errors import InputError, diagnostic
from elman.ir.graph import Graph, node
from elman.nn.options.base import StepOption, StepValues, further_leaf, register_rule
from elman.tuning.request import Rule

if TYPE_CHECKING:
    from elman.nn.call.bound import BoundCall

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


RESETS: dict[str, ResetRule] = {to: register_rule(ResetRule(to)) for to in get_args(Starts)}


class Reset(StepOption):
    """Resets of one call.

    A reset before step t parts the sequence there, for both directions: the reverse one begins anew
    at step t - 1.
    """

    name = "reset"
    companions = ("reset_to",)

    def check(self, options: Mapping[str, Any]) -> None:
        """See :meth:`StepOption.check`."""
        to = options.get("reset_to")
        if to is None:
            return
        check_choice("reset_to", to, ("zeros", "initial"))
        if "reset" not in options:
            problem = f"reset_to={to!r} has no effect without reset="
            hint = f"net(x, state, reset=flags, reset_to={to!r}), not 0 where an episode begins"
            raise InputError(diagnostic(problem, [], hint))

    def enter(self, value: Tensor, call: BoundCall) -> None:
        """See :meth:`StepOption.enter`."""
        copied = value.dtype is not torch.bool or torch.is_grad_enabled()  # to be saved, or numbers
        flags, initial = (value != 0) if copied else value, call.initial
        to = call.options.get("reset_to")
        start = to or ("zeros" if initial is None else "learned")
        if to == "initial" and initial is not None and not call.state_given:
            start = "learned"
        if call.rows is None and call.lengths is None and len(flags) == 1 and call.directions == 1:
            if start != "initial":  # nothing else of a call of one step is reset
                call.states = _begin(call.states, flags, initial if start == "learned" else None)
            return
        if start == "learned" and initial is not None:
            each = call.parts.signature.form.rows([state.squeeze(1) for state in initial])
            call.weights = [[*w, *row] for w, row in zip(call.weights, each, strict=True)]
        call.steps.append(StepValues(self.name, (start,), (flags,)))

    def rule(self, facts: Sequence[str]) -> Rule:
        """See :meth:`StepOption.rule`."""
        return RESETS[facts[0]]

    def extend(self, values: StepValues, call: Call, reverse: bool, member: int) -> Call:
        """See :meth:`StepOption.extend`."""
        (flags,), (start,), packed = values.tensors, values.facts, call.packed
        states, dtype = call.states, call.inputs[0].dtype
        ends = _backwards(flags, packed) if reverse else _following(flags, packed)
        further = [ends.to(dtype)]
        if start == "initial":
            further += [_at_steps(state, call) for state in states]
        elif not reverse:  # nothing lies before the first step of the other direction
            first = flags[0] if packed is None else flags[: packed.batch]
            axes = (1,) * call.stacked
            initial = call.weights[-len(states) :] if start == "learned" else None
            states = _begin(states, first.reshape(*axes, -1), initial)
        return call._replace(inputs=(*call.inputs, *further), states=states)


def _begin(
    states: Sequence[Tensor], flags: Tensor, initial: Sequence[Tensor] | None
) -> tuple[Tensor, ...]:
    """States [..., B, ...] that are zeros, or the initial ones, where flags [..., B] are set."""
    made: list[Tensor] = []
    for k, state in enumerate(states):
        where = flags.view(*flags.shape, *[1] * (state.dim() - flags.dim()))
        made.append(
            state.masked_fill(where, 0)
            if initial is None
            else torch.where(where, initial[k], state)
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


def _at_steps(state: Tensor, call: Call) -> Tensor:
    """An initial state at every step of its sequence."""
    initial_state = state[0] if call.stacked else state
    if call.packed is not None:
        return initial_state.index_select(0, call.packed.sequence.to(initial_state.device))
    steps, batch, _ = call.sizes
    return initial_state.expand(steps, batch, *initial_state.shape[1:])

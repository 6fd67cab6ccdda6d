"""``reset=``: steps before which the state becomes the initial one, such as first steps of
episodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

import torch
from torch import Tensor

from elman.engines.call import Call
from elman.engines.packed_rows import Packed
from elman.engines.time_shards import current, shards_time
from elman.ir.graph import Graph, Node, node
from elman.ir.types import Shape, is_matrix, matrix_axes
from elman.nn.options.base import StepOption, at_steps, further_leaf, register_rule
from elman.nn.options.bound import BoundCall, StepValues
from elman.tuning.request import Rule

ResetTo = Literal["zeros", "initial"]
Starts = Literal["zeros", "initial", "learned"]  # values of a reset state, see ResetRule


@dataclass(frozen=True)
class ResetRule:
    """The step whose next state is the initial one wherever the following step is reset.

    The output is not reset. Inputs: ``reset``, a scalar that is not 0 where the next step of the
    sequence is reset; for ``initial`` each state's initial value, too. For ``learned`` the initial
    values are weights: the same for all samples.
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
        shapes = [_shape_as_weight(s) if op == "weight" else s.shape for s in graph.states]
        names = [f"{state.name}_initial" for state in graph.states]
        first = [further_leaf(graph, op, *entry) for entry in zip(names, shapes, strict=True)]
        starts = [
            node("per_sample", (leaf,), (), state.shape) if leaf.shape != state.shape else leaf
            for leaf, state in zip(first, graph.states, strict=True)
        ]
        if self.to == "zeros":
            starts = [node("const", (), (0.0,))] * len(first)
        pairs = zip(starts, graph.next_states, strict=True)
        # `where`, not a product: NaN of an episode must not reach the next one or its gradients
        after = [node("where", (flag, *pair), (), pair[1].shape) for pair in pairs]
        return replace(
            graph,
            inputs=(*graph.inputs, flag, *(first if self.to == "initial" else [])),
            weights=(*graph.weights, *(first if self.to == "learned" else [])),
            next_states=tuple(after),
        )


def _shape_as_weight(state: Node) -> Shape:
    """Shape of a weight with the elements of a state; a matrix [K, V] is a weight of two dims."""
    return tuple((axis,) for axis in matrix_axes(state)) if is_matrix(state) else state.shape


RESETS: dict[str, ResetRule] = {to: register_rule(ResetRule(to)) for to in get_args(Starts)}


class Reset(StepOption):
    """Resets of one call.

    A reset before step t divides the sequence there, for both directions: the reverse one starts
    again at step t - 1.
    """

    name = "reset"
    companion = (
        "reset_to",
        get_args(ResetTo),
        "net(x, state, reset=flags, reset_to=…); a flag that is not 0 marks a first step",
    )

    def enter(self, value: Tensor, call: BoundCall) -> None:
        flags, initial = _flags(value), call.initial
        to = call.options.get("reset_to")
        start = to or ("zeros" if initial is None else "learned")
        if to == "initial" and initial is not None and not call.has_state:
            start = "learned"
        single = call.rows is None and call.lengths is None and call.directions == 1
        single = single and not shards_time()  # else the step may follow another process's steps
        if single and flags.shape[0] == 1:  # len() would make T a constant in an exporter's trace
            # with one step, only the initial state can be reset; a stream then runs the plain step
            if start != "initial":
                call.states = _begin(call.states, flags, initial if start == "learned" else None)
            return
        if start == "learned" and initial is not None:
            rows = call.runtime.signature.form.rows([state.squeeze(1) for state in initial])
            call.weights = [[*w, *row] for w, row in zip(call.weights, rows, strict=True)]
        call.steps.append(StepValues(self.name, (start,), (flags,)))

    def rule(self, facts: Sequence[str]) -> Rule:
        return RESETS[facts[0]]

    def extend(self, values: StepValues, call: Call, reverse: bool, member: int) -> Call:
        (flags,), (start,), packed = values.tensors, values.facts, call.packed
        states, dtype = call.states, call.inputs[0].dtype
        further = [_ends(flags, packed, reverse).to(dtype)]
        if start == "initial":
            further += [at_steps(state[0] if call.stacked else state, call) for state in states]
        elif not reverse:  # a reset before step 0 is after the last step of the other direction
            first = flags[0] if packed is None else flags[: packed.batch]
            initial = call.weights[-len(states) :] if start == "learned" else None
            states = _begin(states, first.unsqueeze(0) if call.stacked else first, initial)
        return call._replace(inputs=(*call.inputs, *further), states=states)


def begin_step(states: Sequence[Tensor], value: Tensor) -> tuple[Tensor, ...]:
    """States [lead, B, ...] before a single step: zeros where flags [1, B] are not 0. Unbatched
    states [lead, ...] have flags [1, 1]."""
    return _begin(states, _flags(value), None)


def _flags(value: Tensor) -> Tensor:
    """Flags as booleans."""
    # numbers must be compared; flags that a backward saves must not be the caller's tensor
    copied = value.dtype is not torch.bool or torch.is_grad_enabled()
    return (value != 0) if copied else value


def _begin(
    states: Sequence[Tensor], flags: Tensor, initial: Sequence[Tensor] | None
) -> tuple[Tensor, ...]:
    """States [..., B, ...] that are zeros, or the initial ones, where flags [..., B] are set."""
    wheres: list[Tensor] = []
    where = flags
    for state in states:  # states of as many dims share a view
        if where.dim() != state.dim():
            where = flags[(..., *[None] * (state.dim() - flags.dim()))]
        wheres.append(where)
    if initial is None:
        return tuple([state.masked_fill(where, 0) for state, where in zip(states, wheres)])
    return tuple([torch.where(*operands) for operands in zip(wheres, initial, states)])


def _ends(flags: Tensor, packed: Packed | None, reverse: bool) -> Tensor:
    """For each row whether the sequence's next step is reset; in the reversed sequence, whether a
    reset separates the row from the row after it."""
    if packed is None:
        none = torch.zeros_like(flags[:1])
        first, after = none, none
        shards = current()
        if shards is not None:  # the next step may be the next process's
            firsts = [part for (part,) in shards.gather([flags[:1].to(torch.uint8)])]
            after = (*firsts[1:], none)[shards.place].to(flags.dtype)
            first = flags[:1] if shards.place else none
        return torch.cat((first, flags[1:])).flip(0) if reverse else torch.cat((flags[1:], after))
    if not reverse:
        return packed.following(flags)
    first = torch.arange(packed.rows, device=flags.device) < packed.batch
    return packed.reversed(flags & ~first)

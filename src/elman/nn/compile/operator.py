"""Recurrent layers as operators that torch.compile and torch.export see as a whole.

Nothing is unrolled over time and nothing breaks the graph: a group of layers is one operator with a
known shape. What an operator runs is what an eager call runs (:class:`elman.nn.stack.Group`), with
its own autograd inside; the backward is an operator of its own, which finds what the forward kept
by a ticket, and runs the forward again where there is none (in another process, or too late).
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from elman.compiler import graph_of
from elman.engines.call import Call, Form
from elman.engines.vjp import leaves_of, vjp
from elman.ir.types import shape_size
from elman.nn.compile.names import group_of
from elman.nn.draws import Draws, draw_keys, key_sizes, packed_keys
from elman.nn.mask import Mask
from elman.nn.options import Option
from elman.nn.outputs import Outputs, rules_for
from elman.nn.packing import Packing, Padding, checked_lengths
from elman.nn.reset import Reset
from elman.nn.stack import Group
from elman.passes.draws import draws
from elman.plan.checkpoint import Checkpoint
from elman.torch_internals import DispatchKeys, dispatch_keys, dispatching

_kept: dict[int, tuple[list[Tensor], list[Tensor]]] = {}  # ticket -> leaves, results
_tickets = itertools.count(1)
BELOW = "first"  # what a group hands out to one above


@torch.library.custom_op("elman::keys", mutates_args=(), tags=(torch.Tag.nondeterministic_seeded,))
def drawn_keys(
    per: str, sizes: Sequence[int], dtype: torch.dtype, device: torch.device
) -> list[Tensor]:
    """Draw the keys of a call as an eager one does: the compiler has a generator of its own.

    Args:
        per: what the cell draws by, words.
        sizes: layers · directions, T, B.
        dtype, device: of the call.
    """
    lead, steps, batch = sizes
    return draw_keys(per.split(), lead, (steps, batch), batch, dtype, device)


@drawn_keys.register_fake
def _(per: str, sizes: Sequence[int], dtype: torch.dtype, device: torch.device) -> list[Tensor]:
    lead, steps, batch = sizes
    found = key_sizes(per.split(), lead, (steps, batch), batch)
    return [torch.empty(size, dtype=dtype, device=device) for size in found]


class _Given(NamedTuple):
    """Arguments of the operators, in order.

    Attributes:
        inputs: [T, B, n] each; then static ones [B, n].
        states: [B, n] each, of all members of the group.
        weights: of all members.
        keys: of all members' random numbers in training, as of :class:`elman.nn.draws.Draws`; where
            they were given, all at every step.
        lengths [B]: steps of each sequence, or None.
        reset [T, B]: not 0 where steps are reset, or None.
        mask [T, B]: of steps that count, or None.
        wants: for each input, state and weight, whether its gradient may be asked for.
        name: of the group.
        engine: a name, or ``auto``.
        reset_to: ``zeros``, ``initial`` or ``learned``; nothing without resets.
        asked: of the backward's memory, as :class:`elman.plan.checkpoint.Checkpoint`.
        handed: ``first`` output alone, to a layer above; else all, ``states`` too, or nothing more.
    """

    inputs: Sequence[Tensor]
    states: Sequence[Tensor]
    weights: Sequence[Tensor]
    keys: Sequence[Tensor]
    lengths: Tensor | None
    reset: Tensor | None
    mask: Tensor | None
    wants: Sequence[bool]
    name: str
    engine: str
    reset_to: Any
    asked: Sequence[int]
    handed: str

    @property
    def differentiable(self) -> tuple[Tensor, ...]:
        """What ``wants`` tells of."""
        return (*self.inputs, *self.states, *self.weights)


_ARGUMENTS = (
    "Tensor[] inputs, Tensor[] states, Tensor[] weights, Tensor[] keys, Tensor? lengths, "
    "Tensor? reset, Tensor? mask, bool[] wants, str name, str engine, str reset_to, int[] asked, "
    "str handed"
)


@torch.library.custom_op("elman::recurrent", mutates_args=(), schema=f"({_ARGUMENTS}) -> Tensor[]")
def recurrent(*arguments: Any) -> list[Tensor]:
    """Run a group of layers.

    Returns:
        The output [T, B, n], the last states, and a ticket [1] for the backward.
    """
    given = _Given(*arguments)
    leaves, results = _run(given)
    ticket = torch.zeros(1, dtype=torch.long)
    if any(given.wants):
        number = next(_tickets)
        ticket.fill_(number)
        _kept[number] = (leaves, results)
        weakref.finalize(ticket, _kept.pop, number, None)
    return [*_laid_out(results, given.differentiable, any(given.wants)), ticket]


@recurrent.register_fake
def _(*arguments: Any) -> list[Tensor]:
    given = _Given(*arguments)
    group, like = group_of(given.name), given.inputs[0]
    last = group.runners[-1]
    rules = rules_for(last.cell, *_outputs_of(given.handed))
    width = shape_size(graph_of(last.cell, rules).output_shape, dict(last.dims))
    if group.directions:
        width = (2 * width[0],)
    output = like.new_empty(*like.shape[:2], *width)
    ends = [state.new_empty(state.shape) for state in given.states]
    return [output, *ends, like.new_empty(1, dtype=torch.long, device="cpu")]


@torch.library.custom_op(
    "elman::recurrent_backward",
    mutates_args=(),
    schema=f"(Tensor?[] cotangents, Tensor ticket, {_ARGUMENTS}) -> Tensor[]",
)
def recurrent_backward(
    cotangents: Sequence[Tensor | None], ticket: Tensor, *arguments: Any
) -> list[Tensor]:
    """Gradients of what is wanted, in order.

    Args:
        cotangents: of the output and the last states; None for zero.
        ticket: what the forward returned last.
        arguments: the forward's.
    """
    given = _Given(*arguments)
    kept = _kept.pop(int(ticket), None)
    leaves, results = _run(given) if kept is None else kept
    with _autograd(False):  # kernels that run again differentiate inside of their backward
        gradients = vjp(results, leaves, cotangents, given.wants)
    wanted = [
        torch.zeros_like(leaf) if grad is None else grad
        for leaf, grad, want in zip(leaves, gradients, given.wants, strict=True)
        if want
    ]
    passed_on = [d for d in cotangents if d is not None]  # by a step that hands states on
    return _laid_out(wanted, (*given.differentiable, *passed_on), False)


@recurrent_backward.register_fake
def _(_: Any, __: Any, *arguments: Any) -> list[Tensor]:
    given = _Given(*arguments)
    tensors = zip(given.differentiable, given.wants, strict=True)
    return [value.new_empty(value.shape) for value, want in tensors if want]


def _keep(ctx: Any, inputs: Any, output: Any) -> None:
    given = _Given(*inputs)
    further = (given.lengths, given.reset, given.mask)
    ctx.form = Form(len(given.inputs), len(given.states))
    ctx.keys, ctx.there = len(given.keys), [value is not None for value in further]
    ctx.rest = inputs[4 + len(further) :]
    there = [value for value in further if value is not None]
    ctx.save_for_backward(output[-1], *given.keys, *there, *given.differentiable)
    ctx.set_materialize_grads(False)


def _back(ctx: Any, cotangents: Sequence[Tensor | None]) -> Any:
    ticket, *saved = ctx.saved_tensors
    keys, saved = saved[: ctx.keys], saved[ctx.keys :]
    further = [saved.pop(0) if there else None for there in ctx.there]
    call, wants = ctx.form.call(saved), ctx.rest[0]
    arguments = (list(call.inputs), list(call.states), list(call.weights), keys, *further)
    grads = iter(
        torch.ops.elman.recurrent_backward(list(cotangents[:-1]), ticket, *arguments, *ctx.rest)
    )
    gradients = ctx.form.gradients([next(grads) if want else None for want in wants])
    nothing = [None] * len(keys)
    return *map(list, gradients), nothing, *(None for _ in (*further, *ctx.rest))


recurrent.register_autograd(_back, setup_context=_keep)


def _laid_out(results: Sequence[Tensor], given: Sequence[Tensor], kept: bool) -> list[Tensor]:
    """As the fake implementation says: contiguous, each the first of memory of its own, which is
    no argument's, as that of a state that a step only hands on.

    Copies if they are kept for a backward: the compiler writes what comes next over an operator's
    results, and autograd may have saved them.
    """
    made: list[Tensor] = []
    taken = {value.untyped_storage().data_ptr() for value in given}
    for value in results:
        at = value.untyped_storage().data_ptr()
        if kept or value.storage_offset() or at in taken:
            made.append(value.detach().clone(memory_format=torch.contiguous_format))
        else:
            made.append(value.detach().contiguous())
        taken.add(at)
    return made


def _outputs_of(handed: str) -> tuple[bool, Outputs]:
    """Whether a group is the last, and what is asked of it."""
    return handed != BELOW, "states" if handed == "states" else None


def _run(given: _Given) -> tuple[list[Tensor], list[Tensor]]:
    """What an eager call gives, from leaves that ask for the wanted gradients."""
    group, form = group_of(given.name), Form(len(given.inputs), len(given.states))
    with _autograd(any(given.wants)):
        leaves = leaves_of(given.differentiable, given.wants)
        output, ends = _called(group, form.call(leaves), given)
    return leaves, [output, *ends]


@cache
def _default_dispatch_keys() -> DispatchKeys:
    """Dispatch keys that torch includes and excludes in a new thread.

    This thread may be inside ``inference_mode`` or an operator, now and when elman is imported.
    """
    with ThreadPoolExecutor(1) as reader:
        return reader.submit(dispatch_keys).result()


@contextmanager
def _autograd(wanted: bool) -> Iterator[None]:
    """Autograd inside an operator, whose body torch runs with the keys for it excluded."""
    with dispatching(_default_dispatch_keys()), torch.set_grad_enabled(wanted):
        yield


def _called(group: Group, call: Call, given: _Given) -> tuple[Tensor, Sequence[Tensor]]:
    """An eager call of a group; of padded sequences packed."""
    keys, lengths, handed = given.keys, given.lengths, given.handed
    mask, reset = given.mask, given.reset
    packing = padding = None
    per = draws(group.runners[0].cell.graph) if keys else ()
    at_steps = all(own.dim() == 4 for own in keys)
    inputs, states, weights, *_ = call
    steps, batch, _ = call.sizes
    counts = None if lengths is None else checked_lengths(lengths, batch, steps)
    if counts is not None and batch:
        padding = Padding.of(counts, steps, inputs[0].device)
        packing, count = Packing.of(padding.like), len(group.runners[0].cell.inputs)
        static = [packing.sorted(s, 0) for s in inputs[count:]]
        inputs = (*[padding.packed(x) for x in inputs[:count]], *static)
        states = tuple([packing.sorted(state, 0) for state in states])
        mask = None if mask is None else padding.packed(mask)
        reset = None if reset is None else padding.packed(reset)
        keys = packed_keys(keys, padding, packing)
    count = len(group.runners)
    each, many = len(states) // count, len(weights) // count
    starts = [states[k * each : (k + 1) * each] for k in range(count)]
    matrices = [weights[k * many : (k + 1) * many] for k in range(count)]
    options: list[Option] = [Draws(per, keys, at_steps)] if keys else []
    if mask is not None:
        options.append(Mask(mask))
    if reset is not None:
        options.append(Reset(reset, given.reset_to))
    packed = None if packing is None else packing.packed
    checkpoint = Checkpoint(*given.asked)
    output, last, _ = group.run(
        inputs, starts, matrices, given.engine, packed, options, checkpoint, *_outputs_of(handed)
    )
    if packing is None or padding is None:
        return output, last
    return padding.padded(output), [packing.unsorted(value, 0) for value in last]

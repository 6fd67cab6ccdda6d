"""Recurrent layers as operators that torch.compile and torch.export see as a whole.

Nothing is unrolled over time and nothing breaks the graph: a group of layers is one operator with a
known shape. What an operator runs is what an eager call runs (:class:`elman.nn.stack.Group`), with
its own autograd inside; the backward is an operator of its own, which finds what the forward kept
by a ticket, and runs the forward again where there is none (in another process, or too late).
"""

from __future__ import annotations

import ctypes
import itertools
import json
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from elman.compiler import graph_of
from elman.engines.call import Call, Form
from elman.engines.vjp import leaves_of, vjp
from elman.errors import EngineError
from elman.frontend.cell import find_cell, same_cell
from elman.ir.types import shape_size
from elman.nn.compile.dynamo import constant
from elman.nn.dispatch import Runner
from elman.nn.draws import Draws, draw_keys, packed_keys
from elman.nn.handing import Handing, Outputs, rules_for
from elman.nn.options import Option
from elman.nn.packing import Packing, Padding, checked_lengths
from elman.nn.reset import Reset
from elman.nn.stack import Group, Stack, run_layers
from elman.nn.states import StateForm
from elman.nn.using import wanted
from elman.passes.draws import SEQUENCE, draws
from elman.plan.checkpoint import Checkpoint
from elman.plan.spec import PlanOptions

_C: Any = torch._C
_USUAL = (_C._dispatch_tls_local_include_set(), _C._dispatch_tls_local_exclude_set())
_groups: weakref.WeakValueDictionary[str, Group] = weakref.WeakValueDictionary()
_own: dict[str, Group] = {}  # those that were made from their names, for exported programs
_kept: dict[int, tuple[list[Tensor], list[Tensor]]] = {}  # ticket -> leaves, results
_tickets = itertools.count(1)
_local = itertools.count(1)
_BELOW = "first"  # what a group hands out to one above


def name_of(group: Group) -> str:
    """The name by which operators find a group; other processes too, unless its cell is local."""
    if group.name is None:
        cell = group.runners[0].cell
        facts = {
            "cell": [cell.function.__module__, cell.function.__qualname__, cell.heads],
            "formula": cell.fingerprint,
            "dims": [dict(runner.dims) for runner in group.runners],
            "options": group.runners[0].options.to_json(),
            "beside": group.directions,
        }
        if cell.changes:
            facts["changes"] = [change.data for change in cell.changes]
        if cell.options != cell.defaults or "<" in cell.function.__qualname__:
            facts["local"] = next(_local)
        group.name = json.dumps(facts, sort_keys=True)
    _groups[group.name] = group
    return group.name


def group_of(name: str) -> Group:
    """The group of a name: one that lives in this process, else one made from its name.

    Raises:
        EngineError: the cell was local to another process.
        PickleError: there is no such cell, or it is another formula now.
    """
    found = _groups.get(name)
    if found is None:
        facts = json.loads(name)
        module, qualname, heads = facts["cell"]
        if "local" in facts:
            raise EngineError(f"cell {qualname} of {module} lived in another process, or has gone")
        found_cell = find_cell(module, qualname, {}, heads, facts.get("changes", ()))
        cell = same_cell(found_cell, facts.get("formula"))
        options = PlanOptions.from_json(facts["options"])
        runners = [Runner(cell, dims, options) for dims in facts["dims"]]
        found = _own[name] = _groups[name] = Group(runners, facts["beside"])
    return found


@constant
def names_of(own: int, between: bool) -> list[tuple[str, int]]:
    """Names of a module's groups that run one after another, and how many members each has.

    The compiler of torch 2.11 takes no modules as constants, but their ``id``, which is guarded.
    """
    stack: Stack = ctypes.cast(own, ctypes.py_object).value.stack
    return [(name_of(group), count) for group, count in stack.groups_for(between)]


@constant
def handing_of(own: int, outputs: Outputs) -> Handing:
    """What the last layer of a module hands out; the module by its ``id``."""
    stack: Stack = ctypes.cast(own, ctypes.py_object).value.stack
    return stack.handing(outputs)


@constant
def form_of(own: int) -> StateForm:
    """How the states of a module lie; the module by its ``id``."""
    stack: Stack = ctypes.cast(own, ctypes.py_object).value.stack
    return stack.form


@constant
def read_by(own: int, first: int) -> tuple[list[int], list[str]]:
    """Which inputs a layer of a module reads, and what it draws by; the module by its ``id``."""
    stack: Stack = ctypes.cast(own, ctypes.py_object).value.stack
    return list(stack.takes[first]), list(draws(stack.runners[first].cell.graph))


@constant
def transforming() -> bool:
    """Whether a transform of torch.func surrounds what is being compiled."""
    return _C._functorch.peek_interpreter_stack() is not None


@constant
def fixed_engine(own: str) -> str:
    """The engine that a module whose own is this has to use; fixed when it is compiled."""
    return wanted(own)


def run_compiled(
    module: Any,
    inputs: tuple[Tensor, ...],
    states: tuple[Tensor, ...],
    weights: Sequence[Sequence[Tensor]],
    engine: str,
    dropout: float,
    residual: bool,
    lengths: Any,
    reset: tuple[Tensor, str] | None,
    asked: Checkpoint,
    outputs: Outputs = None,
    per: tuple[str, ...] = (),
) -> tuple[list[Tensor], tuple[Tensor, ...]]:
    """:meth:`Stack.run` as the compiler traces it.

    Args:
        module: whose layers they are.
        inputs, states, weights, engine, dropout, residual: as there.
        lengths [B]: of padded sequences, or None.
        reset: mask [T, B] of resets, and to what; or None.
        asked: of the backward's memory.
        outputs: what the last layer hands out, as of a call.
        per: how often random numbers are drawn anew.
    """
    if transforming():
        raise EngineError(
            "torch.func transforms of recurrent layers run at full speed as they are, but not "
            "inside torch.compile: its operators have no rules for them. Compile what is around."
        )
    between = residual
    if dropout > 0.0:  # a branch, not a value: from its second value on, the share is a symbol
        between = True
    counts = None if lengths is None else torch.as_tensor(lengths)
    mask, to = (None, "") if reset is None else reset
    form = form_of(id(module))
    starts = form.rows(states)
    groups = names_of(id(module), between)
    memory = [asked.steps, asked.budget, len(groups)]
    like = inputs[0]
    keys: list[Tensor] = []
    if per:
        sizes = [len(weights), like.shape[0], like.shape[1]]
        keys = torch.ops.elman.keys(" ".join(per), sizes, like.dtype, like.device)

    def run_group(
        name: str, given: tuple[Tensor, ...], first: int, end: int
    ) -> tuple[Tensor, list[Tensor]]:
        flat = [state for each in starts[first:end] for state in each]
        matrices = [weight for each in weights[first:end] for weight in each]
        needs = torch.is_grad_enabled()
        takes, drawn = read_by(id(module), first)
        given = tuple([given[k] for k in takes])
        wants = [needs and tensor.requires_grad for tensor in (*given, *flat, *matrices)]
        handed = _BELOW if end < len(starts) else outputs or ""
        own = [each[first:end] for often, each in zip(per, keys) if often in drawn]
        made, *last, _ = torch.ops.elman.recurrent(
            given, flat, matrices, own, counts, mask, wants, name, engine, to, memory, handed
        )
        return made, last

    handing = handing_of(id(module), outputs)
    made, ends = run_layers(groups, run_group, inputs, dropout, residual, handing)
    return made, form.joined(ends)


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
    rows = [(batch,) if one == SEQUENCE else (steps, batch) for one in per.split()]
    return [torch.empty(lead, 2, *each, dtype=dtype, device=device) for each in rows]


@torch.library.custom_op("elman::recurrent", mutates_args=())
def recurrent(
    inputs: Sequence[Tensor],
    states: Sequence[Tensor],
    weights: Sequence[Tensor],
    keys: Sequence[Tensor],
    lengths: Tensor | None,
    reset: Tensor | None,
    wants: Sequence[bool],
    name: str,
    engine: str,
    reset_to: str,
    asked: Sequence[int],
    handed: str,
) -> list[Tensor]:
    """Run a group of layers.

    Args:
        inputs: [T, B, n] each; then static ones [B, n].
        states: [B, n] each, of all members of the group.
        weights: of all members.
        keys: of all members' random numbers in training, as of :class:`elman.nn.draws.Draws`.
        lengths [B]: steps of each sequence, or None.
        reset [T, B]: mask of resets, or None.
        wants: for each input, state and weight, whether its gradient may be asked for.
        name: of the group.
        engine: a name, or ``auto``.
        reset_to: ``zeros``, ``initial`` or ``learned``; nothing without resets.
        asked: of the backward's memory, as :class:`elman.plan.checkpoint.Checkpoint`.
        handed: ``first`` output alone, to a layer above; else all, ``states`` too, or nothing more.

    Returns:
        The output [T, B, n], the last states, and a ticket [1] for the backward.
    """
    leaves, results = _run(
        inputs,
        states,
        weights,
        keys,
        lengths,
        reset,
        wants,
        name,
        engine,
        reset_to,
        asked,
        handed,
    )
    ticket = torch.zeros(1, dtype=torch.long)
    if any(wants):
        number = next(_tickets)
        ticket.fill_(number)
        _kept[number] = (leaves, results)
        weakref.finalize(ticket, _kept.pop, number, None)
    return [*(_laid_out(result.detach()) for result in results), ticket]


def _laid_out(value: Tensor) -> Tensor:
    """As the fake implementation says: contiguous, and the first of its memory."""
    return value.clone() if value.storage_offset() else value.contiguous()


def _run(
    inputs: Sequence[Tensor],
    states: Sequence[Tensor],
    weights: Sequence[Tensor],
    keys: Sequence[Tensor],
    lengths: Tensor | None,
    reset: Tensor | None,
    wants: Sequence[bool],
    name: str,
    engine: str,
    reset_to: str,
    asked: Sequence[int],
    handed: str,
) -> tuple[list[Tensor], list[Tensor]]:
    """What an eager call gives, from leaves that ask for the wanted gradients."""
    group = group_of(name)
    form = Form(len(inputs), len(states))
    with _autograd(any(wants)):
        leaves = leaves_of((*inputs, *states, *weights), wants)
        output, ends = _called(
            group,
            form.call(leaves),
            keys,
            lengths,
            reset,
            engine,
            reset_to,
            Checkpoint(*asked),
            handed,
        )
    return leaves, [output, *ends]


@contextmanager
def _autograd(wanted: bool) -> Iterator[None]:
    """Autograd inside an operator, whose body torch runs with the keys for it excluded."""
    with _C._ForceDispatchKeyGuard(*_USUAL), torch.set_grad_enabled(wanted):
        yield


def _called(
    group: Group,
    call: Call,
    keys: Sequence[Tensor],
    lengths: Tensor | None,
    reset: Tensor | None,
    engine: str,
    reset_to: Any,
    asked: Checkpoint,
    handed: Any,
) -> tuple[Tensor, Sequence[Tensor]]:
    packing = padding = None
    per = draws(group.runners[0].cell.graph) if keys else ()
    inputs, states, weights, *_ = call
    if lengths is not None:
        steps, batch, _ = call.sizes
        counts = checked_lengths(lengths, batch, steps)
        padding = Padding.of(counts, steps, inputs[0].device)
        packing, count = Packing.of(padding.like), len(group.runners[0].cell.inputs)
        static = [packing.sorted(s, 0) for s in inputs[count:]]
        inputs = (*[padding.packed(x) for x in inputs[:count]], *static)
        states = tuple([packing.sorted(state, 0) for state in states])
        reset = None if reset is None else padding.packed(reset)
        keys = packed_keys(per, keys, padding, packing)
    count = len(group.runners)
    each, many = len(states) // count, len(weights) // count
    starts = [states[k * each : (k + 1) * each] for k in range(count)]
    matrices = [weights[k * many : (k + 1) * many] for k in range(count)]
    options: list[Option] = [Draws(per, keys)] if keys else []
    if reset is not None:
        options.append(Reset(reset, reset_to))
    packed = None if packing is None else packing.packed
    last_group, outputs = handed != _BELOW, handed if handed == "states" else None
    output, last, _ = group.run(
        inputs, starts, matrices, engine, packed, options, asked, last_group, outputs
    )
    if packing is None or padding is None:
        return output, last
    return padding.padded(output), [packing.unsorted(value, 0) for value in last]


@recurrent.register_fake
def _(
    inputs: Sequence[Tensor],
    states: Sequence[Tensor],
    weights: Sequence[Tensor],
    keys: Sequence[Tensor],
    lengths: Tensor | None,
    reset: Tensor | None,
    wants: Sequence[bool],
    name: str,
    engine: str,
    reset_to: str,
    asked: Sequence[int],
    handed: str,
) -> list[Tensor]:
    group, like = group_of(name), inputs[0]
    last = group.runners[-1]
    rules = rules_for(last.cell, handed != _BELOW, "states" if handed == "states" else None)
    width = shape_size(graph_of(last.cell, rules).output_shape, dict(last.dims))
    if group.directions:
        width = (2 * width[0],)
    output = like.new_empty(*like.shape[:2], *width)
    ends = [state.new_empty(state.shape) for state in states]
    return [output, *ends, like.new_empty(1, dtype=torch.long, device="cpu")]


@torch.library.custom_op("elman::recurrent_backward", mutates_args=())
def recurrent_backward(
    cotangents: Sequence[Tensor | None],
    ticket: Tensor,
    inputs: Sequence[Tensor],
    states: Sequence[Tensor],
    weights: Sequence[Tensor],
    keys: Sequence[Tensor],
    lengths: Tensor | None,
    reset: Tensor | None,
    wants: Sequence[bool],
    name: str,
    engine: str,
    reset_to: str,
    asked: Sequence[int],
    handed: str,
) -> list[Tensor]:
    """Gradients of what is wanted, in order; arguments as of :func:`recurrent`.

    Args:
        cotangents: of the output and the last states; None for zero.
        ticket: what the forward returned last.
    """
    kept = _kept.pop(int(ticket), None)
    if kept is None:
        kept = _run(
            inputs,
            states,
            weights,
            keys,
            lengths,
            reset,
            wants,
            name,
            engine,
            reset_to,
            asked,
            handed,
        )
    leaves, results = kept
    gradients = vjp(results, leaves, cotangents, wants)
    return [
        torch.zeros_like(leaf) if grad is None else grad
        for leaf, grad, want in zip(leaves, gradients, wants, strict=True)
        if want
    ]


@recurrent_backward.register_fake
def _(
    cotangents: Sequence[Tensor | None],
    ticket: Tensor,
    inputs: Sequence[Tensor],
    states: Sequence[Tensor],
    weights: Sequence[Tensor],
    keys: Sequence[Tensor],
    lengths: Tensor | None,
    reset: Tensor | None,
    wants: Sequence[bool],
    *_: Any,
) -> list[Tensor]:
    tensors = zip((*inputs, *states, *weights), wants, strict=True)
    return [value.new_empty(value.shape) for value, want in tensors if want]


def _keep(ctx: Any, inputs: Any, output: Any) -> None:
    xs, states, weights, keys, lengths, reset, *ctx.rest = inputs
    ctx.form, ctx.there = Form(len(xs), len(states)), (lengths is not None, reset is not None)
    further = [value for value in (lengths, reset) if value is not None]
    ctx.keys = len(keys)
    ctx.save_for_backward(output[-1], *keys, *further, *xs, *states, *weights)
    ctx.set_materialize_grads(False)


def _back(ctx: Any, cotangents: Sequence[Tensor | None]) -> Any:
    ticket, *saved = ctx.saved_tensors
    keys, saved = saved[: ctx.keys], saved[ctx.keys :]
    lengths, reset = (saved.pop(0) if there else None for there in ctx.there)
    call, wants = ctx.form.call(saved), ctx.rest[0]
    arguments = (list(call.inputs), list(call.states), list(call.weights), keys, lengths, reset)
    grads = iter(
        torch.ops.elman.recurrent_backward(list(cotangents[:-1]), ticket, *arguments, *ctx.rest)
    )
    gradients = ctx.form.gradients([next(grads) if want else None for want in wants])
    nothing = [None] * len(keys)
    return *map(list, gradients), nothing, *(None for _ in (lengths, reset, *ctx.rest))


recurrent.register_autograd(_back, setup_context=_keep)

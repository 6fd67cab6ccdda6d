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
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from elman.errors import EngineError
from elman.frontend.cell import find_cell, same_cell
from elman.ir.types import shape_size
from elman.nn.asking import wanted
from elman.nn.packing import Packing, Padding, checked
from elman.nn.runner import Runner
from elman.nn.stack import Group, Stack

_C: Any = torch._C
_USUAL = (_C._dispatch_tls_local_include_set(), _C._dispatch_tls_local_exclude_set())
_groups: weakref.WeakValueDictionary[str, Group] = weakref.WeakValueDictionary()
_own: dict[str, Group] = {}  # those that were made from their names, for exported programs
_kept: dict[int, tuple[list[Tensor], list[Tensor]]] = {}  # ticket -> leaves, results
_tickets = itertools.count(1)
_local = itertools.count(1)


def name_of(group: Group) -> str:
    """The name by which operators find a group; other processes too, unless its cell is local."""
    if group.name is None:
        cell = group.runners[0].cell
        facts = {
            "cell": [cell.function.__module__, cell.function.__qualname__, cell.heads],
            "formula": cell.fingerprint,
            "dims": [dict(runner.dims) for runner in group.runners],
            "tape": group.runners[0].tape,
            "beside": group.beside,
        }
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
        cell = same_cell(find_cell(module, qualname, {}, heads), facts.get("formula"))
        runners = [Runner(cell, dims, facts["tape"]) for dims in facts["dims"]]
        found = _own[name] = _groups[name] = Group(runners, facts["beside"])
    return found


def _constant(function: Callable[..., Any]) -> Callable[..., Any]:
    """What torch.compiler.assume_constant_result does, which would import the compiler now."""
    function._dynamo_marked_constant = True
    return function


@_constant
def names_of(own: int, between: bool) -> list[tuple[str, int]]:
    """Names of a module's groups that run one after another, and how many members each has.

    The compiler of torch 2.11 takes no modules as constants, but their ``id``, which is guarded.
    """
    stack: Stack = ctypes.cast(own, ctypes.py_object).value.stack
    return [(name_of(group), len(group.runners)) for group in stack.groups_for(between)]


@_constant
def transforming() -> bool:
    """Whether a transform of torch.func surrounds what is being compiled."""
    return _C._functorch.peek_interpreter_stack() is not None


def as_tensor(lengths: Any) -> Tensor | None:
    """Lengths as an operator takes them."""
    return None if lengths is None else torch.as_tensor(lengths)


@_constant
def fixed_engine(own: str) -> str:
    """The engine that a module whose own is this has to use; fixed when it is compiled."""
    return wanted(own)


def run_compiled(
    module: Any,
    inputs: Sequence[Tensor],
    states: Sequence[Sequence[Tensor]],
    weights: Sequence[Sequence[Tensor]],
    engine: str,
    dropout: float,
    residual: bool,
    lengths: Tensor | None,
) -> tuple[Tensor, list[tuple[Tensor, ...]]]:
    """:meth:`Stack.run` as the compiler traces it; padded sequences may have lengths [B]."""
    if transforming():
        raise EngineError(
            "torch.func transforms of recurrent layers run at full speed as they are, but not "
            "inside torch.compile: its operators have no rules for them. Compile what is around."
        )
    ends: list[tuple[Tensor, ...]] = []
    at, out = 0, inputs[0]
    between = residual
    if dropout > 0.0:  # a branch, not a value: from its second value on, the share is a symbol
        between = True
    groups = names_of(id(module), between)
    for number, (name, count) in enumerate(groups):
        given = [out, *inputs[1:]]
        flat = [state for own in states[at : at + count] for state in own]
        matrices = [weight for own in weights[at : at + count] for weight in own]
        needs = torch.is_grad_enabled()
        wants = [needs and tensor.requires_grad for tensor in (*given, *flat, *matrices)]
        made, *last, _ = torch.ops.elman.recurrent(
            given, flat, matrices, lengths, wants, name, engine
        )
        each = len(last) // count
        ends.extend(tuple(last[k : k + each]) for k in range(0, len(last), each))
        at += count
        if dropout > 0.0 and number < len(groups) - 1:
            made = torch.dropout(made, dropout, True)
        out = made + out if residual and number else made
    return out, ends


@torch.library.custom_op("elman::recurrent", mutates_args=())
def recurrent(
    inputs: Sequence[Tensor],
    states: Sequence[Tensor],
    weights: Sequence[Tensor],
    lengths: Tensor | None,
    wants: Sequence[bool],
    name: str,
    engine: str,
) -> list[Tensor]:
    """Run a group of layers.

    Args:
        inputs: [T, B, n] each.
        states: [B, n] each, of all members of the group.
        weights: of all members.
        lengths [B]: steps of each sequence, or None.
        wants: for each input, state and weight, whether its gradient may be asked for.
        name: of the group.
        engine: a name, or ``auto``.

    Returns:
        The output [T, B, n], the last states, and a ticket [1] for the backward.
    """
    leaves, results = _run(inputs, states, weights, lengths, wants, name, engine)
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
    lengths: Tensor | None,
    wants: Sequence[bool],
    name: str,
    engine: str,
) -> tuple[list[Tensor], list[Tensor]]:
    """What an eager call gives, from leaves that ask for the wanted gradients."""
    group = group_of(name)
    given = (*inputs, *states, *weights)
    with _autograd(any(wants)):
        leaves = [t.detach().requires_grad_(w) for t, w in zip(given, wants, strict=True)]
        first, second = len(inputs), len(inputs) + len(states)
        output, ends = _called(
            group, leaves[:first], leaves[first:second], leaves[second:], lengths, engine
        )
    return leaves, [output, *ends]


@contextmanager
def _autograd(wanted: bool) -> Iterator[None]:
    """Autograd inside an operator, whose body torch runs with the keys for it excluded."""
    with _C._ForceDispatchKeyGuard(*_USUAL), torch.set_grad_enabled(wanted):
        yield


def _called(
    group: Group,
    inputs: list[Tensor],
    states: list[Tensor],
    weights: list[Tensor],
    lengths: Tensor | None,
    engine: str,
) -> tuple[Tensor, list[Tensor]]:
    packing = padding = None
    sizes = inputs[0].shape[0], inputs[0].shape[1]
    if lengths is not None:
        padding = Padding.of(checked(lengths, sizes[1], sizes[0]), sizes[0], False, lengths.device)
        packed = [padding.packed(x) for x in inputs]
        packing = Packing.of(packed[0])
        inputs = [part.data for part in packed]
        states = [packing.sorted(state, 0) for state in states]
    ragged = None if packing is None else packing.ragged
    count = len(group.runners)
    each, many = len(states) // count, len(weights) // count
    own = [tuple(states[k * each : (k + 1) * each]) for k in range(count)]
    matrices = [weights[k * many : (k + 1) * many] for k in range(count)]
    if count == 1:
        output, last = group.runners[0](inputs, own[0], matrices[0], engine, ragged=ragged)
        ends = [last]
    else:
        output, ends = group(inputs, own, matrices, engine, ragged)
    flat = [value for end in ends for value in end]
    if packing is None or padding is None:
        return output, flat
    return padding.padded(output, sizes), [packing.unsorted(value, 0) for value in flat]


@recurrent.register_fake
def _(
    inputs: Sequence[Tensor],
    states: Sequence[Tensor],
    weights: Sequence[Tensor],
    lengths: Tensor | None,
    wants: Sequence[bool],
    name: str,
    engine: str,
) -> list[Tensor]:
    group, like = group_of(name), inputs[0]
    last = group.runners[-1]
    width = shape_size(last.cell.graph.output.shape, dict(last.dims))
    if group.beside:
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
    lengths: Tensor | None,
    wants: Sequence[bool],
    name: str,
    engine: str,
) -> list[Tensor]:
    """Gradients of what is wanted, in order; arguments as of :func:`recurrent`.

    Args:
        cotangents: of the output and the last states; None for zero.
        ticket: what the forward returned last.
    """
    kept = _kept.pop(int(ticket), None)
    if kept is None:
        kept = _run(inputs, states, weights, lengths, wants, name, engine)
    leaves, results = kept
    pairs = [
        (value, d)
        for value, d in zip(results, cotangents, strict=True)
        if d is not None and value.requires_grad
    ]
    wanted = [leaf for leaf in leaves if leaf.requires_grad]
    if not pairs:
        return [torch.zeros_like(leaf) for leaf in wanted]
    roots, ds = zip(*pairs, strict=True)
    found = torch.autograd.grad(roots, wanted, ds, allow_unused=True)
    return [
        torch.zeros_like(leaf) if grad is None else grad
        for leaf, grad in zip(wanted, found, strict=True)
    ]


@recurrent_backward.register_fake
def _(
    cotangents: Sequence[Tensor | None],
    ticket: Tensor,
    inputs: Sequence[Tensor],
    states: Sequence[Tensor],
    weights: Sequence[Tensor],
    lengths: Tensor | None,
    wants: Sequence[bool],
    name: str,
    engine: str,
) -> list[Tensor]:
    given = (*inputs, *states, *weights)
    return [value.new_empty(value.shape) for value, want in zip(given, wants) if want]


def _keep(ctx: Any, inputs: Any, output: Any) -> None:
    xs, states, weights, lengths, wants, name, engine = inputs
    ctx.counts = (len(xs), len(states), len(weights))
    ctx.wants, ctx.name, ctx.engine, ctx.has_lengths = wants, name, engine, lengths is not None
    ctx.save_for_backward(
        output[-1], *xs, *states, *weights, *([lengths] if ctx.has_lengths else [])
    )
    ctx.set_materialize_grads(False)


def _back(ctx: Any, cotangents: Sequence[Tensor | None]) -> Any:
    ticket, *saved = ctx.saved_tensors
    lengths = saved.pop() if ctx.has_lengths else None
    first, second, _ = itertools.accumulate(ctx.counts)
    given = (saved[:first], saved[first:second], saved[second:])
    found = iter(
        torch.ops.elman.recurrent_backward(
            list(cotangents[:-1]), ticket, *given, lengths, ctx.wants, ctx.name, ctx.engine
        )
    )
    grads = [next(found) if want else None for want in ctx.wants]
    return grads[:first], grads[first:second], grads[second:], None, None, None, None


recurrent.register_autograd(_back, setup_context=_keep)

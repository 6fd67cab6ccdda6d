"""Recurrent layers as operators that torch.compile and torch.export see as a whole.

Time is not unrolled and the graph does not break: a group of layers is one operator with a known
shape. It runs the eager call (:class:`elman.nn.execute.group.Group`), with autograd inside; the
backward is a second operator, which finds the forward's tensors by a ticket, and runs the forward
again if they are gone (in another process, or after a second backward).
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
from elman.engines.precision import request_precision
from elman.engines.vjp import leaves_of, vjp
from elman.errors import EngineError
from elman.ir.types import shape_size
from elman.nn.autograd.transforms import transforming
from elman.nn.compile.names import facts_of, group_of, names_of
from elman.nn.execute.group import Group
from elman.nn.layout.packing import Rows, check_lengths
from elman.nn.options.bound import BoundCall, StepValues
from elman.nn.options.draws import draw_keys
from elman.nn.options.outputs import Outputs, RunSettings, rules_for, run_layers
from elman.nn.options.registry import STEP_OPTIONS
from elman.plan.checkpoint import Checkpoint
from elman.torch_internals import DispatchKeys, dispatch_keys, dispatching

_saved_results: dict[int, tuple[list[Tensor], list[Tensor]]] = {}  # ticket -> leaves, results
_tickets = itertools.count(1)
BELOW = "first"  # ``outputs`` of a group below another one: its first output


@torch.library.custom_op("elman::keys", mutates_args=(), tags=(torch.Tag.nondeterministic_seeded,))
def draw_keys_operator(
    ranks: Sequence[int], sizes: Sequence[int], dtype: torch.dtype, device: torch.device
) -> list[Tensor]:
    """Draw the keys of a call with torch's generator; the compiler has its own.

    Args:
        ranks, sizes: number of sizes of each tensor of keys; all sizes.
        dtype, device: of the call.
    """
    return draw_keys(_cut(ranks, sizes), dtype, device)


@draw_keys_operator.register_fake
def _(
    ranks: Sequence[int], sizes: Sequence[int], dtype: torch.dtype, device: torch.device
) -> list[Tensor]:
    return [torch.empty(size, dtype=dtype, device=device) for size in _cut(ranks, sizes)]


def _cut(ranks: Sequence[int], sizes: Sequence[int]) -> list[Sequence[int]]:
    return [sizes[end - rank : end] for rank, end in zip(ranks, itertools.accumulate(ranks))]


def draw_traced_keys(
    sizes: Sequence[Sequence[int]], dtype: torch.dtype, device: torch.device
) -> list[Tensor]:
    """:func:`draw_keys` as the compiler traces it."""
    flat = [size for layer_sizes in sizes for size in layer_sizes]
    return torch.ops.elman.keys([len(layer_sizes) for layer_sizes in sizes], flat, dtype, device)


class _Operands(NamedTuple):
    """Arguments of the operators, in order.

    Attributes:
        inputs: [T, B, n] each; then static ones [B, n].
        states: [B, n] each, of all members of the group.
        weights: of all members.
        values: values of options in use, one option after another.
        lengths [B]: steps of each sequence, or None.
        wants: for each input, state and weight, whether it may get a gradient.
        name: of the group.
        engine: a name, or ``auto``.
        options: for each option in use its name, number of values and facts, as words; ``;``
            between options.
        memory: of the backward, see :class:`elman.plan.checkpoint.Checkpoint`.
        outputs: ``first``: the first output alone, for a layer above; else all outputs; ``states``:
            states, too.
        precision: see :func:`request_precision`.
    """

    inputs: Sequence[Tensor]
    states: Sequence[Tensor]
    weights: Sequence[Tensor]
    values: Sequence[Tensor]
    lengths: Tensor | None
    wants: Sequence[bool]
    name: str
    engine: str
    options: str
    memory: Sequence[int]
    outputs: str
    precision: str

    @property
    def differentiable(self) -> tuple[Tensor, ...]:
        """The tensors that ``wants`` describes."""
        return (*self.inputs, *self.states, *self.weights)

    @property
    def steps(self) -> list[StepValues]:
        """The values of options in use."""
        step_values: list[StepValues] = []
        values = iter(self.values)
        for words in filter(None, self.options.split(";")):
            option, count, *facts = words.split()
            tensors = tuple([next(values) for _ in range(int(count))])
            step_values.append(StepValues(option, tuple(facts), tensors))
        return step_values


_SCHEMA = (
    "Tensor[] inputs, Tensor[] states, Tensor[] weights, Tensor[] values, Tensor? lengths, "
    "bool[] wants, str name, str engine, str options, int[] memory, str outputs, "
    "str precision"
)


@torch.library.custom_op("elman::recurrent", mutates_args=(), schema=f"({_SCHEMA}) -> Tensor[]")
def recurrent(*arguments: Any) -> list[Tensor]:
    """Run a group of layers.

    Returns:
        The output [T, B, n], the last states, and a ticket [1] for the backward.
    """
    operands = _Operands(*arguments)
    leaves, results = _run(operands)
    ticket = torch.zeros(1, dtype=torch.long)
    if any(operands.wants):
        number = next(_tickets)
        ticket.fill_(number)
        _saved_results[number] = (leaves, results)
        # the ticket dies with the autograd graph, and the saved tensors with the ticket
        weakref.finalize(ticket, _saved_results.pop, number, None)
    return [*_detach_results(results, operands.differentiable, any(operands.wants)), ticket]


@recurrent.register_fake
def _(*arguments: Any) -> list[Tensor]:
    operands = _Operands(*arguments)
    group, like = group_of(operands.name), operands.inputs[0]
    last = group.runners[-1]
    rules = rules_for(last.cell, *_outputs_of(operands.outputs))
    width = shape_size(graph_of(last.cell, rules).output_shape, dict(last.dims))
    if group.directions:
        width = (2 * width[0],)
    output = like.new_empty(*like.shape[:2], *width)
    ends = [state.new_empty(state.shape) for state in operands.states]
    return [output, *ends, like.new_empty(1, dtype=torch.long, device="cpu")]


@torch.library.custom_op(
    "elman::recurrent_backward",
    mutates_args=(),
    schema=f"(Tensor?[] cotangents, Tensor ticket, {_SCHEMA}) -> Tensor[]",
)
def recurrent_backward(
    cotangents: Sequence[Tensor | None], ticket: Tensor, *arguments: Any
) -> list[Tensor]:
    """Compute the wanted gradients, in order.

    Args:
        cotangents: of the output and the last states; None for zero.
        ticket: the forward's last result.
        arguments: the forward's.
    """
    operands = _Operands(*arguments)
    saved = _saved_results.pop(int(ticket), None)
    leaves, results = _run(operands) if saved is None else saved
    with _autograd(False):  # checkpointed kernels enable autograd themselves, in their backward
        gradients = vjp(results, leaves, cotangents, operands.wants)
    places = [
        torch.zeros_like(leaf) if grad is None else grad
        for leaf, grad, is_wanted in zip(leaves, gradients, operands.wants, strict=True)
        if is_wanted
    ]
    passed_on = [d for d in cotangents if d is not None]  # a step may return them unchanged
    return _detach_results(places, (*operands.differentiable, *passed_on), False)


@recurrent_backward.register_fake
def _(_: Any, __: Any, *arguments: Any) -> list[Tensor]:
    operands = _Operands(*arguments)
    tensors = zip(operands.differentiable, operands.wants, strict=True)
    return [value.new_empty(value.shape) for value, is_wanted in tensors if is_wanted]


def _setup_context(ctx: Any, inputs: Any, output: Any) -> None:
    arguments = _Operands(*inputs)
    ctx.form, ctx.values = Form(len(arguments.inputs), len(arguments.states)), len(arguments.values)
    ctx.settings = inputs[5:]
    tensors = *arguments.values, *arguments.differentiable
    ctx.save_for_backward(output[-1], arguments.lengths, *tensors)
    ctx.set_materialize_grads(False)


def _backward(ctx: Any, cotangents: Sequence[Tensor | None]) -> Any:
    ticket, lengths, *saved = ctx.saved_tensors
    values, call = saved[: ctx.values], ctx.form.call(saved[ctx.values :])
    arguments = (list(call.inputs), list(call.states), list(call.weights), values, lengths)
    run = torch.ops.elman.recurrent_backward
    grads = iter(run(list(cotangents[:-1]), ticket, *arguments, *ctx.settings))
    gradients = ctx.form.gradients(
        [next(grads) if is_wanted else None for is_wanted in ctx.settings[0]]
    )
    return *map(list, gradients), [None] * len(values), None, *(None for _ in ctx.settings)


recurrent.register_autograd(_backward, setup_context=_setup_context)


def _detach_results(
    results: Sequence[Tensor], arguments: Sequence[Tensor], saved: bool
) -> list[Tensor]:
    """Make results contiguous, each in memory of its own, as the fake implementation promises; a
    state that a step returns unchanged shares memory with an argument.

    Results that are kept for a backward are copied: the compiler reuses the memory of an operator's
    results, and autograd may have saved them.
    """
    copies: list[Tensor] = []
    storages = {value.untyped_storage().data_ptr() for value in arguments}
    for value in results:
        at = value.untyped_storage().data_ptr()
        if saved or value.storage_offset() or at in storages:
            copies.append(value.detach().clone(memory_format=torch.contiguous_format))
        else:
            copies.append(value.detach().contiguous())
        storages.add(at)
    return copies


def _outputs_of(specification: str) -> tuple[bool, Outputs]:
    """Whether a group is the last, and the ``outputs`` of the call."""
    return specification != BELOW, "states" if specification == "states" else None


def _run(arguments: _Operands) -> tuple[list[Tensor], list[Tensor]]:
    """Run the eager call of a group on new leaves, which require the wanted gradients."""
    group, form = group_of(arguments.name), Form(len(arguments.inputs), len(arguments.states))
    with _autograd(any(arguments.wants)), request_precision(arguments.precision):
        leaves = leaves_of(arguments.differentiable, arguments.wants)
        output, ends = _call_group(group, form.call(leaves), arguments)
    return leaves, [output, *ends]


@cache
def _default_dispatch_keys() -> DispatchKeys:
    """Dispatch keys that torch includes and excludes in a new thread.

    This thread may be inside ``inference_mode`` or an operator, now and when elman is imported.
    """
    with ThreadPoolExecutor(1) as reader:
        return reader.submit(dispatch_keys).result()


@contextmanager
def _autograd(needed: bool) -> Iterator[None]:
    """Enable autograd inside an operator; torch runs its body with autograd's keys excluded."""
    with dispatching(_default_dispatch_keys()), torch.set_grad_enabled(needed):
        yield


def _call_group(group: Group, call: Call, arguments: _Operands) -> tuple[Tensor, Sequence[Tensor]]:
    """Run an eager call of a group; pack padded sequences."""
    rows, steps = None, arguments.steps
    inputs, states, weights, *_ = call
    length, batch, _ = call.sizes
    counts = None if arguments.lengths is None else check_lengths(arguments.lengths, batch, length)
    if counts is not None and batch:
        rows = Rows.of_lengths(counts, length, inputs[0].device)
        varying = len(group.runners[0].cell.inputs)
        static = [rows.sort(value, 0) for value in inputs[varying:]]
        inputs = (*[rows.pack(x) for x in inputs[:varying]], *static)
        states = tuple([rows.sort(state, 0) for state in states])
        steps = [STEP_OPTIONS[values.option].pack(values, rows) for values in steps]
    packed, count = None if rows is None else rows.packed, len(group.runners)
    state_count, weight_count = len(states) // count, len(weights) // count
    calls = [
        Call(
            inputs,
            states[k * state_count :][:state_count],
            weights[k * weight_count :][:weight_count],
            packed,
        )
        for k in range(count)
    ]
    last, outputs = _outputs_of(arguments.outputs)
    rules = group.rules(steps, last, outputs)
    calls = group.calls(calls, steps, rules)
    bound = group.bind(calls, arguments.engine, rules, Checkpoint(*arguments.memory))
    output, ends, _ = group.run(bound, calls)
    if rows is None:
        return output, ends
    return rows.unpack(output), [rows.unsort(value, 0) for value in ends]


def trace_layers(
    call: BoundCall, settings: RunSettings, precision: str
) -> tuple[list[Tensor], tuple[Tensor, ...]]:
    """:meth:`elman.nn.execute.stack.Stack.run` as the compiler traces it.

    Args:
        call: in the inner layout; padded sequences are packed inside the operators.
        settings: of the call; an engine is named, or ``auto``.
        precision: see :func:`request_precision`.

    Raises:
        EngineError: a transform of torch.func surrounds the compiled code.
    """
    if transforming():
        raise EngineError(
            "torch.func transforms of recurrent layers run at full speed as they are, but not "
            "inside torch.compile: its operators have no rules for them. Compile what is around."
        )
    key, inputs, weights = call.runtime.stack_key, call.inputs, call.weights
    layout, form, takes, draws = facts_of(key, settings.outputs)
    starts = form.rows(call.states)
    between = settings.residual
    if settings.dropout > 0.0:  # a branch, since the compiler makes a dropout that changes a symbol
        between = True
    groups = names_of(key, between)
    memory = [settings.checkpoint.steps, settings.checkpoint.budget, len(groups)]

    def run_group(
        name: str, group_inputs: tuple[Tensor, ...], first: int, end: int
    ) -> tuple[Tensor, list[Tensor]]:
        states = [state for start in starts[first:end] for state in start]
        matrices = [weight for start in weights[first:end] for weight in start]
        needs = torch.is_grad_enabled()
        group_inputs = tuple([group_inputs[k] for k in takes[first]])
        wants = [needs and tensor.requires_grad for tensor in (*group_inputs, *states, *matrices)]
        outputs = BELOW if end < len(starts) else settings.outputs or ""
        options: list[str] = []
        tensors: list[Tensor] = []
        for step in call.steps:
            values = STEP_OPTIONS[step.option].for_layers(step, first, end, draws[first])
            if values is not None:
                words = values.option, str(len(values.tensors)), *values.facts
                options.append(" ".join(words))
                tensors += values.tensors
        output, *last, _ = torch.ops.elman.recurrent(
            group_inputs,
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
            precision,
        )
        return output, last

    output, ends = run_layers(groups, run_group, inputs, settings, layout)
    return output, form.join(ends)

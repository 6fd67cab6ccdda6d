"""Modules whose values are integers of few bits: how far values reach, and the rounded formulas."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from elman.engines.call import Call
from elman.engines.reference.engine import steps
from elman.errors import InputError
from elman.frontend.cell import Cell
from elman.frontend.changes import Integers
from elman.integers.rewrite import Bits, Range, matrices, rewrite, values_of
from elman.nn.call.plan import Arguments, CallPlan
from elman.nn.call.runtime import CalledModule
from elman.nn.call.weights import Grid
from elman.nn.execute.layer import Formula, Runner
from elman.nn.layout.layout import device_type

_ANY: Range = (0.5, 1.0)  # in which every function is defined
_MOST_TERMS = 1040  # of a product: sums of 127 · 127 stay below 2^24


def check_formula(runner: Runner, bits: Bits, residual: bool) -> None:
    """Raise InputError for a formula that has no form in integers, and for products whose sums have
    more terms than are exact."""
    cell = runner.cell
    if cell.heads > 1:
        raise InputError(
            f"quantize=: {cell.name} has {cell.heads} heads, and is rounded without any"
        )
    if residual:
        raise InputError("quantize= has no residual connections: their sums are not rounded")
    if any(value.op == "draw" for value in cell.graph.walk()):
        raise InputError(f"quantize=: {cell.name} draws random numbers, which are no integers")
    rewrite(cell.graph, [_ANY] * count_values(cell), bits, dict(runner.dims))
    by_row = matrices(cell.graph)
    for weight, shape in zip(cell.weights, runner.weight_shapes, strict=True):
        terms = max(shape[0 if not by_row[weight.name] else 1 :]) if weight.name in by_row else 0
        if terms > _MOST_TERMS:
            raise InputError(
                f"quantize=: products with {weight} of {cell.name} are sums of {terms} terms, and "
                f"those of more than {_MOST_TERMS} are not exact in float32"
            )


def count_values(cell: Cell) -> int:
    """The number of values whose ranges the rounded formula of a cell needs."""
    return len(values_of(cell.graph))


def rounded(runner: Runner, bits: Bits, ranges: Sequence[Range]) -> Cell:
    """The cell of a layer with integers."""
    change = Integers(bits.weights, bits.operands, bits.states, tuple(ranges), runner.dims)
    return runner.cell.with_changes(change)


def grids(cell: Cell, bits: Bits) -> list[Grid | None]:
    """How each weight of a cell is rounded."""
    by_row = matrices(cell.graph)
    return [
        Grid(bits.weights, by_row[entry.name]) if entry.name in by_row else None
        for entry in cell.weights
    ]


@torch.no_grad()
def observe(module: CalledModule, x: Any, formulas: Sequence[Formula]) -> list[list[Range]]:
    """Run a module step by step, and see how far each value of each layer reaches.

    Args:
        module: with the runtime of its formulas as written.
        x: its input.
        formulas: of the layers.

    Returns:
        The range of each of :func:`elman.integers.rewrite.values_of`, of each layer.

    Raises:
        InputError: a value is not finite, or x is packed.
    """
    weights = module._weights()
    arguments = Arguments(x, None, {}, weights)
    plan = CallPlan(module, arguments, "reference", device_type(weights[0] or x))
    if plan.layout.packed:
        raise InputError(
            "calibrate takes padded sequences", "torch.nn.utils.rnn.pad_packed_sequence(x)"
        )
    call = plan.enter(module, arguments)
    if 0 in call.inputs[0].shape[:2]:
        raise InputError("calibrate needs a step of a sample", "typical inputs, x [T, B, I]")
    stack, directions = module.runtime.stack, plan.directions
    states = stack.form.rows(call.states)
    out, found = call.inputs[0], list[list[Range]]()
    for layer, (cell, *_) in enumerate(formulas):
        seen: dict[int, Range] = {}
        inputs, outputs = (out, *call.inputs[1:]), list[Tensor]()
        for k in range(layer * directions, (layer + 1) * directions):
            read = [inputs[at] for at in stack.takes[k]]
            backwards = k % directions > 0
            outputs.append(_run(stack.runners[k], read, states[k], weights[k], backwards, seen))
        above = torch.cat(outputs, -1)
        out = above
        if not all(map(math.isfinite, [end for pair in seen.values() for end in pair])):
            raise InputError(f"calibrate: {cell.name} has values that are not finite")
        found.append([*seen.values()])
    return found


def _run(
    runner: Runner,
    inputs: Sequence[Tensor],
    states: Sequence[Tensor],
    weights: Sequence[Tensor],
    backwards: bool,
    seen: dict[int, Range],
) -> Tensor:
    """One layer in one direction; ``seen`` grows by what values reach."""
    graph, count = runner.cell.graph, len(runner.cell.inputs)
    T = inputs[0].shape[0]
    rows = [x.flip(0) if backwards else x for x in inputs[:count]]
    rows += [x.expand(T, *x.shape) for x in inputs[count:]]
    values = values_of(graph)
    outputs: list[Tensor] = []
    call = Call(tuple(rows), tuple(states), tuple(weights))
    for step, *_ in steps(graph, dict(runner.dims), call):
        outputs.append(step[graph.output])
        for number, value in enumerate(values):
            is_endless = value.op == "const" and not math.isfinite(value.number)
            _widen(seen, number, torch.zeros(1) if is_endless else step[value])
    out = torch.stack(outputs)
    return out.flip(0) if backwards else out


def _widen(seen: dict[int, Range], number: int, value: Tensor) -> None:
    if value.numel():
        low, high = float(value.min()), float(value.max())
        before = seen.get(number, (low, high))
        seen[number] = min(low, before[0]), max(high, before[1])
    else:
        seen.setdefault(number, (0.0, 0.0))

"""Costs of a layer: the memory of a training step, and its work."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from elman.explaining.layers import Layer, LayerChoice, choice_of, program_of
from elman.plan.build import output_is_state, program
from elman.plan.checkpoint import Sizes
from elman.plan.cost import (
    backward_work,
    forward_work,
    item_bytes,
    repeated_products,
    state_bytes,
    tape_bytes,
)
from elman.plan.prices import width
from elman.plan.program import Program
from elman.tuning.choose import Choice


def step_bytes(layers: Sequence[Layer], measure: bool = True) -> int | None:
    """``Explanation.step_bytes`` alone: nothing is run where an engine is asked for by name.

    Args:
        layers: as they would run.
        measure: whether engines are timed where the choice is not known yet.
    """
    choices = [(layer, choice_of(layer, measure)) for layer in layers]
    tapes = tape_costs(choices)
    if tapes is None:
        return None
    programs = {layer.name: program_of(layer, choice) for layer, choice in choices}
    return peak(layers, tapes) + surrounding_bytes(choices, programs)


class TapeCost(NamedTuple):
    """Bytes that one call of a layer keeps for its backward.

    Attributes:
        forward: kept by the forward.
        span: recomputed at a time by the backward.
        unbounded: kept without ``checkpoint=``.
    """

    forward: int
    span: int
    unbounded: int


def tape_costs(choices: Sequence[tuple[Layer, LayerChoice]]) -> list[TapeCost] | None:
    """Tape costs of all layers; None if one is unknown."""
    tapes = [tape_cost(layer, choice) for layer, choice in choices]
    complete = [tape for tape in tapes if tape is not None]
    return complete if len(complete) == len(tapes) else None


def tape_cost(layer: Layer, choice: LayerChoice) -> TapeCost | None:
    """Tape cost of a layer; None if its engine does not tell."""
    if not layer.spec.training:
        return TapeCost(0, 0, 0)
    sizes = _sizes(layer, choice)
    if sizes is None:
        return None
    unbounded = sizes.whole(layer.steps)
    if not layer.checkpoint:
        return TapeCost(unbounded, 0, unbounded)
    return TapeCost(
        sizes.kept(layer.steps, layer.checkpoint), sizes.whole(layer.at_once), unbounded
    )


def _sizes(layer: Layer, choice: LayerChoice) -> Sizes | None:
    """Bytes per step that a layer keeps: states, and the tape."""
    if isinstance(choice, Choice):
        state, first = (choice.kernel.tape_bytes(steps, layer.batch) for steps in (0, 1))
        return None if state is None or first is None else Sizes(state, first - state)
    if layer.elsewhere is not None:
        return None
    of = program(layer.pair, layer.spec)
    state = layer.batch * state_bytes(of)
    return Sizes(state, layer.batch * tape_bytes(of) + state)


def peak(layers: Sequence[Layer], tapes: Sequence[TapeCost]) -> int:
    """Peak bytes: all tapes, and one span of the layers that run together."""
    groups: dict[int, int] = {}
    for layer, tape in zip(layers, tapes, strict=True):
        groups[layer.group] = groups.get(layer.group, 0) + tape.span
    return sum(tape.forward for tape in tapes) + max(groups.values())


def surrounding_bytes(
    choices: Sequence[tuple[Layer, LayerChoice]], programs: Mapping[str, Program]
) -> int:
    """Bytes of outputs, gradients and workspace that exist at once in a training step.

    An output that is a state is part of the states, unless these are not kept, or the outputs of
    two directions are joined; between layers, a gradient of a layer's output ends with its layer.
    """
    layers = [layer for layer, _ in choices]
    spaces = {
        choice.kernel: choice.kernel.workspace_bytes(layer.at_once, layer.batch)
        for layer, choice in choices
        if isinstance(choice, Choice)
    }
    outputs = weights = 0
    d_inputs: list[int] = []
    two = any(layer.name.endswith("_reverse") for layer in layers)
    for layer in layers:
        if not layer.spec.training:
            continue
        rows, sizes, item = layer.steps * layer.batch, layer.spec.sizes, item_bytes(layer.spec)
        graph, wants = layer.graph, layer.spec.wants
        apart = layer.checkpoint or two or not output_is_state(programs[layer.name].pair)
        if apart and (two or layer is layers[-1] or layer.group != layers[-1].group):
            outputs += item * rows * sum(width(v, sizes) for v in graph.outputs)
        weights += item * sum(width(leaf, sizes) for leaf in graph.weights if leaf.name in wants)
        of_inputs = [width(leaf, sizes) for leaf in graph.inputs if leaf.name in wants]
        d_inputs.append(item * rows * sum(of_inputs))
    most = max(map(sum, pairwise((0, *d_inputs))), default=0)
    return outputs + weights + most + sum(spaces.values())


class Flops(NamedTuple):
    """Floating point operations of the matrix products of one call.

    Attributes:
        formula: each product once.
        executed: including recomputed products.
    """

    formula: int
    executed: int


def flops(layers: Sequence[Layer], programs: Mapping[str, Program]) -> Flops:
    """Count the operations of all layers.

    Args:
        layers: as they would run.
        programs: of each, by its name.
    """
    formula = executed = 0
    for layer in layers:
        of, rows = programs[layer.name], layer.steps * layer.batch
        sweeps = forward_work(of).products + backward_work(of).products
        formula_flops = sweeps - repeated_products(of)
        formula += rows * formula_flops
        executed += rows * (formula_flops + _recomputed(layer, of))
    return Flops(formula, executed)


def _recomputed(layer: Layer, of: Program) -> int:
    """Operations in recomputed products, per step and sample: by the program, and by the second
    forward of ``checkpoint=``."""
    spans = layer.checkpoint and layer.spec.training
    return repeated_products(of) + (forward_work(of).products if spans else 0)


def cost(
    layers: Sequence[Layer], programs: Mapping[str, Program], choices: Sequence[LayerChoice]
) -> str:
    """Memory and work of each layer as text."""
    lines: list[str] = []
    for layer, choice in zip(layers, choices, strict=True):
        if layer.elsewhere is not None:
            lines.append(f"{layer.name}: torch's own layer, what it keeps and does is not told")
            continue
        of, tape = programs[layer.name], tape_cost(layer, choice)
        lines.append(f"{layer.name}: kept for the backward {_tape_text(layer, tape)}")
        for way, work in (("forward", forward_work(of)), ("backward", backward_work(of))):
            lines.append(
                f"  {way:<8} per step and sample: {work.products:,} FLOP in products, "
                f"{work.pointwise:,} pointwise"
            )
        recomputed = _recomputed(layer, of)
        if recomputed:
            lines.append(f"  computed again, not kept: {recomputed:,} FLOP in products")
    return "\n".join(lines)


def _tape_text(layer: Layer, tape: TapeCost | None) -> str:
    if layer.checkpoint and tape is None:
        return f"the states of every {layer.checkpoint} steps"
    if tape is None:
        return "what torch keeps, not told"
    if not layer.checkpoint:
        return f"{size_text(tape.forward)} per call"
    return (
        f"{size_text(tape.forward)} per call (the states of every {layer.checkpoint} steps), and "
        f"{size_text(tape.span)} at a time computed again; "
        f"{size_text(tape.unbounded)} without checkpoint"
    )


def size_text(count: float) -> str:
    """Bytes in the largest unit that leaves a digit before the point."""
    for unit in ("bytes", "KiB", "MiB"):
        if count < 1024:
            return f"{count:,.0f} {unit}" if unit == "bytes" else f"{count:,.1f} {unit}"
        count /= 1024
    return f"{count:,.1f} GiB"

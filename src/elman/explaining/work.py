"""How much work a call is, as the formula has it and as it is done, and the lines about it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from elman.explaining.layers import Layer, Picked
from elman.explaining.memory import Kept, kept_by
from elman.plan.cost import backward_work, forward_work, repeated_products
from elman.plan.program import Program


class Flops(NamedTuple):
    """Floating point operations of the matrix products of one call.

    Attributes:
        formula: each product once.
        executed: with those that are computed again.
    """

    formula: int
    executed: int


def flops(layers: Sequence[Layer], programs: Mapping[str, Program]) -> Flops:
    """Of all layers.

    Args:
        layers: as they would run.
        programs: of each, by its name.
    """
    formula = executed = 0
    for layer in layers:
        of, rows = programs[layer.name], layer.steps * layer.batch
        sweeps = forward_work(of).products + backward_work(of).products
        once = sweeps - repeated_products(of)
        formula += rows * once
        executed += rows * (once + _again(layer, of))
    return Flops(formula, executed)


def _again(layer: Layer, of: Program) -> int:
    """Operations in products, per step and sample, of what was computed before: by the program, and
    by the second forward of ``checkpoint=``."""
    spans = layer.checkpoint and layer.spec.training
    return repeated_products(of) + (forward_work(of).products if spans else 0)


def cost(
    layers: Sequence[Layer],
    programs: Mapping[str, Program],
    choices: Sequence[Picked],
) -> str:
    """What each layer keeps and does, as text."""
    lines: list[str] = []
    for layer, choice in zip(layers, choices, strict=True):
        if layer.elsewhere is not None:
            lines.append(f"{layer.name}: torch's own layer, what it keeps and does is not told")
            continue
        of, kept = programs[layer.name], kept_by(layer, choice)
        lines.append(f"{layer.name}: kept for the backward {_kept_text(layer, kept)}")
        for way, work in (("forward", forward_work(of)), ("backward", backward_work(of))):
            lines.append(
                f"  {way:<8} per step and sample: {work.products:,} FLOP in products, "
                f"{work.pointwise:,} pointwise"
            )
        again = _again(layer, of)
        if again:
            lines.append(f"  computed again, not kept: {again:,} FLOP in products")
    return "\n".join(lines)


def _kept_text(layer: Layer, kept: Kept | None) -> str:
    if layer.checkpoint and kept is None:
        return f"the states of every {layer.checkpoint} steps"
    if kept is None:
        return "what torch keeps, not told"
    if not layer.checkpoint:
        return f"{_size(kept.forward)} per call"
    return (
        f"{_size(kept.forward)} per call (the states of every {layer.checkpoint} steps), and "
        f"{_size(kept.span)} at a time computed again; {_size(kept.whole)} without checkpoint"
    )


def _size(count: float) -> str:
    for unit in ("bytes", "KiB", "MiB"):
        if count < 1024:
            return f"{count:,.0f} {unit}" if unit == "bytes" else f"{count:,.1f} {unit}"
        count /= 1024
    return f"{count:,.1f} GiB"

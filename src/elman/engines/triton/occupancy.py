"""Occupancy: which schedules fit on a chip, without compiling them."""

from __future__ import annotations

import math

import torch

from elman.engines.triton import limits
from elman.engines.triton.launch import chip, processors
from elman.engines.triton.layout import padded
from elman.engines.triton.schedule import TritonSchedule
from elman.ir.graph import Node
from elman.ir.ops import OPS
from elman.ir.types import shape_size
from elman.plan.cost import item_bytes, phase_nodes
from elman.plan.prices import width
from elman.plan.program import Program, Sweep


def loops(of: Program, batch: int) -> list[TritonSchedule]:
    """Loops of which one program holds all weights."""
    if _resident_bytes(of) > _capacity_bytes():
        return []
    samples = 8 if batch <= 8 and not torch.version.hip else 16
    most = padded(max(_units(of), default=1))
    pairs = [
        (warps, stages)
        for warps in ((4, 8) if most <= limits.FEW_UNITS else (8,))
        for stages in (1, 2)
    ]
    return [TritonSchedule("loop", samples, warps, stages) for warps, stages in pairs]


def grids(of: Program, batch: int, heads: int) -> list[TritonSchedule]:
    """Grids of which all programs are resident, and hold their part of the weights."""
    if _largest_place(of) > limits.EXACT_UP_TO.get(of.spec.dtype, math.inf):
        return []  # places go from program to program through memory of that type
    largest = max(_units(of), default=1)
    schedules: list[TritonSchedule] = []
    for units in (16, 32) if torch.version.hip else (8, 16, 32):
        share = -(-largest // units)
        groups = processors() // (share * heads)
        if share == 1 or not groups:
            continue
        for samples, slices in cuts(-(-batch // groups)):
            operands = samples * padded(largest) * item_bytes(of.spec)
            needs = _resident_bytes(of) * units // padded(largest) + operands
            if needs <= _capacity_bytes() and samples * _reduced_units(of) <= limits.REDUCED:
                schedules.append(TritonSchedule("grid", samples, 8, units=units, slices=slices))
    return schedules


def cuts(batch: int) -> list[tuple[int, int]]:
    """Samples of a slice, and slices: of a group with a batch as a whole, and in parts."""
    sizes = [size for size in limits.SAMPLES if size > 8 or not torch.version.hip]
    pairs: list[tuple[int, int]] = []
    for most in ({}, limits.SLICES):
        size = next((size for size in sizes if size * most.get(size, 1) >= batch), None)
        if size is not None and (size, -(-batch // size)) not in pairs:
            pairs.append((size, -(-batch // size)))
    return pairs


def _sweeps(of: Program) -> list[Sweep]:
    """Both directions, if there is a backward."""
    return [of.forward, *([of.backward] if of.backward is not None else [])]


def _values(of: Program) -> list[Node]:
    """What the steps of both directions compute."""
    return [value for sweep in _sweeps(of) for value in phase_nodes(sweep.step)]


def _reduced_units(of: Program) -> int:
    """Units that the largest reduction of a step is over."""
    over = [v for v in _values(of) if OPS[v.op].kind == "reduce" or v.over_units]
    sizes = of.spec.sizes
    return max((sum(width(arg, sizes) for arg in v.args if arg.shape) for v in over), default=0)


def _largest_place(of: Program) -> int:
    """The largest number that a unit of a group is called by in a step."""
    sizes = of.spec.sizes
    found = [value for value in _values(of) if value.op == "argmax"]
    groups = [sum(width(arg, sizes) for arg in v.args) // width(v, sizes) for v in found]
    return max(groups, default=1) - 1


def _units(of: Program) -> list[int]:
    """Sizes of the states."""
    return [width(leaf, of.spec.sizes) for leaf in of.pair.step.states if leaf.shape]


def _capacity_bytes() -> int:
    """Shared memory for weights of one program (bytes)."""
    most: int = getattr(chip(), "shared_memory_per_block_optin", limits.ON_CHIP + limits.RESERVE)
    return most - limits.RESERVE


def _resident_bytes(of: Program) -> int:
    """What the larger of both directions holds in one program: weights, as they are padded."""
    sizes, totals = of.spec.sizes, list[int]()
    for sweep in _sweeps(of):
        products = [value for value in phase_nodes(sweep.step) if value.op == "matmul"]
        shapes = [shape_size(matrix.shape, sizes) for matrix in {p.args[0] for p in products}]
        totals.append(sum(padded(rows) * padded(columns) for rows, columns in shapes))
    return max(totals) * item_bytes(of.spec)

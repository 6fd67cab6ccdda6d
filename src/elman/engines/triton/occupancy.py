"""Occupancy: which schedules fit on a chip, without compiling them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from elman.engines.triton import limits
from elman.engines.triton.launch import chip, processors
from elman.engines.triton.layout import padded
from elman.engines.triton.schedule import TritonSchedule
from elman.ir.graph import Node
from elman.ir.ops import OPS
from elman.ir.types import gate_block_size
from elman.plan.cost import item_bytes, phase_nodes
from elman.plan.program import Phase, Program


def loops(of: Program, batch: int) -> list[TritonSchedule]:
    """Loops of which one program holds all weights."""
    if resident_bytes(of) > _capacity_bytes():
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
            needs = resident_bytes(of) * units // padded(largest) + operands
            if needs <= _capacity_bytes() and samples * reduced_units(of) <= limits.REDUCED:
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


def reduced_units(of: Program) -> int:
    """Units that the largest reduction of a step is over."""
    sizes = of.spec.sizes

    def units(value: Node) -> int:
        return sum(gate_block_size(arg.shape[0][0], sizes) for arg in value.args if arg.shape)

    nodes = [value for phase in _phases(of) for value in phase_nodes(phase)]
    over = (v for v in nodes if OPS[v.op].kind == "reduce" or v.over_units)
    return max(map(units, over), default=0)


def _largest_place(of: Program) -> int:
    """The largest number that a unit of a group is called by in a step."""
    sizes = of.spec.sizes

    def place(value: Node) -> int:
        groups = gate_block_size(value.shape[0][0], sizes) if value.shape else 1
        units = sum(gate_block_size(arg.shape[0][0], sizes) for arg in value.args)
        return units // groups - 1

    nodes = [value for phase in _phases(of) for value in phase_nodes(phase)]
    return max((place(value) for value in nodes if value.op == "argmax"), default=0)


def _phases(of: Program) -> list[Phase]:
    """The steps of both directions."""
    return [of.forward.step, *([of.backward.step] if of.backward is not None else [])]


def _units(of: Program) -> list[int]:
    """Sizes of the states."""
    sizes = of.spec.sizes
    states = of.pair.step.states
    return [gate_block_size(leaf.shape[0][0], sizes) for leaf in states if leaf.shape]


def _capacity_bytes() -> int:
    """Shared memory for weights of one program (bytes)."""
    most: int = getattr(chip(), "shared_memory_per_block_optin", limits.ON_CHIP + limits.RESERVE)
    return most - limits.RESERVE


def resident_bytes(of: Program) -> int:
    """What the larger of both directions holds in one program: weights, as they are padded."""
    return max(_resident_bytes_of(phase, of) for phase in _phases(of))


def _resident_bytes_of(phase: Phase, of: Program) -> int:
    sizes = of.spec.sizes

    def units(matrix: Node) -> Sequence[int]:
        return [padded(gate_block_size(dim[0], sizes)) for dim in matrix.shape]

    matrices = {node.args[0] for node in phase_nodes(phase) if node.op == "matmul"}
    return sum(rows * columns for rows, columns in map(units, matrices)) * item_bytes(of.spec)

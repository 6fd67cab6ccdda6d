"""Occupancy: which schedules fit on a chip, without compiling them."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch

from elman.engines.precision import precision
from elman.engines.triton.device import limits
from elman.engines.triton.device.launch import chip, processors
from elman.engines.triton.device.schedule import TritonSchedule
from elman.engines.triton.text.layout import padded, tile_units
from elman.ir.graph import Node
from elman.ir.ops import OPS
from elman.ir.types import shape_size
from elman.plan.cost import item_bytes, phase_nodes
from elman.plan.prices import width
from elman.plan.program import Program, Sweep


def loops(of: Program, batch: int, heads: int) -> list[TritonSchedule]:
    """Loops whose programs hold all weights. Programs of 8 samples are faster than of 16 (1.03 of
    2.28 µs a step at 64 units); 16 are tried if 8 give more programs than processors."""
    warps = 8 if _reduced_units(of) and not _has_few_units(of) else 4
    sizes = [16] if torch.version.hip else [8]
    if not torch.version.hip and -(-batch // 8) * heads > processors():
        sizes.append(16)
    return [
        TritonSchedule("loop", samples, warps)
        for samples in sizes
        if max(_loop_bytes(of, sweep, samples) for sweep in of.sweeps) <= _shared_bytes()
    ]


def spills(of: Program) -> bool:
    """Whether products of a loop spill: float32 products that are not rounded to tf32 do."""
    return of.spec.dtype == "float32" and precision() == "ieee" and not _has_few_units(of)


def _has_few_units(of: Program) -> bool:
    return padded(max(_units(of), default=1)) <= limits.FEW_UNITS


def grids(of: Program, batch: int, heads: int) -> list[TritonSchedule]:
    """Grids whose programs are all resident, and hold their part of the weights."""
    if _largest_place(of) > limits.EXACT_UP_TO.get(of.spec.dtype, math.inf):
        return []  # indices of units go through memory of that type, which would round them
    largest = max(_units(of), default=1)
    item = item_bytes(of.spec)
    narrow = padded(largest) * item <= 4 * limits.WARP_BYTES
    # 4 warps are faster (GRU of 512 units: 2.57 of 3.20 µs a step) unless a warp sums over more
    # than 512 bytes (1152 units: 6.52 of 3.74)
    warps = 4 if narrow and not _reduced_units(of) else 8
    weights = max(_weight_bytes(of, sweep) for sweep in of.sweeps)
    schedules: list[TritonSchedule] = []
    for units in (16, 32) if torch.version.hip else (8, 16, 32):
        share = -(-largest // units)
        groups = processors() // (share * heads)  # programs that wait for each other are resident
        if share == 1 or not groups:
            continue
        samples = _samples(-(-batch // groups))
        if samples is None:
            continue
        operand = samples * item * min(padded(largest), tile_units(samples, item))
        needs = weights * units // padded(largest) + operand + limits.RESERVE
        if needs <= _shared_bytes() and samples * _reduced_units(of) <= limits.REDUCED:
            schedules.append(TritonSchedule("grid", samples, warps, units))
    return schedules


def _samples(batch: int) -> int | None:
    """Samples of a program that holds ``batch`` of them; None if they are too many."""
    sizes = (size for size in limits.SAMPLES if size > 8 or not torch.version.hip)
    return next((size for size in sizes if size >= batch), None)


def _values(of: Program) -> list[Node]:
    """The values that the steps of both directions compute."""
    return [value for sweep in of.sweeps for value in phase_nodes(sweep.step)]


def _reduced_units(of: Program) -> int:
    """Units of the largest reduction of a step."""
    over = [v for v in _values(of) if OPS[v.op].kind == "reduce" or v.over_units]
    sizes = of.spec.sizes
    return max((sum(width(arg, sizes) for arg in v.args if arg.shape) for v in over), default=0)


def _largest_place(of: Program) -> int:
    """The largest index of a unit in a group that a step computes."""
    sizes = of.spec.sizes
    found = [value for value in _values(of) if value.op == "argmax"]
    groups = [sum(width(arg, sizes) for arg in v.args) // width(v, sizes) for v in found]
    return max(groups, default=1) - 1


def _units(of: Program) -> list[int]:
    """Sizes of the states."""
    return [width(leaf, of.spec.sizes) for leaf in of.pair.step.states if leaf.shape]


def _shared_bytes() -> int:
    """Shared memory of one program (bytes)."""
    most: int = getattr(chip(), "shared_memory_per_block_optin", limits.SHARED)
    return most


def _loop_bytes(of: Program, sweep: Sweep, samples: int) -> int:
    """Most shared memory of one program of a loop in a direction: weights, all operands of
    products, and the largest block while it changes its layout (bytes)."""
    values = phase_nodes(sweep.step)

    def units(blocks: Iterable[Node]) -> list[int]:
        return [padded(width(value, of.spec.sizes)) for value in blocks]

    operands = sum(units({value.args[1] for value in values if value.op == "matmul"}))
    exchanged = max(units(values), default=0)
    row = operands * item_bytes(of.spec) + exchanged * limits.COMPUTED
    return _weight_bytes(of, sweep) + samples * row


def _weight_bytes(of: Program, sweep: Sweep) -> int:
    """Weights of a direction in one program, with their padding (bytes)."""
    products = [value for value in phase_nodes(sweep.step) if value.op == "matmul"]
    matrices = {product.args[0] for product in products}
    shapes = [shape_size(matrix.shape, of.spec.sizes) for matrix in matrices]
    return sum(padded(rows) * padded(columns) for rows, columns in shapes) * item_bytes(of.spec)

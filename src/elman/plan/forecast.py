"""Cost model of schedules: a first guess for the tuner, and pruning."""

from __future__ import annotations

from dataclasses import dataclass

from elman.ir.ops import OPS
from elman.ir.types import gate_block_size, is_matrix
from elman.plan.cost import (
    Work,
    backward_work,
    forward_work,
    item_bytes,
    node_work,
    phase_nodes,
)
from elman.plan.prices import width
from elman.plan.program import Program
from elman.plan.schedule import CHUNK_ROWS, SPLITS, Division


@dataclass(frozen=True)
class Core:
    """Throughput of one core; only ratios matter.

    Source: measured on AVX-512 and AVX2 machines with 32 KiB of L1 and 0.5 to 1 MiB of L2.

    Attributes:
        bytes_per_s: bytes of weights that products use per second if no load limits them.
        levels: (bytes, bytes per second) of each cache: bandwidth for weights that fit into it.
        elements_per_s: elements of pointwise work per second.
        barrier_s: duration of one barrier over all workers (s).
    """

    bytes_per_s: float = 220e9
    levels: tuple[tuple[float, float], ...] = (
        (24e3, 200e9),
        (700e3, 90e9),
        (24e6, 30e9),
        (float("inf"), 12e9),
    )
    elements_per_s: float = 4e9
    barrier_s: float = 0.25e-6


CORE = Core()
_PRUNE_RATIO = 1.6  # of forecast to best forecast: above it a division is not benchmarked
_FEW_ROWS = 192  # of a chunk that fits the second cache: products of fewer rows would be slow
_FEWEST_ROWS = 64  # of a chunk: the barriers of shorter chunks cost more than they save in memory
_SHARED_BYTES = 8e6  # share of the third cache for the rows of a chunk


@dataclass(frozen=True)
class Load:
    """Work of one step of the loop per sample, forward and backward together.

    Attributes:
        weights: bytes of all matrices that a step multiplies by.
        elements: elements of pointwise work.
        barriers: segments that begin with a barrier if units are split over workers.
        batched_s: time of the phases outside the loop, by one worker (s).
    """

    weights: int
    elements: int
    barriers: int
    batched_s: float


def load_of(program: Program) -> Load:
    """The load of a program's time loop."""
    weights = elements = barriers = 0
    loop = Work(0, 0)
    sizes = program.spec.sizes
    for sweep in (program.forward, program.backward):
        if sweep is None:
            continue
        barriers += sum(segment.sync for segment in sweep.step.segments)
        for value in phase_nodes(sweep.step):
            loop += node_work(value, program.spec)
            if value.op == "matmul":
                weights += width(value.args[0], sizes)
            elif OPS[value.op].kind in ("pointwise", "spread", "scan"):
                elements += width(value, sizes)
    halves = 2 if program.spec.precision == "bf16" else 1  # panels hold pairs of bfloat16
    item, whole = item_bytes(program.spec), forward_work(program) + backward_work(program)
    batched_s = (whole.products - loop.products) / 2 * item / CORE.bytes_per_s
    batched_s += (whole.pointwise - loop.pointwise) / CORE.elements_per_s
    return Load(weights * item // halves, elements, barriers, batched_s)


def step_seconds(load: Load, division: Division, B: int, workers: int, core: Core = CORE) -> float:
    """Time of one step of the loop in a division (s)."""
    bound = division.bind(1, B, workers)
    split = SPLITS[bound.split]
    rows = -(-B // workers) if split == "batch" else B
    shared = workers if split == "units" else 1
    weights = load.weights / shared
    # forward and backward read their matrices in different sweeps: half of them at a time
    speed = next(speed for size, speed in core.levels if weights / 2 <= size)
    # limited by arithmetic, or by reading the weights
    products = max(weights * rows / core.bytes_per_s, weights / speed)
    pointwise = load.elements / shared * rows / core.elements_per_s
    barriers = load.barriers * core.barrier_s if split == "units" else 0.0
    return products + pointwise + barriers


def usual_rows(program: Program) -> int:
    """Rows of T·B between two batched products.

    Few rows if they fit into a core's second cache, else as many as fit into the third, unless
    that costs more than it saves: each chunk reads and writes the sums for the weights' gradients.
    """
    if program.backward is None:
        return CHUNK_ROWS
    sizes, step = program.spec.sizes, program.pair.step
    slots = [slot for slot in (*program.tape, *program.backward.chunk) if slot is not None]
    row = sum(gate_block_size(slot, sizes) for slot in slots)
    row += sum(width(value, sizes) for value in (*step.inputs, *step.states))
    summed = sum(
        width(term.left, sizes) * width(term.right, sizes)
        for term in program.sums
        if term.right is not None
    )
    row_bytes = row * item_bytes(program.spec)
    shared = max(_FEWEST_ROWS, min(CHUNK_ROWS, int(_SHARED_BYTES / max(row_bytes, 1))))
    rows = _FEW_ROWS if _FEW_ROWS * row_bytes <= CORE.levels[1][0] else shared
    return rows if 2 * summed <= rows * row else CHUNK_ROWS


def ranked(program: Program, B: int, workers: int) -> tuple[Division, ...]:
    """Divisions that are worth benchmarking at a batch size, best forecast first. Workers cannot
    share the units of a matrix per sample, since such steps run sample by sample."""
    if workers == 1:
        return (Division("one"),)
    load, step = load_of(program), program.pair.step
    by_sample = any(is_matrix(leaf) for leaf in step.states if leaf not in step.held)
    able = [
        Division(split)
        for split in SPLITS
        if (split != "batch" or workers <= B) and not (split == "units" and by_sample)
    ]
    cost = {division: step_seconds(load, division, B, workers) for division in able}
    best = min(cost.values())
    return tuple(d for d in sorted(able, key=cost.__getitem__) if cost[d] <= _PRUNE_RATIO * best)

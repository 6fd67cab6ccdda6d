"""Schedules of matrices per sample: which axis is cut over programs, and what has no kernel."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import NamedTuple, TypeVar
from weakref import WeakKeyDictionary

from elman.engines.triton.device import limits
from elman.engines.triton.device.schedule import TritonSchedule
from elman.engines.triton.loops.matrix_blocks import OF_MATRICES, VECTORS
from elman.engines.triton.loops.matrix_loop import MatrixLoop
from elman.engines.triton.text.layout import TritonLayout, padded, power_of_2
from elman.ir.ops import OPS
from elman.ir.types import axes_of, is_matrix
from elman.lowered.types import Axis
from elman.plan.build import output_is_state
from elman.plan.program import Program, Sweep

Fact = TypeVar("Fact")
_OVER_UNITS = {op.name for op in OPS.values() if op.kind in ("reduce", "scan")}
_REFUSED = {"uniform"} | _OVER_UNITS.difference(OF_MATRICES)


def _cached(of: Callable[[Program], Fact]) -> Callable[[Program], Fact]:
    """Cache a fact of each program for its lifetime."""
    facts: WeakKeyDictionary[Program, Fact] = WeakKeyDictionary()

    @wraps(of)
    def known(program: Program) -> Fact:
        if program not in facts:
            facts[program] = of(program)
        return facts[program]

    return known


@_cached
def matrix_schedules(program: Program) -> tuple[TritonSchedule, ...]:
    """Loops whose programs have enough threads to hold a matrix, or a share of it, in registers."""
    sizes = _axis_sizes(program)
    whole = padded(sizes["rows"]) * padded(sizes["columns"])
    elements = {0: whole}  # of a program, by its units along the axis that is cut; 0: all
    if (cut := cut_of(program)) is not None:
        other = padded(sizes["columns" if cut.axis == "rows" else "rows"])
        units = [max(limits.SHARE_UNITS, share // other) for share in limits.MATRIX_SHARES]
        shares = [each if each < sizes[cut.axis] else 0 for each in units]
        elements = {each: other * each or whole for each in shares}
    fitting = {each: n for each, n in elements.items() if n <= limits.MATRIX_WHOLE}
    return tuple(_schedule(n, each) for each, n in fitting.items())


def _axis_sizes(program: Program) -> dict[Axis, int]:
    """Rows and columns of the largest matrices."""
    phases = [phase for sweep in program.sweeps for phase in sweep.all_phases]
    parts = [part for phase in phases for segment in phase.segments for part in segment.parts]
    axes = [
        pair for part in parts if (pair := axes_of(part.gate_block, program.spec.sizes)) is not None
    ]
    return {axis: max(pair[k] for pair in axes) for k, axis in enumerate(VECTORS)}


def _schedule(elements: int, units: int) -> TritonSchedule:
    """A schedule whose programs have ``elements`` elements, and ``units`` along the cut axis."""
    warps = power_of_2(max(1, elements // limits.MATRIX_ELEMENTS[bool(units)]))
    return TritonSchedule("loop", 1, min(warps, limits.MATRIX_WARPS), units)


def fitting_schedules(program: Program, rows: int) -> tuple[TritonSchedule, ...]:
    """Select the schedules whose partial sums take at most ``PARTIAL_BYTES`` for ``rows`` rows
    (samples times steps); if none do, the schedule with the fewest programs."""
    schedules = matrix_schedules(program)
    cut = cut_of(program)
    if cut is None:
        return schedules
    most = limits.PARTIAL_BYTES // max(1, 4 * rows * cut.partial_width)  # programs of a sample
    units = _axis_sizes(program)[cut.axis]
    few = [each for each in schedules if not each.units or -(-units // each.units) <= most]
    return tuple(few) or schedules[-1:]


class Cut(NamedTuple):
    """How matrices are cut over programs.

    Attributes:
        axis: the axis that is cut.
        partial_states: states whose cotangents are then partial sums.
        partial_width: elements of the partial sums that a program stores at a step.
    """

    axis: Axis
    partial_states: frozenset[int] = frozenset()
    partial_width: int = 0


@_cached
def cut_of(program: Program) -> Cut | None:
    """Find an axis along which the matrices of all steps can be cut over programs; or None."""
    layout = TritonLayout(program)
    for axis in reversed(VECTORS):
        cuts = [_cut_of(layout, sweep, axis) for sweep in program.sweeps]
        if None not in cuts:
            return cuts[-1]
    return None


def _cut_of(layout: TritonLayout, sweep: Sweep, axis: Axis) -> Cut | None:
    """Find the partial sums of a direction whose axis is cut; None if it cannot be cut."""
    lowering = layout.lowering(sweep)
    step, replay = lowering.lowered_phases()[1], lowering.lowered_replay()
    options = {"kept_states": (True,) * len(layout.state_widths), "packed": False, "heads": False}
    states: frozenset[int] = frozenset()
    while True:  # partial cotangents that are carried make more of the next step partial
        loop = MatrixLoop(layout, TritonSchedule(), lowering, step, replay, axis, states, **options)
        loop.text()
        if not loop.divisible:
            return None
        if loop.summed_states <= states:
            return Cut(axis, states, loop.partial_width)
        states |= loop.summed_states


def refusal(program: Program) -> str | None:
    """Why a program of matrices per sample has no kernels; None if it has."""
    if output_is_state(program.pair) and is_matrix(program.pair.step.states[0]):
        return "its output is a matrix per sample"
    for sweep in program.sweeps:
        for phase in sweep.all_phases:
            in_loop = phase in (sweep.step, sweep.replay)
            for part in (part for segment in phase.segments for part in segment.parts):
                is_over_matrix = isinstance(part.gate_block, tuple)
                if in_loop and part.bundles:
                    return "its steps multiply a matrix of weights with a vector of each sample"
                if not in_loop and is_over_matrix:
                    return "matrices per sample are computed outside of its steps"
                for value in part.nodes:
                    if value.op in _REFUSED and any(map(is_matrix, (value, *value.args))):
                        return f"it has no kernel for {value.op} of matrices per sample"
    if not matrix_schedules(program):
        return "its matrices do not fit into the registers of a program"
    return None

"""Schedules of matrices per sample: which axis is cut over programs, and what has no kernel."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TypeVar
from weakref import WeakKeyDictionary

from elman.engines.triton import limits
from elman.engines.triton.layout import TritonLayout, padded, power_of_2
from elman.engines.triton.matrix_blocks import OF_MATRICES, VECTORS
from elman.engines.triton.matrix_loop import MatrixLoop
from elman.engines.triton.schedule import TritonSchedule
from elman.ir.ops import OPS
from elman.ir.types import axes_of, is_matrix
from elman.lowered.types import Axis
from elman.plan.build import output_is_state
from elman.plan.program import Program, Sweep

Fact = TypeVar("Fact")
_OVER_UNITS = {op.name for op in OPS.values() if op.kind in ("reduce", "scan")}
_REFUSED = {"uniform"} | _OVER_UNITS.difference(OF_MATRICES)


def _cached(of: Callable[[Program], Fact]) -> Callable[[Program], Fact]:
    """Remember what is known of each program as long as that lives."""
    facts: WeakKeyDictionary[Program, Fact] = WeakKeyDictionary()

    @wraps(of)
    def known(program: Program) -> Fact:
        if program not in facts:
            facts[program] = of(program)
        return facts[program]

    return known


@_cached
def matrix_schedules(program: Program) -> tuple[TritonSchedule, ...]:
    """Loops whose programs have the threads that hold a matrix, or a share of it, in registers."""
    phases = [phase for sweep in _sweeps(program) for phase in sweep.all_phases]
    parts = [part for phase in phases for segment in phase.segments for part in segment.parts]
    axes = [
        pair for part in parts if (pair := axes_of(part.gate_block, program.spec.sizes)) is not None
    ]
    sizes = {axis: max(pair[k] for pair in axes) for k, axis in enumerate(VECTORS)}
    whole = padded(sizes["rows"]) * padded(sizes["columns"])
    loops = [_schedule(whole, 0)] if whole <= limits.MATRIX_WHOLE else []
    if (axis := cut_axis(program)) is not None:
        other = padded(sizes["columns" if axis == "rows" else "rows"])
        units = [units for units in limits.MATRIX_UNITS if units < sizes[axis]]
        loops += [_schedule(other * each, each) for each in units]
    return tuple(loops)


def _schedule(elements: int, units: int) -> TritonSchedule:
    """A schedule whose programs have so many elements, and units along the axis that is cut."""
    warps = power_of_2(max(1, elements // limits.MATRIX_ELEMENTS[bool(units)]))
    return TritonSchedule("loop", 1, min(warps, limits.MATRIX_WARPS), units)


@_cached
def cut_axis(program: Program) -> Axis | None:
    """The axis of matrices that can be cut over programs, if one can."""
    layout = TritonLayout(program)
    for axis in reversed(VECTORS):
        if all(_is_divisible(layout, sweep, axis) for sweep in _sweeps(program)):
            return axis
    return None


def _is_divisible(layout: TritonLayout, sweep: Sweep, axis: Axis) -> bool:
    lowering = layout.lowering(sweep)
    step, replay = lowering.lowered_phases()[1], lowering.lowered_replay()
    options = {"kept_states": (True,) * len(layout.state_widths), "packed": False, "heads": False}
    loop = MatrixLoop(layout, TritonSchedule(), lowering, step, replay, axis, **options)
    loop.text()
    return loop.divisible


def _sweeps(program: Program) -> list[Sweep]:
    return [program.forward, *([program.backward] if program.backward is not None else [])]


def refusal(program: Program) -> str | None:
    """Why a program of matrices per sample has no kernels; None if it has."""
    if output_is_state(program.pair) and is_matrix(program.pair.step.states[0]):
        return "its output is a matrix per sample"
    for sweep in _sweeps(program):
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

"""Suite ``cells``: cells of the library beside the loops that one writes for them in torch.

Those that read one input and have neither static inputs nor constants.
"""

from __future__ import annotations

from typing import Any

from benchmarks.cases import OURS, Case, Suite, sized
from benchmarks.claims import Rows, UnmeasuredError
from benchmarks.contestants import TRAIN
from benchmarks.peers.published import STEPS as PUBLISHED
from benchmarks.peers.steps import STEPS as TORCHS
from elman import cells
from elman.frontend.cell import Cell

T, B, H = 100, 32, 128
LOOP = "loop"
_EXACT = 10  # steps in which no rounding moves a spike
_QUICK = ("gru", "lem", "rlif")


def case_name(cell: Cell) -> str:
    """Name of a cell's case."""
    return f"{cell.name} {T},{B},{H}"


def _case(cell: Cell) -> Case:
    units = H * len(cell.inputs[0].shape[0])
    quick, judged = cell.name in _QUICK, _EXACT if cell in cells.SPIKING else 0
    options: dict[str, Any] = {"ratio": 1.0, "quick": quick, "judged": judged}
    return sized(case_name(cell), TRAIN, LOOP, OURS, I=units, **options)


def _has_loop(cell: Cell) -> bool:
    """True if a loop is written for a cell that has one input and no static inputs or constants."""
    alone = len(cell.inputs) == 1 and not cell.static and not cell.constants
    return alone and any(cell.name in steps for steps in (PUBLISHED, TORCHS))


def times_as_fast(rows: Rows, cell: Cell) -> float | None:
    """Speed-up of training a cell over its loop; None if it was not measured."""
    try:
        return rows.faster(case_name(cell), OURS, LOOP)
    except UnmeasuredError:
        return None


CELLS = Suite(
    "cells",
    "How fast do cells of the library train, compared with a loop over torch operators?",
    tuple(_case(cell) for cell in cells.ALL if _has_loop(cell)),
    seconds=2.0,
)

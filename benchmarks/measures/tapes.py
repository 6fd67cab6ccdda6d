"""What each tape keeps and recomputes: a study of plans, nothing is run."""

from __future__ import annotations

from typing import Any, get_args

from benchmarks.cases import Case, Effort
from benchmarks.rows import study
from benchmarks.workloads.custom_cells import find_cell
from elman import compiler
from elman.plan.build import program
from elman.plan.cost import backward_work, state_bytes, tape_bytes
from elman.plan.spec import PlanOptions, Spec, Tape

CELLS = ("gru_before", "gru")  # the reset gate before and after the recurrent product


def measure_tapes(case: Case, effort: Effort) -> dict[str, Any]:
    """Per cell and tape, for one step of one sample: bytes that are kept, beside the states'; FLOP
    of products and pointwise evaluations of the backward."""
    del effort
    found: dict[str, dict[str, int]] = {}
    for name in CELLS:
        for tape in get_args(Tape):
            found[f"{name} {tape}"] = _kept(name, tape, case)
    texts = [f"{name} {one['bytes']} bytes" for name, one in found.items()]
    return study(f"kept per step and sample: {', '.join(texts)}", kept=found)


def _kept(name: str, tape: Tape, case: Case) -> dict[str, int]:
    cell = find_cell(name)
    dims = tuple(sorted(cell.bind(case.input_size, case.H).items()))
    wants = frozenset(entry.name for entry in (*cell.inputs, *cell.weights))
    made = program(
        compiler.pair_of(cell), Spec(dims, case.dtype, wants=wants, options=PlanOptions(tape))
    )
    work = backward_work(made)
    return {
        "bytes": tape_bytes(made),
        "states": state_bytes(made),
        "products": work.products,
        "pointwise": work.pointwise,
    }

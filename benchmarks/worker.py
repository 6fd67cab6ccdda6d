"""Program: one case, in this process of its own.

``python -m benchmarks.worker`` reads a case and an effort as one JSON object and prints the row.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import torch

from benchmarks.cases import Case, Effort, NoDataError
from benchmarks.machine import facts
from benchmarks.measures.memory import measure_memory
from benchmarks.measures.operators import measure_operators
from benchmarks.measures.phases import measure_phases
from benchmarks.measures.starting import (
    measure_choosing,
    measure_cold,
    measure_import,
    measure_warm,
)
from benchmarks.measures.tapes import measure_tapes
from benchmarks.measures.training import measure_products, measure_steps, measure_variants
from benchmarks.studies.convergence import measure_convergence, measure_lengths
from benchmarks.studies.learning_by_engine import measure_learning
from benchmarks.studies.learning_studies import (
    measure_characters,
    measure_perplexities,
    measure_residual,
    measure_samples,
)
from benchmarks.workloads.scans import measure_bandwidth
from elman.errors import ElmanError
from elman.measuring.measure import peak_gflops
from elman.tuning.waiting import Waiting


def measure_peak(case: Case, effort: Effort) -> dict[str, Any]:
    """What the machine can do at most in fp32 (GFLOP/s)."""
    del effort
    return {"peak_gflops": peak_gflops((1, case.threads))}


MEASURES: dict[str, Callable[[Case, Effort], dict[str, Any]]] = {
    "train": measure_steps,
    "variants": measure_variants,
    "forward": measure_steps,
    "fit": measure_steps,
    "layers": measure_steps,
    "phases": measure_phases,
    "scan": measure_steps,
    "bandwidth": measure_bandwidth,
    "convergence": measure_convergence,
    "lengths": measure_lengths,
    "kept": measure_tapes,
    "characters": measure_characters,
    "perplexities": measure_perplexities,
    "residual": measure_residual,
    "samples": measure_samples,
    "learning": measure_learning,
    "product": measure_products,
    "language": measure_steps,
    "users": measure_steps,
    "update": measure_steps,
    "operators": measure_operators,
    "cold": measure_cold,
    "warm": measure_warm,
    "choosing": measure_choosing,
    "import": measure_import,
    "peak": measure_peak,
    "memory": measure_memory,
    "decoder": measure_memory,
}


def measure(case: Case, effort: Effort) -> dict[str, Any]:
    """What was measured, and on which machine; why it failed stands under ``failed``, which data
    are not there under ``skipped``."""
    torch.set_num_threads(case.threads)
    machine, waiting = facts(), Waiting()
    try:
        row = MEASURES[case.measure](case, effort)
    except NoDataError as error:
        row = {"skipped": str(error)}
    except ElmanError as error:
        row = {"failed": str(error)}
    return {"waited": waiting.share(), **row, "machine": machine}


def main() -> None:
    """Read, measure, print."""
    asked = json.load(sys.stdin)
    row = measure(Case.from_json(asked["case"]), Effort(**asked["effort"]))
    sys.stdout.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()

"""Program: one case, in this process of its own.

``python -m benchmarks.worker`` reads a case and an effort (``cases.packed``) and prints the row.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import torch

from benchmarks.cases import Case, Effort, NoDataError, Way, unpacked
from benchmarks.machine import facts
from benchmarks.peak import peak_gflops
from elman.errors import ElmanError
from elman.tuning.machine import Waiting

_LOOK_S = 0.3  # whether other programs take the cores


def measure_peak(case: Case, effort: Effort) -> dict[str, Any]:
    """Peak of the machine in fp32 (GFLOP/s)."""
    del effort
    # the threads of the peak are gone when it is known: torch's are not
    return {"peak_gflops": peak_gflops((1, case.threads)), "waited": busy_share()}


def busy_share() -> float:
    """Share of a short time for which torch's threads, all at work, waited for a core."""
    waiting, matrix = Waiting(), torch.ones(512, 512)
    end = time.perf_counter() + _LOOK_S
    while time.perf_counter() < end:
        torch.mm(matrix, matrix)
    return waiting.share()


PEAK = Case("peak", Way("peak", measure_peak), quick=True)  # the same in every suite


def measure(case: Case, effort: Effort) -> dict[str, Any]:
    """What was measured, and on which machine; why it failed stands under ``failed``, which data
    are not there under ``skipped``."""
    torch.set_num_threads(case.threads)
    machine, waiting = facts(), Waiting()
    try:
        row = case.measure.run(case, effort)
    except NoDataError as error:
        row = {"skipped": str(error)}
    except ElmanError as error:
        row = {"failed": str(error)}
    return {"waited": waiting.share(), **row, "machine": machine}


def main() -> None:
    """Read, measure, print."""
    sys.stdout.write(json.dumps(measure(*unpacked(sys.stdin.read()))) + "\n")


if __name__ == "__main__":
    main()

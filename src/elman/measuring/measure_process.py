"""A cell beside its plain loop, in a process of its own."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass

import torch

from elman.errors import ElmanError, RunError, diagnostic, on_command_line
from elman.measuring.measure import Measured, measure
from elman.measuring.process import ProcessError, Program, run_program
from elman.train.loop.layers import find_cell

LIMIT_S = 600.0


@dataclass(frozen=True)
class MeasureRequest:
    """What is measured; the rest as :func:`elman.measure` takes it.

    Attributes:
        cell: a name of ``elman.cells``, or file.py:cell.
        dims: sizes of the cell's other dims.
        threads: of the process; None: as torch has it.
    """

    cell: str
    input_size: int
    hidden_size: int
    dims: dict[str, int]
    steps: int = 100
    batch: int = 32
    dtype: str = "float32"
    training: bool = True
    engine: str = "auto"
    seconds: float = 2.0
    threads: int | None = None


def measure_in_process(request: MeasureRequest) -> Measured:
    """Measure in a fresh process.

    Raises:
        RunError: what the process said that failed.
    """
    words = ("-m", "elman.measuring.measure_process")
    program = Program(words, threads=request.threads, text=json.dumps(asdict(request)))
    try:
        found = json.loads(run_program(program, LIMIT_S))
    except ProcessError as error:
        title = "the process of the measurement failed"
        raise RunError(diagnostic(title, [("error", str(error))])) from error
    if "failed" in found:
        raise RunError(found["failed"])
    return Measured.from_json(found)


def main() -> None:
    """Read what is request, measure, print."""
    request = json.load(sys.stdin)
    name, dims, threads = request.pop("cell"), request.pop("dims"), request.pop("threads")
    if threads is not None:
        torch.set_num_threads(threads)
    try:
        with on_command_line():
            result = measure(find_cell(name), **request, **dims).to_json()
    except ElmanError as error:
        result = {"failed": str(error)}
    sys.stdout.write("\n" + json.dumps(result) + "\n")


if __name__ == "__main__":
    main()

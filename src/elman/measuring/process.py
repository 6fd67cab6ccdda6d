"""Fresh Python processes for measurements, apart from the settings of this one; a cell beside its
plain loop in one.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from elman.cell_files import find_cell
from elman.errors import ElmanError, RunError, on_command_line
from elman.measuring.measure import Measurement, measure

SOURCES = Path(__file__).parents[2]  # the folder that the package lies in
DROPPED = (
    "ELMAN_CFLAGS",
    "ELMAN_ENGINE",
    "ELMAN_FORCE_ENGINE",
    "ELMAN_POISON",
)  # they would change the engine or its speed


class ProcessError(ElmanError):
    """A process of a measurement failed or took too long."""


@dataclass(frozen=True)
class Program:
    """A program for a fresh interpreter.

    Attributes:
        words: arguments of the interpreter.
        folders: in which Python looks for packages, besides elman's own.
        cache: ELMAN_CACHE, if it is another than here.
        threads: OMP_NUM_THREADS, if they are to be set before torch is imported.
        text: what it reads from its standard input.
    """

    words: tuple[str, ...]
    folders: tuple[Path, ...] = ()
    cache: Path | None = None
    threads: int | None = None
    text: str = ""


def run_program(program: Program, limit_s: float) -> str:
    """The last line that a fresh interpreter printed. Raises ProcessError: it failed, with its last
    words, or it took longer than the limit (s)."""
    try:
        ran = subprocess.run(
            [sys.executable, "-P", *program.words],
            input=program.text,
            capture_output=True,
            text=True,
            env=environment(program),
            timeout=limit_s,
        )
    except subprocess.TimeoutExpired as error:
        raise ProcessError(f"it took longer than {limit_s:g} s") from error
    if ran.returncode:
        words = ran.stderr.strip().splitlines()
        raise ProcessError(words[-1] if words else f"it ended with {ran.returncode}")
    lines = ran.stdout.strip().splitlines()
    if not lines:
        raise ProcessError("it printed nothing")
    return lines[-1]


def environment(program: Program) -> dict[str, str]:
    """The environment of a process: this one's, without what would falsify a measurement."""
    variables = {name: value for name, value in os.environ.items() if name not in DROPPED}
    paths = [*map(str, (SOURCES, *program.folders)), os.environ.get("PYTHONPATH", "")]
    variables["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    if program.cache is not None:
        variables["ELMAN_CACHE"] = str(program.cache)
    if program.threads is not None:
        variables["OMP_NUM_THREADS"] = str(program.threads)
    return variables


LIMIT_S = 600.0


@dataclass(frozen=True)
class MeasureRequest:
    """Arguments of a measurement; the rest as :func:`elman.measure` takes it.

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


def measure_in_process(request: MeasureRequest) -> Measurement:
    """Measure in a fresh process. Raises RunError: the process failed, with its message."""
    words = ("-m", "elman.measuring.process")
    program = Program(words, threads=request.threads, text=json.dumps(asdict(request)))
    try:
        fields = json.loads(run_program(program, LIMIT_S))
    except ProcessError as error:
        title = "the process of the measurement failed"
        raise RunError(title, error=error) from error
    if "failed" in fields:
        raise RunError(fields["failed"])
    return Measurement.from_json(fields)


def main() -> None:
    """Read a request, measure, print."""
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

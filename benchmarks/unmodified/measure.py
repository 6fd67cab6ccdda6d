"""Programs as they are, by python and by `elman run`: losses agree, times side by side.

    python -m benchmarks.unmodified.measure --python VENV/bin/python --out FILE.jsonl

The programs beside this file need darts, gluonts[torch], pytorch-forecasting, neuralforecast and
sb3-contrib; what the interpreter lacks is left out, and said. Each program runs twice in processes
of its own, with one thread. The time of a step, on the processor, is the median of those after the
first five.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import elman
from benchmarks.machine import code, facts
from benchmarks.rows import Row, append_row

HERE = Path(__file__).parent
SOURCES = Path(elman.__file__).parents[1]
PROGRAMS = {  # what the table says -> words
    "a character model": ("char_rnn.py",),
    "darts RNNModel (GRU)": ("darts_rnn.py",),
    "GluonTS DeepAR": ("gluonts_deepar.py",),
    "pytorch-forecasting DeepAR": ("pytorch_forecasting_deepar.py",),
    "neuralforecast GRU": ("neuralforecast_models.py", "GRU"),
    "neuralforecast DilatedRNN": ("neuralforecast_models.py", "DilatedRNN"),
    "sb3-contrib RecurrentPPO": ("sb3_recurrent_ppo.py",),
}
RAN = "elman: on elman: "  # the line that says what ran begins so
FIRST = 5  # steps whose time does not count: kernels are compiled and timed


class Ran(NamedTuple):
    """What a program said.

    Attributes:
        losses, times: of each step, the latter in ms.
        told: the last lines on stderr.
    """

    losses: list[float]
    times: list[float]
    told: list[str]


def run(python: str, words: Sequence[str], limit_s: float) -> Ran:
    """Run a program in an empty folder. Raises RuntimeError: it failed, with its last line."""
    env = os.environ | {"PYTHONPATH": str(SOURCES), "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [python, "-W", "ignore", *words], cwd=folder, env=env, capture_output=True, text=True,
            timeout=limit_s, check=False,
        )  # fmt: skip
    told = done.stderr.splitlines()
    if done.returncode:
        telling = [line for line in told if "Error" in line] or told or ["failed"]
        raise RuntimeError(telling[-1])
    steps = [line.split() for line in done.stdout.splitlines() if line.startswith("step ")]
    losses, times = ([float(words[k]) for words in steps] for k in (1, 2))
    return Ran(losses, times, told)


def row(name: str, python: str, steps: int, limit_s: float) -> Row:
    """The row of a program: how far losses differ, medians (ms), and what ran."""
    script, *more = PROGRAMS[name]
    words = [str(HERE / script), *more, str(steps)]
    try:
        theirs = run(python, words, limit_s)
        ours = run(python, ["-m", "elman_command", "run", *words], limit_s)
    except (RuntimeError, subprocess.TimeoutExpired) as error:
        return {"case": name, "error": str(error)}
    off = max(abs(a - b) / max(1, abs(b)) for a, b in zip(ours.losses, theirs.losses, strict=True))
    before, after = (statistics.median(ran.times[FIRST:] or ran.times) for ran in (theirs, ours))
    ran = next(line for line in ours.told if line.startswith(RAN))
    return {
        "case": name,
        "steps": len(ours.losses),
        "losses": off,
        "milliseconds": {"python": before, "elman run": after},
        "ran": ran.removeprefix(RAN),
    }


def main() -> None:
    """Measure the programs, and print a row of each."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--python", default=sys.executable, help="an interpreter with the packages")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--only", default="", help="words of a program's name")
    parser.add_argument("--limit", type=float, default=900.0, help="of a process (s)")
    parser.add_argument("--out", type=Path, help="rows, a line each")
    options = parser.parse_args()
    for name in PROGRAMS:
        if options.only in name:
            found = row(name, options.python, options.steps, options.limit)
            print(json.dumps(found), flush=True)
            if options.out:
                append_row(options.out, found | code() | {"machine": facts()})


if __name__ == "__main__":
    main()

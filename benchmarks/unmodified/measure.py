"""Programs as they are, by python and by `elman run`: losses agree, times side by side.

    python -m benchmarks.unmodified.measure --python VENV/bin/python --out table.md

The programs beside this file need darts, gluonts[torch], pytorch-forecasting, neuralforecast and
sb3-contrib; what the interpreter lacks is left out, and said. Each program runs twice in processes
of its own, with one thread. The time of a step, on the processor, is the median of those after the
first five.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import elman

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
FIRST = 5  # steps whose time does not count: kernels are compiled and timed
HEADER = """\
| program | difference of losses, at most | ms by python | by `elman run` | faster | what ran |
|---|---|---|---|---|---|
"""


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
        raise RuntimeError(next((line for line in reversed(told) if "Error" in line), "failed"))
    steps = [line.split() for line in done.stdout.splitlines() if line.startswith("step ")]
    losses, times = ([float(words[k]) for words in steps] for k in (1, 2))
    return Ran(losses, times, told)


def row(name: str, python: str, steps: int, limit_s: float) -> str:
    """A line of the table."""
    script, *more = PROGRAMS[name]
    words = [str(HERE / script), *more, str(steps)]
    try:
        theirs = run(python, words, limit_s)
        ours = run(python, ["-m", "elman_command", "run", *words], limit_s)
    except (RuntimeError, subprocess.TimeoutExpired) as error:
        return f"| {name} | {error} | | | | |"
    off = max(abs(a - b) / max(1, abs(b)) for a, b in zip(ours.losses, theirs.losses, strict=True))
    before, after = (statistics.median(ran.times[FIRST:] or ran.times) for ran in (theirs, ours))
    ran = next(line for line in ours.told if line.startswith("elman: on elman: "))
    return (
        f"| {name} | {off:.1g} of {len(ours.losses)} steps | {before:.3g} | {after:.3g} "
        f"| {before / after:.2f} | {ran.removeprefix('elman: on elman: ')} |"
    )


def main() -> None:
    """Measure the programs, print the table, and keep it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--python", default=sys.executable, help="an interpreter with the packages")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--only", default="", help="words of a program's name")
    parser.add_argument("--limit", type=float, default=900.0, help="of a process (s)")
    parser.add_argument("--out", type=Path, help="a file for the table")
    options = parser.parse_args()
    lines: list[str] = []
    for name in PROGRAMS:
        if options.only in name:
            lines.append(row(name, options.python, options.steps, options.limit))
            print(lines[-1], flush=True)
    if options.out:
        options.out.write_text(HEADER + "\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

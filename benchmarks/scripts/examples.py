"""What the examples print: a recogniser of connected digits, networks inside an ODE, images that
turn.

    python -m benchmarks.scripts.examples --data fsdd_600_300.npz --images cifar10_5000_1000.npz
        --out FILE.jsonl [--only NAME] [--steps N]

A row per command has the figures that it printed. A command that has a row already is not run
again. Steps of training that are timed want an idle machine.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

from benchmarks.machine import code, facts
from benchmarks.peak import peak_gflops
from benchmarks.rows import append_row, read_rows

EXAMPLES = Path(__file__).parents[2] / "examples"
COMMANDS = {
    "digits, elman": "connected_digits.py --data {data}",
    "digits, torch": "connected_digits.py --data {data} --layers torch",
    "turned, elman": "rotating_images.py --data {images}",
    "bodies, scan": "two_bodies.py",
    "bodies, loop": "two_bodies.py --way loop --steps 500",
    "bodies, deer": "two_bodies.py --way deer --steps 500",
    "ode, neural": "neural_ode.py",
    "ode, hamiltonian": "neural_ode.py --field hamiltonian",
    "ode, adaptive": "neural_ode.py --field adaptive --seconds 0.3 --samples 100",
}
_RECOGNISED = re.compile(
    r"step +(?P<steps>\d+) +(?P<seconds>[\d.]+) s  loss (?P<loss>[\d.]+)  "
    r"word error (?P<word_error>[\d.]+)%"
)
_RATE = re.compile(r"products at (?P<gflops>[\d.e+-]+) GFLOP/s")
_LEARNED = re.compile(r"step +(?P<steps>\d+) +(?P<seconds>[\d.]+) s  loss (?P<loss>[\d.e-]+)")
_R2 = re.compile(r"R² of (\S.*?)  +([-\d.]+(?:  [-\d.]+)*)")
_DISTANCE = re.compile(r"distance (?P<of>\S.*?)  +.*?(?P<off>[\d.]+) at (?P<time>[\d.]+)\n")
_DRIFT = re.compile(r"energy (?P<energy>[-\d.]+), drift (?P<drift>[\d.e+-]+)")
_FITTED = re.compile(r"(?P<way>\S.*?) +loss [\d.]+ -> (?P<loss>[\d.]+), (?P<ms>[\d.]+) ms a step")


def figures(text: str) -> dict[str, Any]:
    """The figures of what a command has printed: of the last of its reports, or by its ways."""
    ways = {
        found["way"]: {"loss": float(found["loss"]), "ms": float(found["ms"])}
        for found in _FITTED.finditer(text)
    }
    if ways:
        return {"ways": ways}
    if drift := _DRIFT.search(text):
        (*_, last) = _LEARNED.finditer(text)
        values = {
            name: float(value) for name, value in (last.groupdict() | drift.groupdict()).items()
        }
        return values | {
            "distance": {at["of"]: float(at["off"]) for at in _DISTANCE.finditer(text)}
        }
    if explained := {found[1]: [*map(float, found[2].split())] for found in _R2.finditer(text)}:
        (*_, last) = _LEARNED.finditer(text)
        return {"r2": explained, **{name: float(value) for name, value in last.groupdict().items()}}
    (*_, last), rate = _RECOGNISED.finditer(text), _RATE.search(text)
    assert rate is not None, "the last line has it"
    values = {name: float(value) for name, value in last.groupdict().items()}
    return {**values, "word_error": values["word_error"] / 100, "gflops": float(rate["gflops"])}


def run(words: list[str]) -> dict[str, Any]:
    """The figures of one command."""
    program = [sys.executable, str(EXAMPLES / words[0]), *words[1:]]
    return figures(subprocess.run(program, check=True, capture_output=True, text=True).stdout)


def main() -> None:
    """Run the commands that have no row."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--data", default="DATA", help="recordings of spoken digits, an .npz")
    parser.add_argument("--images", default="IMAGES", help="of CIFAR-10, an .npz")
    parser.add_argument("--out", type=Path, required=True, help="rows, a line each")
    parser.add_argument("--only", help="commands whose name begins so")
    parser.add_argument("--steps", help="steps of each run, for a try")
    options = parser.parse_args()
    further = ["--steps", options.steps] if options.steps else []
    for case, command in COMMANDS.items():
        if not case.startswith(options.only or "") or case in read_rows(options.out):
            continue
        shown = command.format(data="DATA", images="IMAGES")
        words = command.format(data=options.data, images=options.images).split()
        measured = run([*words, *further])
        if "gflops" in measured:
            measured["peak_gflops"] = max(peak_gflops((torch.get_num_threads(),)).values())
        append_row(
            options.out,
            {"case": case, "command": " ".join(["python", f"examples/{shown}", *further])}
            | {**measured, **code(), "machine": facts()},
        )
        print(case, measured, flush=True)


if __name__ == "__main__":
    main()

"""Runs that are told to stop while they compile or end: resumed, they equal an uninterrupted run.

Kills at any other moment are those of `benchmarks/robustness/kills.py`, which test_kills runs; a
stop between two steps is test_resume's.
"""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

import pytest

from elman.engines.c.compilation.build import find_compiler
from elman.train.run.folder import RunFolder, list_runs
from fake_compilers import real
from runs import assert_equal_runs
from scripts import begin, finished
from workers import RESUME, TRAIN, only_run

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(isinstance(find_compiler(), str), reason="there is no C compiler"),
    pytest.mark.skipif(not hasattr(os, "killpg"), reason="there are no groups of processes"),
]

STEPS = 40
OPTIONS = (
    *("--layers=1", "--hidden=16", "--embedding=6", "--batch=8", "--bptt=16", f"--steps={STEPS}"),
    *("--validate-every=15", "--checkpoint-every=3", "--log-every=4", "--validation-chars=300"),
    *("--accelerator=cpu", "--threads=1", "--no-compare", "--engine=auto"),
)
COMMAND = "from elman_command import main; main()"  # in a group of its own, as all that are begun
PATIENCE_S = 100.0  # for one process
STATUS = {  # of a process that was told to stop; before its first line it ends as any other
    signal.SIGINT: {130},
    signal.SIGTERM: {143, -signal.SIGTERM},
}


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """A folder with a text, a cache, a compiler that marks when it compiles, and takes its time;
    and an uninterrupted run, which has filled the cache: a choice is benchmarked once."""
    folder = tmp_path_factory.mktemp("signals")
    (folder / "cache").mkdir(mode=0o700)
    (folder / "marks").mkdir()
    (folder / "words.txt").write_text("".join(random.Random(0).choices("the quick fox\n", k=9000)))
    command = real()
    (folder / "cc").write_text(
        f'#!/bin/sh\ncase "$*" in *--version*) exec {command} --version;; esac\n'
        f': > "{folder}/marks/$$"; sleep 0.1; exec {command} "$@" -O0\n'
    )
    (folder / "cc").chmod(0o755)
    finished(begin(*new_run(folder, "whole"), **own(folder)))
    return folder


def new_run(place: Path, name: str) -> tuple[str, ...]:
    """The words of a new run."""
    return (*TRAIN, f"--data={place / 'words.txt'}", f"--out={place / name}", *OPTIONS)


def own(place: Path) -> dict[str, str]:
    """The environment of its processes."""
    return {"ELMAN_CACHE": str(place / "cache"), "ELMAN_CC": str(place / "cc")}


def compiles(place: Path, out: Path) -> bool:
    """Whether the compiler runs."""
    return bool(list((place / "marks").iterdir()))


def ends(place: Path, out: Path) -> bool:
    """Whether the last checkpoint is there."""
    return bool(list(out.glob(f"*/checkpoints/step-*{STEPS}")))


@pytest.mark.parametrize(
    "reached, number",
    [
        (compiles, signal.SIGTERM),
        pytest.param(ends, signal.SIGINT, marks=pytest.mark.long),  # it may have ended by then
    ],
)
def test_a_disturbed_run(reached, number, place):
    """One signal to the group; weights, metrics, results, engines and schedules are equal."""
    out = place / f"{reached.__name__}-{number.name}"
    if reached is compiles:
        for path in [*(place / "cache" / "kernels").glob("*.so"), *(place / "marks").iterdir()]:
            path.unlink()
    process = begin("-c", COMMAND, *new_run(place, out.name)[2:], **own(place))
    deadline = time.monotonic() + PATIENCE_S
    while not reached(place, out):
        assert process.poll() is None, "it has ended before"
        assert time.monotonic() < deadline
        time.sleep(0.0005)
    time.sleep(0.05)
    alive = process.poll() is None
    if alive:
        os.killpg(process.pid, number)
    _, told = process.communicate(PATIENCE_S)
    assert "Traceback" not in told, told
    assert process.returncode in STATUS[number] | {0}, (process.returncode, told)
    assert alive or reached is ends

    runs: list[RunFolder] = list_runs(out)
    again = (*RESUME, "--no-compare", str(runs[0].path)) if runs else None
    finished(begin(*(again or new_run(place, out.name)), **own(place)))
    run, whole = only_run(out), only_run(place / "whole")
    assert_equal_runs(run, whole)
    assert run.read("result")["choices"] == whole.read("result")["choices"]

"""Runs that are told to stop, or killed, at any moment: resumed, they equal an uninterrupted run.

An interrupted run and the uninterrupted one share a cache. So what a killed process had measured
before its run recorded anything is measured once, and remembered.
"""

from __future__ import annotations

import logging
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from elman.engines.c.build import find_compiler
from elman.train.run.folder import RunFolder, list_runs
from fake_compilers import real
from runs import assert_equal_runs
from scripts import begin, environment, finished
from workers import ELMAN

pytestmark = [
    pytest.mark.skipif(isinstance(find_compiler(), str), reason="there is no C compiler"),
    pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="there is no /proc"),
]

STEPS = 40
OPTIONS = (
    *("--layers=1", "--hidden=16", "--embedding=6", "--batch=8", "--bptt=16", f"--steps={STEPS}"),
    *("--validate-every=15", "--checkpoint-every=3", "--log-every=4", "--validation-chars=300"),
    *("--accelerator=cpu", "--threads=1", "--no-compare"),
)
PATIENCE_S = 100.0  # for one process
KILLS = 8  # per run of the long test
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGKILL)
STATUS = {  # of a process that was told to stop; before its first line it ends as any other
    signal.SIGINT: {130},
    signal.SIGTERM: {143, -signal.SIGTERM},
    signal.SIGKILL: {-signal.SIGKILL},
}


@dataclass
class Place:
    """Where runs of one kind lie, and the cache that they share.

    Attributes:
        marks: where the compiler, a script, says that it compiles.
        whole: the uninterrupted run with this cache, as long as no choice of it was forgotten.
    """

    root: Path
    data: Path
    engine: str
    whole: RunFolder | None = None

    @property
    def cache(self) -> Path:
        return self.root / "cache"

    @property
    def marks(self) -> Path:
        return self.root / "marks"

    def forget(self, pattern: str) -> None:
        """Remove files of the cache."""
        for path in self.cache.glob(pattern):
            path.unlink()

    def own(self) -> dict[str, str]:
        """What its processes find in their environment; nothing has been compiled yet."""
        shutil.rmtree(self.marks, ignore_errors=True)
        self.marks.mkdir()
        own = {"ELMAN_CACHE": str(self.cache), "ELMAN_CC": str(self.data.parent / "cc")}
        return own | {"MARKS": str(self.marks)}

    def begin(self, *words: str) -> subprocess.Popen[bytes]:
        """Start `elman train` in a group of its own; what it says goes to files."""
        env = environment() | self.own()
        with open(self.root / "out", "wb") as out, open(self.root / "err", "wb") as err:
            return subprocess.Popen(
                [sys.executable, *ELMAN, "--no-compare", *words],
                stdout=out,
                stderr=err,
                env=env,
                start_new_session=True,
            )

    def end(self, *words: str) -> None:
        """Let `elman train` come to its end, which nobody disturbs."""
        finished(begin(*ELMAN, "--no-compare", *words, **self.own()))

    def new(self, out: Path) -> tuple[str, ...]:
        """The words of a new run below a folder."""
        return (f"--data={self.data}", f"--engine={self.engine}", f"--out={out}", *OPTIONS)

    def said(self, name: str) -> str:
        """What the last process wrote to out or err."""
        return (self.root / name).read_text(errors="replace")

    def uninterrupted(self) -> RunFolder:
        """A run that nobody disturbs, with the choices that the cache remembers now."""
        if self.whole is not None:
            return self.whole
        out = self.root / "whole"
        shutil.rmtree(out, ignore_errors=True)
        self.end(*self.new(out))
        (self.whole,) = list_runs(out)
        return self.whole


@dataclass
class Disturbed:
    """A run that is disturbed again and again."""

    place: Place
    draw: random.Random
    out: Path
    landed: list[str] = field(default_factory=list)

    @property
    def run(self) -> RunFolder | None:
        """The run, once there is something to resume."""
        found = list_runs(self.out)
        return found[0] if found else None

    @property
    def done(self) -> bool:
        """Whether it has its result."""
        return self.run is not None and (self.run.path / "result.json").exists()

    @property
    def step(self) -> int:
        """Of the newest checkpoint; -1 without any."""
        found = sorted(self.out.glob("*/checkpoints/step-*"))
        return int(found[-1].name.removeprefix("step-")) if found else -1

    def words(self) -> tuple[str, ...]:
        """Of the command that starts the run, or goes on with it."""
        run = self.run
        if run is not None:
            return (f"--resume={run.path}",)
        shutil.rmtree(self.out, ignore_errors=True)
        return self.place.new(self.out)

    def disturb(self, phase: str, number: signal.Signals, group: bool, twice: bool = False) -> bool:
        """Run until a phase, then signal the process or its group; False if it had ended before."""
        if phase == "compile":
            self.place.forget("kernels/*.so")
        if phase == "measure" and self.step <= 0:  # no choice is recorded yet
            self.place.forget("tuning/*.json")
            self.place.whole = None
        reached, most_s = PHASES[phase]
        before = self.step
        process = self.place.begin(*self.words())
        end = time.monotonic() + PATIENCE_S
        while process.poll() is None and not reached(self, process, before):
            assert time.monotonic() < end, f"{phase} was not reached"
            time.sleep(0.0005)
        time.sleep(self.draw.uniform(0.0, most_s))
        alive = process.poll() is None
        for _ in range(1 + twice):
            if process.poll() is None:
                (os.killpg if group else os.kill)(process.pid, number)
            time.sleep(0.05 * twice)
        status = process.wait(PATIENCE_S)
        told = self.place.said("err")
        assert "Traceback" not in told, told
        assert status in STATUS[number] | {0}, (status, told)
        if alive:
            self.landed.append(f"{phase} {number.name}{' group' * group}{' twice' * twice}")
        return alive

    def finish(self) -> RunFolder:
        """Go on to the end, undisturbed."""
        while not self.done:
            self.place.end(*self.words())
        run = self.run
        assert run is not None
        return run


Reached = Callable[[Disturbed, "subprocess.Popen[bytes]", int], bool]


def maps(process: subprocess.Popen[bytes]) -> str:
    """What a process has loaded."""
    try:
        return Path(f"/proc/{process.pid}/maps").read_text()
    except OSError:
        return ""


def choosing(run: Disturbed, process: subprocess.Popen[bytes], before: int) -> bool:
    """Whether the first step, which measures, is next."""
    said = run.place.said("out")
    return run.step == 0 if before < 0 else "no checkpoint yet" in said or "resumed at" in said


PHASES: dict[str, tuple[Reached, float]] = {  # -> when it begins, and about how long it takes (s)
    "import": (lambda run, process, before: "numpy" in maps(process), 1.5),
    "compile": (lambda run, process, before: bool(list(run.place.marks.iterdir())), 0.5),
    "measure": (choosing, 0.4),
    "train": (lambda run, process, before: run.step > max(before, 0), 0.2),
    "write": (
        lambda run, process, before: bool(list(run.out.glob("*/checkpoints/.incomplete-*"))),
        0.002,
    ),
    "end": (lambda run, process, before: run.step == STEPS, 0.2),
}


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    """A text, and beside it a compiler that says when it compiles, and takes its time."""
    folder = tmp_path_factory.mktemp("signals")
    draw = random.Random(0)
    (folder / "words.txt").write_text("".join(draw.choices("the quick fox\n", k=9000)))
    command = real()
    (folder / "cc").write_text(
        f'#!/bin/sh\ncase "$*" in *--version*) exec {command} --version;; esac\n'
        f': > "$MARKS/$$"; sleep 0.1; exec {command} "$@" -O0\n'
    )
    (folder / "cc").chmod(0o755)
    return folder / "words.txt"


@pytest.fixture(scope="module")
def places(data, tmp_path_factory) -> dict[str, Place]:
    """A place per engine."""
    found = {}
    for engine in ("c", "auto"):
        place = found[engine] = Place(tmp_path_factory.mktemp(engine), data, engine)
        place.cache.mkdir(mode=0o700)
    return found


def assert_undisturbed(run: RunFolder, whole: RunFolder) -> None:
    """Weights, metrics and results are equal, and what is recorded of engines and schedules."""
    assert_equal_runs(run, whole)
    assert run.read("result")["choices"] == whole.read("result")["choices"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "phase, number",
    [("compile", signal.SIGINT), ("compile", signal.SIGTERM), ("end", signal.SIGINT)],
)
def test_a_disturbed_run(phase, number, places, tmp_path):
    """One signal to the group at the moments that matter most; the rest is in the long test, and a
    kill between two checkpoints in test_resume."""
    place = places["auto"]
    place.uninterrupted()  # its cache is warm
    run = Disturbed(place, random.Random(0), tmp_path / "runs")
    assert run.disturb(phase, number, True)
    assert_undisturbed(run.finish(), place.uninterrupted())


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(25))
def test_runs_disturbed_at_random(seed, data, places, tmp_path):
    """Eight signals per seed, 200 in all; each run is compared when it has ended."""
    engine = ("c", "auto")[seed % 2]
    draw = random.Random(seed)
    place = Place(tmp_path, data, engine, places[engine].uninterrupted())
    shutil.copytree(places[engine].cache, place.cache)
    landed: list[str] = []
    while len(landed) < KILLS:
        run = Disturbed(place, draw, tmp_path / f"runs{len(landed)}", landed)
        while len(landed) < KILLS and not run.done:
            phase = draw.choice([name for name in PHASES if name != "measure" or engine == "auto"])
            number = draw.choice(SIGNALS)
            run.disturb(phase, number, draw.random() < 0.5, draw.random() < 0.2)
        assert_undisturbed(run.finish(), place.uninterrupted())
    assert len(landed) == KILLS
    logging.getLogger(__name__).warning("%s %d: %s", engine, seed, ", ".join(landed))

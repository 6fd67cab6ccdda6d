"""Training runs killed (SIGKILL) at drawn moments, resumed, and compared with undisturbed ones.

    python benchmarks/robustness/kills.py --out DIR [--kills 50] [--seed 0] [--only write,rename]

Each run is of one process, of two that torchrun has started (and starts anew), or of two of
`--devices 2`; one of its processes kills itself, or all, at a place of `killed_run.PLACES`: at any
moment of a step, with a part of a checkpoint's file written, while the first engine is measured
or compiled, … The run then goes on, by torchrun or `elman resume`, to its end. Weights, optimizer,
carried states and random numbers of the last checkpoint, and metrics.csv but for its times, must
equal to the bit those of a run that was not disturbed and uses the same engines and schedules.

A row per kill says where it hit and from where the run went on; the last line how many were
equal. The status is 1 if one was not. About 12 seconds per kill on two cores. Needs /proc.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from elman.train.run import checkpoint
from elman.train.run.folder import RunFolder, list_runs

KILLED_RUN = Path(__file__).with_name("killed_run.py")
ROOT = KILLED_RUN.parents[2]  # what helpers of tests import lies there, too
sys.path += [str(KILLED_RUN.parent), str(ROOT / "tests"), str(ROOT)]

from killed_run import PLACES, STRIKE, Strike  # noqa: E402

from runs import assert_equal_runs  # noqa: E402  (as the tests judge)
from scripts import environment  # noqa: E402

OPTIONS = (
    *("--layers=2", "--hidden=24", "--embedding=8", "--dropout=0.1", "--batch=8", "--bptt=16"),
    *("--steps=60", "--validate-every=20", "--checkpoint-every=5", "--log-every=5"),
    *("--validation-chars=400", "--accelerator=cpu", "--threads=1", "--no-compare", "--timeout=60"),
)
LAUNCHES = ("torchrun", "devices", "alone")
LIMIT_S = 120.0  # of one start
STARTS = 6  # of one run
WORDS = ("quick", "brown", "fox", "jumps", "over", "lazy", "dog", "seven", "wizards", "brew")


@dataclass
class Campaign:
    """The folder of all runs, and what they share.

    Attributes:
        engine: what they run on; "auto" may choose otherwise in each.
        references: undisturbed runs, by their number of processes and what they chose.
    """

    root: Path
    engine: str = "auto"
    references: dict[str, RunFolder] = field(default_factory=dict)

    def prepare(self, launches: list[str]) -> None:
        """Write the text that is learned; compile, measure and run undisturbed.

        Args:
            launches: how runs will be started.
        """
        self.root.mkdir(parents=True, exist_ok=True)
        draw = random.Random(0)
        lines = (" ".join(draw.choices(WORDS, k=6)) + ".\n" for _ in range(300))
        self.data.write_text("".join(lines), encoding="utf-8")
        self.cache.mkdir(mode=0o700, exist_ok=True)
        alike = {"devices": "torchrun"}  # two processes are two processes
        for launch in {alike.get(launch, launch): None for launch in launches}:
            self.undisturbed(self.ended(launch, self.root / f"whole-{launch}"), launch)

    @property
    def data(self) -> Path:
        return self.root / "words.txt"

    @property
    def cache(self) -> Path:
        return self.root / "cache"

    def start(self, launch: str, out: Path, cache: Path, strike: Strike | None) -> str:
        """Start a run, or go on with the one that is there; wait for its end; what it said."""
        runs = list_runs(out)
        words = ["train", *self.fresh(launch, out)]
        if runs:
            words = ["resume", str(runs[-1].path), "--no-compare"]
        program = [str(KILLED_RUN)] if strike else ["-m", "elman"]
        starter = []
        if launch == "torchrun":
            starter = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
            starter += ["--max-restarts=2", "--monitor-interval=0.2"]
        variables = environment() | {"ELMAN_CACHE": str(cache), "OMP_NUM_THREADS": "1"}
        if strike:
            variables[STRIKE] = strike.text()
        command = [sys.executable, *starter, *program, *words]
        with open(out.with_suffix(".said"), "ab+") as log:
            log.seek(0, os.SEEK_END)
            begin = log.tell()
            process = subprocess.Popen(
                command, env=variables, stdout=log, stderr=log, start_new_session=True
            )
            try:
                process.wait(LIMIT_S)
            finally:
                stop(process)
            log.seek(begin)
            return log.read().decode(errors="replace")

    def fresh(self, launch: str, out: Path) -> list[str]:
        """The options of a new run."""
        devices = ["--devices=2"] if launch == "devices" else []
        paths = [f"--data={self.data}", f"--out={out}", f"--engine={self.engine}"]
        return [*paths, *OPTIONS, *devices]

    def ended(self, launch: str, out: Path) -> RunFolder:
        """A run without a strike, to its end."""
        output = self.start(launch, out, self.cache, None)
        run = result_of(out)
        if run is None:
            raise SystemExit(f"an undisturbed run failed:\n{output}")
        return run

    def undisturbed(self, run: RunFolder, launch: str) -> RunFolder:
        """The undisturbed run that has made the choices of another one; that one if it is new."""
        processes = 1 if launch == "alone" else 2
        choices = (run.read("result") or {})["choices"]
        key = f"{processes} {sorted(choices.items())!r}"
        if key in self.references:
            return self.references[key]
        if run.path.parent.name.startswith("whole-"):
            return self.references.setdefault(key, run)
        return self.references.setdefault(key, self.pinned(launch, choices, len(self.references)))

    def pinned(self, launch: str, choices: dict[str, Any], number: int) -> RunFolder:
        """An undisturbed run from the first step, by given choices."""
        out = self.root / f"whole-{number}"
        mark = self.root / f"whole-{number}.mark"
        starter = "alone" if launch == "alone" else "torchrun"
        # Killed in its first step, it has its first checkpoint alone.
        strike = Strike("step", 0, 1, 0.0, 0.0, True, str(mark))
        self.start(starter, out, self.cache, strike)
        (run,) = list_runs(out)
        point, _ = checkpoint.load_latest(run.checkpoints)
        assert point is not None, "it was to be killed in its first step"
        assert point.step == 0
        facts = point.facts | {"choices": choices}
        checkpoint.save(run.checkpoints, replace(point, facts=facts))
        return self.ended(starter, out)

    def carry_out(self, launch: str, strike: Strike, name: str) -> tuple[str, ...] | None:
        """Kill a run, let it end, compare; the row of the table, or None if it was not hit."""
        out, place = self.root / name, PLACES[strike.place]
        strike = replace(strike, mark=str(self.root / f"{name}.mark"))
        cache = self.root / f"{name}.cache"
        shutil.copytree(self.cache, cache)
        for path in cache.glob(place.cold) if place.cold else ():
            path.unlink()
        output = self.start(launch, out, cache, strike)
        starts = 1
        while result_of(out) is None and starts < STARTS:
            output += self.start(launch, out, cache, None)
            starts += 1
        shutil.rmtree(cache)
        if not Path(strike.mark).exists():
            return None
        hit = Path(strike.mark).read_text(encoding="utf-8")
        run = result_of(out)
        if run is None:
            verdict = f"NO: it did not end, see {out.with_suffix('.said')}"
        else:
            wrong = difference(run, self.undisturbed(run, launch))
            verdict = f"NO: {wrong}" if wrong else "yes"
        killed = "all" if strike.all else f"process {strike.rank}"
        return (launch, killed, hit, gone_on(output), verdict)


def stop(process: subprocess.Popen[bytes]) -> None:
    """Wait for all that a start has left; end what does not end by itself."""
    end = time.monotonic() + 30
    while (alive := members(process.pid)) and time.monotonic() < end:
        time.sleep(0.05)
    for pid in alive:
        os.kill(pid, signal.SIGKILL)


def members(start: int) -> list[int]:
    """Processes whose environment says that they belong to a start: its session, or torchrun's."""
    pids = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            words = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        state, parent, session = words[0], int(words[1]), int(words[3])
        if state != "Z" and start in (session, parent):
            pids.append(int(stat.parent.name))
    return pids


def result_of(out: Path) -> RunFolder | None:
    """The run below a folder that has its result."""
    complete = [run for run in list_runs(out) if (run.path / "result.json").exists()]
    return complete[-1] if complete else None


def gone_on(output: str) -> str:
    """The point from which a run resumed after it was killed."""
    steps = re.findall(r"resumed at step (\d+)", output)
    if steps:
        return f"step {steps[-1]}"
    return "its result" if "the run is complete" in output else "its first step"


def difference(first: RunFolder, second: RunFolder) -> str:
    """In what two runs differ, beside times; empty if they are equal to the bit."""
    try:
        assert_equal_runs(first, second)
    except AssertionError as error:
        return str(error).split("\n")[0] or "checkpoint or metrics"
    return ""


def draw_kill(draw: random.Random, places: list[str], launches: list[str]) -> tuple[str, Strike]:
    """Draw how the processes of a run are started, and when one of them kills itself."""
    place = draw.choice(places)
    launch, about = draw.choice(launches), PLACES[place]
    rank = 0 if launch == "alone" or about.first else draw.randrange(2)
    everyone = launch != "alone" and draw.random() < 0.5
    call = draw.randint(1, about.calls)
    return launch, Strike(place, rank, call, draw.random(), about.most_s, everyone, "")


def main() -> None:
    """Read the options, kill, tell."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("--out", type=Path, required=True, help="folder of all runs, a new one")
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--engine", default="auto", help="of all runs")
    parser.add_argument("--only", default=",".join(PLACES), help="places, as write,rename")
    parser.add_argument("--started-by", default=",".join(LAUNCHES), help="as torchrun,alone")
    options = parser.parse_args()
    places, launches = options.only.split(","), options.started_by.split(",")
    if options.out.exists():
        parser.error(f"{options.out} is there already")
    campaign = Campaign(options.out.resolve(), options.engine)
    campaign.prepare(launches)
    draw, rows, tried = random.Random(options.seed), [], 0
    print("| | started by | killed | where | went on from | equal |\n|--|--|--|--|--|--|")
    while len(rows) < options.kills and tried < 3 * options.kills:
        tried += 1
        row = campaign.carry_out(*draw_kill(draw, places, launches), f"run-{tried:03d}")
        if row is not None:  # else it was over before
            rows.append(row)
            print(f"| {len(rows)} | {' | '.join(row)} |", flush=True)
    equal = sum(row[-1] == "yes" for row in rows)
    print(f"\n{equal} of {len(rows)} runs equal an undisturbed one to the bit")
    sys.exit(equal != len(rows) or len(rows) < options.kills)


if __name__ == "__main__":
    main()

"""Run folders, checkpoints, caches and records as an enemy sends them, opened by every command.

    python benchmarks/robustness/hostile_files.py --out DIR [--count 400] [--seed 0]
        [--only trust,links]

Each case has a fresh copy of a small run with a cache and files of weights,
changes it in a way of its own (shapes, dtypes, types, sizes, links, pipes, names, places of code,
endless and huge numbers, deep JSON, twice the same key, bytes that are no text), and opens it by
load, sample, export, resume, runs, its report, tune, or a kernel's call, in a process of its
own. It must end within --patience seconds, by no signal, with one message and no traceback;
nothing in the folder may have run, and what lies outside must be as it was.

A line per case that failed, and one with the counts; the status is 1 if one failed. About 0.7
seconds per case on two cores. Needs os.fork.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import random
import shutil
import sys
import time
import traceback
import warnings
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))

from forking import Ended, forked
from hostile_cases import EVIL, KINDS, READ, Case, Place, cases

import elman
from elman.cli import main as command
from elman.errors import ElmanError
from run_folders import forge, small_run

# How a case is opened.


def open_by(way: str, place: Place) -> None:
    """Open what a case has, as a user would."""
    run = str(place.run)
    if way == "load":
        print(elman.load(run).step)
        return
    if way == "kernel":
        net = elman.GRU(8, 16, engine="c")
        print(net(torch.zeros(3, 2, 8))[0].sum().item())
        return
    words = {
        "sample": ["sample", run, "--length=3"],
        "export": ["export", run, f"--c={place.root / 'c'}", f"--onnx={place.root / 'm.onnx'}"],
        "runs": ["runs", f"--out={place.root}"],
        "report": ["runs", run, "--report"],
        "resume": ["resume", run, "--no-compare"],
        "weights": ["export", "gru", "--hidden=8", "--inputs=4", f"--c={place.root / 'c'}"],
        "tune": ["tune", "gru", "--hidden=8", "--shape=2,2"],
    }
    words["weights.pt"] = [*words["weights"], f"--weights={place.root / 'weights.pt'}"]
    words["weights"].append(f"--weights={run}")
    command(words[way])


def prepare(root: Path) -> Path:
    """A place as a user has it, with nothing wrong."""
    place = Place(root / "clean")
    place.home.mkdir(parents=True)
    (place.home / "letter.txt").write_text("a letter of the user's\n" * 9)
    (place.home / "mine.py").write_text(EVIL.format(mark=str(root / "mine ran")))
    for number in range(4):  # as checkpoints are named
        inner = place.home / "step" / f"step-{number:09d}"
        inner.mkdir(parents=True)
        (inner / "checkpoint.json").write_text("{}")
    (place.home / "step" / ".incomplete-1-x").mkdir()
    folder = small_run(root / "made")
    (folder / "result.json").unlink()
    shutil.rmtree(sorted((folder / "checkpoints").glob("step-*"))[-1])
    shutil.move(folder, place.run)
    forge(place.run, lambda tensors, facts: None)
    open_by("kernel", place)
    cache = Path(os.environ["ELMAN_CACHE"])
    place.cache.mkdir()
    for name in ("kernels", "tuning"):
        shutil.copytree(cache / name, place.cache / name) if (cache / name).exists() else None
    return place.root


def hashes(folder: Path) -> dict[str, str]:
    """Digests of all files below a folder, by name; links as they are."""
    digests: dict[str, str] = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_symlink():
            digests[name] = f"-> {os.readlink(path)}"
        elif path.is_file() and path.stat().st_size < 1 << 24:
            digests[name] = hashlib.sha256(path.read_bytes()).hexdigest()
        else:
            digests[name] = "another"
    return digests


@dataclass(frozen=True)
class Outcome:
    """Outcome of a case: failures, output, and time (s)."""

    failures: list[str]
    text: str
    seconds: float


def tried(case: Case, way: str, clean: Path, root: Path, seed: str, patience_s: float) -> Outcome:
    """Do one case in a process of its own, and judge it."""
    shutil.rmtree(root, ignore_errors=True)
    (root.parent / "mine ran").unlink(missing_ok=True)
    shutil.copytree(clean, root, symlinks=True)
    place = Place(root)
    for name in ("evil.py", "evil"):
        (place.run / name).write_text(EVIL.format(mark=str(place.mark)))
    os.mkfifo(place.run / "pipe")
    case.change(place, random.Random(seed))
    home, before = hashes(place.home), hashes(place.run)
    log, start = root / "said", time.monotonic()
    ((_, status),) = forked(
        [way], lambda way: _child(way, place, log), limit_s=lambda _: patience_s
    )
    hung = False
    if isinstance(status, Ended):
        status, hung = status
    seconds = time.monotonic() - start
    output = log.read_text(errors="replace") if log.exists() else ""
    crashed = "Traceback" in output
    errors = sum(line.startswith("error:") for line in output.splitlines())
    after = {k: v for k, v in hashes(place.run).items() if k != "report.html"}
    judged = {
        f"it hung: {patience_s:g} s": hung,
        f"status {status}": not hung and status not in (0, 1, 2),
        f"a traceback: {output.strip().splitlines()[-1] if crashed else ''}": crashed,
        f"{errors} errors": errors > 1 and not crashed,
        "it wrote an escape sequence": "\x1b" in output,
        "code of the folder ran": place.mark.exists() or (root.parent / "mine ran").exists(),
        "files of the user have changed": hashes(place.home) != home,
        "the run's files have changed": way in READ
        and after != {k: v for k, v in before.items() if k != "report.html"},
    }
    return Outcome([text for text, failed in judged.items() if failed], output, seconds)


def _child(way: str, place: Place, log: Path) -> int:
    """Open a case in a process of its own; what it says goes to a file; the status of a command."""
    file = os.open(log, os.O_WRONLY | os.O_CREAT, 0o600)
    for number in (1, 2):
        os.dup2(file, number)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    sys.stdout = sys.stderr = os.fdopen(file, "w", 1, "utf-8", "backslashreplace")
    os.environ["ELMAN_CACHE"] = str(place.cache)
    os.chdir(place.root)
    try:
        open_by(way, place)
    except SystemExit as left:
        return int(left.code or 0)
    except ElmanError as error:
        print(f"error: {error}".encode(errors="backslashreplace").decode())
        return 1
    except BaseException:
        traceback.print_exc()
        return 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    return 0


def campaign(root: Path, selected: list[Case], seed: int, patience_s: float) -> Counter[str]:
    """Do cases, one after another; print those that failed.

    Returns:
        How many there were of each kind, how many failed and refused.
    """
    torch.set_num_threads(1)  # children are forked
    warnings.simplefilter("ignore")
    root.mkdir(parents=True, exist_ok=True)
    clean, counts, slowest = prepare(root), Counter[str](), 0.0
    for number, case in enumerate(selected):
        way = case.ways[random.Random(f"{seed} {number}").randrange(len(case.ways))]
        outcome = tried(case, way, clean, root / "case", f"{seed} {case.name}", patience_s)
        slowest = max(slowest, outcome.seconds)
        counts["cases"] += 1
        counts[f"of {case.kind}"] += 1
        counts["refused"] += "error" in outcome.text.lower()
        counts["failed"] += bool(outcome.failures)
        if outcome.failures:
            name = f"{case.kind}: {case.name}, by {way}".encode("ascii", "backslashreplace")
            print(f"{name.decode()}: {'; '.join(outcome.failures)}", flush=True)
    print(f"{dict(counts)}, the slowest took {slowest:.1f} s")
    return counts


def main() -> None:
    """Read the command line, do the cases, exit with 1 if one failed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="a folder for all files")
    parser.add_argument("--count", type=int, default=400)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="kinds, such as trust,links")
    parser.add_argument("--patience", type=float, default=10.0, help="seconds for a case")
    options = parser.parse_args()
    os.environ["ELMAN_CACHE"] = str((options.out / "cache").resolve())
    only = options.only.split(",") if options.only else [kind.__name__ for kind in KINDS]
    selected = [case for case in cases(options.seed) if case.kind in only][: options.count]
    counts = campaign(options.out.resolve(), selected, options.seed, options.patience)
    sys.exit(1 if counts["failed"] else 0)


if __name__ == "__main__":
    main()

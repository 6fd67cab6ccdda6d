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
import contextlib
import hashlib
import json
import os
import random
import shutil
import signal
import socket
import struct
import sys
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))

import elman
from elman.cli import main as command
from elman.errors import ElmanError
from elman.train.tasks.text.config import TextConfig
from run_folders import forge, small_run

EVIL = """
from pathlib import Path
from elman import cell, ops
Path({mark!r}).touch()
@cell(input="x[I]", state="h[H]", weights="W[H, I], R[H, H]")
def evil(x, h, W, R):
    return ops.tanh(W @ x + R @ h)
"""
NAMES = (
    *(
        "*/ int evil; /*",
        "<script>alert(1)</script>",
        "[red]x[/][/]",
        "\x1b[2J\x07",
        "a\nb\\",
        "\ud800",
    ),
    *("../../../x", "\x00", "%s%n", "$(id)", "\u202ex", "x" * 5000, ""),
)
NUMBERS = (0, -1, 2.5, 1e308, -1e308, 1e-320, 10**30, 10**400, float("nan"), float("inf"), True)
OTHERS = (None, [], {}, "7", [[[]]], {"a": {"b": 1}}, [1, "2"], *NUMBERS, *NAMES)
JSON = ("config.json", "facts.json", "result.json", "model.json")
READ = ("load", "sample", "export", "runs", "report")  # which leave the run's files as they are
WAYS = (*READ, "resume", "train --resume", "weights")


@dataclass(frozen=True)
class Place:
    """What a case has for itself.

    Attributes:
        run: the run folder.
        cache: elman's.
        home: files of the user, which stay as they are.
        mark: what code of the folder would leave.
    """

    root: Path

    run = property(lambda self: self.root / "run")
    cache = property(lambda self: self.root / "cache")
    home = property(lambda self: self.root / "home")
    mark = property(lambda self: self.root / "ran")

    def file(self, name: str) -> Path:
        """A file of the run; ``step/…`` and ``best/…`` of its checkpoints."""
        kind, _, rest = name.partition("/")
        if not rest:
            return self.run / name
        return next((self.run / "checkpoints").glob(f"{kind}-*")) / rest


Change = Callable[[Place, random.Random], None]


@dataclass(frozen=True)
class Case:
    """One way to damage or to forge, and the ways to open what comes of it."""

    kind: str
    name: str
    change: Change
    ways: tuple[str, ...]


# What is put in the place of a file.


def put(content: bytes) -> Callable[[Path], None]:
    return lambda path: path.write_bytes(content) and None


def instead(make: Callable[[Path], object]) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        path.unlink()
        make(path)

    return change


def listening(path: Path) -> None:
    where = os.getcwd()
    os.chdir(path.parent)  # the name of a socket is short
    with contextlib.closing(socket.socket(socket.AF_UNIX)) as one:
        one.bind(path.name)
    os.chdir(where)


def twice(path: Path) -> None:
    content = path.read_text()
    path.write_text(content.replace("{", '{"cell": 7, "step": -1, "tokens": 3, "digest": [],', 1))


FORMS: dict[str, Callable[[Path], None]] = {
    "emptied": put(b""),
    "cut": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]) and None,
    "no text": put(b"\xff\xfe\x00\x81" * 999),
    "deep": put(b'{"a":' * 200_000),
    "deep lists": put(b"[" * 200_000 + b"]" * 200_000),
    "digits": put(b'{"steps": ' + b"9" * 100_000 + b"}"),
    "a list": put(b"[1, 2]"),
    "null": put(b"null"),
    "nan": put(b"NaN"),
    "a mark": lambda path: path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes()) and None,
    "twice": twice,
    "huge": lambda path: os.truncate(path, 1 << 42),
    "gone": lambda path: path.unlink(),
    "a pipe": instead(os.mkfifo),
    "a socket": instead(listening),
    "a folder": instead(Path.mkdir),
    "zeros": instead(lambda path: path.symlink_to("/dev/zero")),
    "a terminal": instead(lambda path: path.symlink_to("/dev/tty")),
    "a link to nothing": instead(lambda path: path.symlink_to(path.with_name("nothing"))),
    "a link to itself": instead(lambda path: path.symlink_to(path)),
    "a link to a pipe": instead(
        lambda path: (os.mkfifo(path.with_suffix(".p")), path.symlink_to(path.with_suffix(".p")))
    ),
}


def forms() -> Iterator[Case]:
    names = [*JSON, "metrics.csv", ".lock", "report.html"]
    names += [f"{at}/{name}" for at in ("step", "best") for name in FILES_OF_CHECKPOINT]
    for name in names:
        for form, make in FORMS.items():

            def change(place: Place, draw: random.Random, name=name, make=make) -> None:
                path = place.file(name)
                if not path.exists():
                    path.write_bytes(b"{}")
                with contextlib.suppress(UnicodeDecodeError):
                    make(path)

            yield Case("forms", f"{name}: {form}", change, WAYS)


FILES_OF_CHECKPOINT = ("checkpoint.json", "tensors.safetensors", "metrics.csv")


# What stands in files of JSON.


def places(content: Any, outer: tuple = ()) -> Iterator[tuple]:
    """Walk through the places of a JSON value."""
    if outer:
        yield outer
    parts = content.items() if isinstance(content, dict) else ()
    parts = enumerate(content) if isinstance(content, list) else parts
    for key, part in parts:
        yield from places(part, (*outer, key))


def replaced(content: Any, where: tuple, value: Any) -> None:
    """Put another value at a place."""
    for key in where[:-1]:
        content = content[key]
    content[where[-1]] = value


def values() -> Iterator[Case]:
    for name in JSON:
        for number, other in enumerate(OTHERS):

            def change(place: Place, draw: random.Random, name=name, other=other) -> None:
                path = place.file(name)
                if not path.exists():
                    path.write_text("{}")
                content = json.loads(path.read_text())
                for where in draw.sample(list(places(content)), min(2, len(content))):
                    with contextlib.suppress(KeyError, IndexError, TypeError):
                        replaced(content, where, other)
                path.write_text(json.dumps(content))

            yield Case("values", f"{name}: {ascii(other)[:40]} ({number})", change, WAYS)


def fields() -> Iterator[Case]:
    for field in TextConfig.__dataclass_fields__:

        def change(place: Place, draw: random.Random, field=field) -> None:
            content = json.loads(place.file("config.json").read_text())
            content[field] = draw.choice((10**9, 2**40, 1e308, -5, 0, "x", None, *NAMES))
            place.file("config.json").write_text(json.dumps(content))

        yield Case("fields", field, change, WAYS)


# Code that a folder names.


def trust() -> Iterator[Case]:
    def named(spell: Callable[[Place], str], formula: Any = "") -> Change:
        def change(place: Place, draw: random.Random) -> None:
            for name in ("config.json", "model.json"):
                content = json.loads(place.file(name).read_text())
                content |= {"cell": spell(place)} if name == "config.json" else {"formula": formula}
                place.file(name).write_text(json.dumps(content))

        return change

    spellings: dict[str, Callable[[Place], str]] = {
        "whole": lambda place: f"{place.run}/evil.py:evil",
        "relative": lambda place: "run/evil.py:evil",
        "up": lambda place: f"{place.home}/../run/evil.py:evil",
        "no suffix": lambda place: f"{place.run}/evil:evil",
        "no cell": lambda place: f"{place.run}/evil.py:",
        "no file": lambda place: ":evil",
        "a method": lambda place: f"{place.run}/evil.py:__doc__",
        "a module": lambda place: "os:system",
        "a file alone": lambda place: f"{place.run}/evil.py",
        "a pipe": lambda place: f"{place.run}/pipe:evil",
        "zeros": lambda place: "/dev/zero:evil",
        "a folder": lambda place: f"{place.run}:evil",
        "the user's": lambda place: f"{place.home}/mine.py:mine",
    }
    for name, spell in spellings.items():
        for formula in ("", "0" * 16, 7):
            yield Case("trust", f"{name}, formula {formula!r}", named(spell, formula), WAYS)
    record = {"cell": "run/evil.py:evil", "sha256": "0" * 64}
    for name in ("runs", "cache/runs", ".cache/elman/runs"):  # in the folder itself

        def change(place: Place, draw: random.Random, name=name) -> None:
            named(spellings["whole"])(place, draw)
            (place.run / name).mkdir(parents=True)
            (place.run / name / f"{'0' * 64}.json").write_text(json.dumps(record))

        yield Case("trust", f"a record in {name}", change, WAYS)


# Checkpoints with right hashes.


def tensors() -> Iterator[Case]:
    changes: dict[str, Callable[[torch.Tensor], torch.Tensor | None]] = {
        "smaller": lambda v: v.flatten()[: v.numel() // 2].clone(),
        "one": lambda v: v.flatten()[:1].clone(),
        "none": lambda v: v.flatten()[:0].clone(),
        "a number": lambda v: torch.zeros((), dtype=v.dtype),
        "larger": lambda v: torch.cat((v.flatten(), v.flatten())),
        "turned": lambda v: v.flatten()[None].clone(),
        "bytes": lambda v: v.to(torch.uint8),
        "doubles": lambda v: v.double(),
        "halves": lambda v: v.half(),
        "eighths": lambda v: v.float().to(torch.float8_e4m3fn),
        "integers": lambda v: v.long(),
        "nan": lambda v: torch.full_like(v, float("nan") if v.is_floating_point() else 255),
        "missing": lambda v: None,
    }
    kinds = ("model.recurrent.weight_hh_l0", "model.embedding.weight", "optimizer.1.exp_avg")
    kinds += ("optimizer.2.exp_avg_sq", "optimizer.0.step", "carried.0", "random.cpu")
    for tensor in kinds:
        for name, made in changes.items():

            def change(place: Place, draw: random.Random, tensor=tensor, made=made) -> None:
                def forged(held: dict[str, Any], facts: dict[str, Any]) -> None:
                    if tensor in held and (value := made(held.pop(tensor))) is not None:
                        held[tensor] = value.contiguous()

                forge(place.run, forged)

            yield Case("tensors", f"{tensor}: {name}", change, ("resume", "load", "weights"))


def facts() -> Iterator[Case]:
    for number, other in enumerate(OTHERS):

        def change(place: Place, draw: random.Random, other=other) -> None:
            def forged(held: dict[str, Any], facts: dict[str, Any]) -> None:
                where = draw.choice(list(places(facts)))
                replaced(facts, where, other)
                with contextlib.suppress(TypeError, KeyError):
                    facts["choices"][draw.choice(NAMES)] = {draw.choice(NAMES): {"engine": other}}

            with contextlib.suppress(UnicodeEncodeError):
                forge(place.run, forged)

        yield Case("facts", f"{ascii(other)[:40]} ({number})", change, ("resume", "load"))
    raw = {
        "a header of 2^62": struct.pack("<Q", 1 << 62),
        "no header": b"",
        "no tensors": struct.pack("<Q", 2) + b"{}",
        "beyond the end": _safetensors({"model.x": ("F32", [2], [0, 1 << 40])}),
        "negative": _safetensors({"model.x": ("F32", [-2], [0, 8])}),
        "endless": _safetensors({"model.x": ("F32", [1 << 62, 0], [0, 0])}),
        "no such type": _safetensors({"model.x": ("F99", [2], [0, 8])}),
        "a name": _safetensors({NAMES[0]: ("F32", [2], [0, 8])}),
    }
    for name, content in raw.items():

        def change(place: Place, draw: random.Random, content=content) -> None:
            for at in ("step", "best"):
                place.file(f"{at}/tensors.safetensors").write_bytes(content)
                told = json.loads(place.file(f"{at}/checkpoint.json").read_text())
                told["sha256"]["tensors.safetensors"] = hashlib.sha256(content).hexdigest()
                place.file(f"{at}/checkpoint.json").write_text(json.dumps(told))

        yield Case("facts", f"safetensors: {name}", change, ("resume", "load", "weights"))


def _safetensors(held: dict[str, tuple[str, list[int], list[int]]]) -> bytes:
    header = {n: {"dtype": d, "shape": s, "data_offsets": at} for n, (d, s, at) in held.items()}
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + bytes(8)


# Links from the folder to the user's files, and files of weights.


def links() -> Iterator[Case]:
    inner = ("checkpoints", "tensorboard", ".lock", "metrics.csv", "report.html", "result.json")
    for name in (*inner, "config.json", "model.json", "facts.json"):

        def change(place: Place, draw: random.Random, name=name) -> None:
            path = place.run / name
            target = place.home / (
                "step" if name in ("checkpoints", "tensorboard") else "letter.txt"
            )
            if path.is_dir():
                shutil.rmtree(path)
            path.unlink(missing_ok=True)
            path.symlink_to(target)

        for way in ("resume", "runs", "report", "load"):
            yield Case("links", f"{name}, {way}", change, (way,))


class Pickled:
    """What a pickle runs."""

    def __init__(self, mark: str) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return os.mkdir, (self.mark,)


def weights() -> Iterator[Case]:
    def saved(make: Callable[[Place], Any]) -> Change:
        return lambda place, draw: torch.save(make(place), place.root / "weights.pt")

    states: dict[str, Callable[[Place], Any]] = {
        "code": lambda place: {"weight_hh_l0": Pickled(str(place.mark))},
        "a list": lambda place: [1, 2],
        "numbers": lambda place: {"weight_hh_l0": 7},
        "no names": lambda place: {7: torch.zeros(2)},
        "sparse": lambda place: {"weight_hh_l0": torch.zeros(24, 8).to_sparse()},
        "halves": lambda place: elman.GRU(4, 8).half().state_dict(),
    }
    for name, make in states.items():
        yield Case("weights", name, saved(make), ("weights.pt",))
    for form, make in FORMS.items():

        def change(place: Place, draw: random.Random, make=make) -> None:
            torch.save({"weight_hh_l0": torch.zeros(24, 8)}, place.root / "weights.pt")
            with contextlib.suppress(UnicodeDecodeError):
                make(place.root / "weights.pt")

        yield Case("weights", form, change, ("weights.pt",))


# The cache, and records of benchmarks.


def caches() -> Iterator[Case]:
    for suffix in (".so", ".lock"):
        for form, make in FORMS.items():

            def change(place: Place, draw: random.Random, suffix=suffix, make=make) -> None:
                for path in sorted((place.cache / "kernels").glob(f"*{suffix}")):
                    with contextlib.suppress(UnicodeDecodeError):
                        make(path)

            yield Case("caches", f"*{suffix}: {form}", change, ("kernel",))
    for form, make in FORMS.items():

        def change(place: Place, draw: random.Random, make=make) -> None:
            for path in sorted((place.cache / "tuning").glob("*.json")):
                with contextlib.suppress(UnicodeDecodeError):
                    make(path)

        yield Case("caches", f"tuning: {form}", change, ("kernel", "tune"))
    for number, other in enumerate(OTHERS):

        def change(place: Place, draw: random.Random, other=other) -> None:
            for path in sorted((place.cache / "tuning").glob("*.json")):
                content = json.loads(path.read_text())
                value = content["value"]
                for where in draw.sample(list(places(value)), min(3, len(value))):
                    with contextlib.suppress(KeyError, IndexError, TypeError):
                        replaced(value, where, other)
                path.write_text(json.dumps(content))

        yield Case("caches", f"tuning: {ascii(other)[:40]} ({number})", change, ("kernel", "tune"))
    for name in ("tuning", "kernels"):
        for mode in (0o777, 0o770, 0o000):

            def change(place: Place, draw: random.Random, name=name, mode=mode) -> None:
                (place.cache / name).chmod(mode)

            yield Case("caches", f"{name}: mode {mode:o}", change, ("kernel",))


KINDS = (forms, values, fields, trust, tensors, facts, links, weights, caches)


def cases(seed: int) -> list[Case]:
    """All there are, those of each kind in a drawn order, the kinds in turn."""
    draw, every = random.Random(seed), [list(kind()) for kind in KINDS]
    for own in every:
        draw.shuffle(own)
    longest = max(map(len, every))
    return [own[k] for k in range(longest) for own in every if k < len(own)]


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
        "train --resume": ["train", "--resume", run, "--no-compare"],
        "weights": ["export", "gru", "--hidden=8", "--inputs=4", f"--c={place.root / 'c'}"],
        "tune": ["tune", "gru", "--hidden=8", "--shape=2,2"],
    }
    words["weights.pt"] = [*words["weights"], f"--weights={place.root / 'weights.pt'}"]
    words["weights"].append(f"--weights={run}")
    command(words[way])


def prepared(root: Path) -> Path:
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
    ours = Path(os.environ["ELMAN_CACHE"])
    place.cache.mkdir()
    for name in ("kernels", "tuning"):
        shutil.copytree(ours / name, place.cache / name) if (ours / name).exists() else None
    return place.root


def hashes(folder: Path) -> dict[str, str]:
    """Of all files below a folder that are files, by name; links as they are."""
    found: dict[str, str] = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_symlink():
            found[name] = f"-> {os.readlink(path)}"
        elif path.is_file() and path.stat().st_size < 1 << 24:
            found[name] = hashlib.sha256(path.read_bytes()).hexdigest()
        else:
            found[name] = "another"
    return found


@dataclass(frozen=True)
class Outcome:
    """How a case went: why it failed, or nothing; what it said; how long it took."""

    failures: list[str]
    said: str
    seconds: float


def tried(case: Case, way: str, clean: Path, root: Path, seed: str, patience_s: float) -> Outcome:
    """Do one case in a process of its own, and judge it."""
    shutil.rmtree(root, ignore_errors=True)
    (root.parent / "mine ran").unlink(missing_ok=True)
    shutil.copytree(clean, root, symlinks=True)
    place = Place(root)
    (place.run / "evil.py").write_text(EVIL.format(mark=str(place.mark)))
    (place.run / "evil").write_text(EVIL.format(mark=str(place.mark)))
    os.mkfifo(place.run / "pipe")
    case.change(place, random.Random(seed))
    home, before = hashes(place.home), hashes(place.run)
    told, began = root / "said", time.monotonic()
    child = os.fork()
    if not child:
        status = 99
        try:
            status = _child(way, place, told)
        finally:
            os._exit(status)
    status = _awaited(child, began + patience_s)
    seconds = time.monotonic() - began
    said = told.read_text(errors="replace") if told.exists() else ""
    failures = []
    if status is None:
        failures.append(f"it hung: {patience_s:g} s")
    elif status not in (0, 1, 2):
        failures.append(f"status {status}")
    if "Traceback" in said:
        failures.append(f"a traceback: {said.strip().splitlines()[-1]}")
    if said.count("error:") > 1 and "Traceback" not in said:
        starts = [line for line in said.splitlines() if line.startswith("error:")]
        if len(starts) > 1:
            failures.append(f"{len(starts)} errors")
    if "\x1b" in said:
        failures.append("it wrote an escape sequence")
    if place.mark.exists() or (root.parent / "mine ran").exists():
        failures.append("code of the folder ran")
    if hashes(place.home) != home:
        failures.append("files of the user have changed")
    after = {name: value for name, value in hashes(place.run).items() if name != "report.html"}
    if way in READ and after != {n: v for n, v in before.items() if n != "report.html"}:
        failures.append("the run's files have changed")
    return Outcome(failures, said, seconds)


def _child(way: str, place: Place, told: Path) -> int:
    """Open a case; what it says goes to a file. A process of its own, with no terminal."""
    os.setsid()
    file = os.open(told, os.O_WRONLY | os.O_CREAT, 0o600)
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


def _awaited(child: int, end: float) -> int | None:
    """The status of a process; None if it had to be ended."""
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None


def campaign(root: Path, chosen: list[Case], seed: int, patience_s: float) -> Counter[str]:
    """Do cases, one after another; print those that failed.

    Returns:
        How many there were of each kind, how many failed and refused.
    """
    torch.set_num_threads(1)  # children are forked
    warnings.simplefilter("ignore")
    root.mkdir(parents=True, exist_ok=True)
    clean, counts, slowest = prepared(root), Counter[str](), 0.0
    for number, case in enumerate(chosen):
        way = case.ways[random.Random(f"{seed} {number}").randrange(len(case.ways))]
        found = tried(case, way, clean, root / "case", f"{seed} {case.name}", patience_s)
        slowest = max(slowest, found.seconds)
        counts["cases"] += 1
        counts[f"of {case.kind}"] += 1
        counts["refused"] += "error" in found.said.lower()
        counts["failed"] += bool(found.failures)
        if found.failures:
            name = f"{case.kind}: {case.name}, by {way}".encode(
                "ascii", "backslashreplace"
            ).decode()
            print(f"{name}: {'; '.join(found.failures)}", flush=True)
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
    asked = parser.parse_args()
    os.environ["ELMAN_CACHE"] = str((asked.out / "cache").resolve())
    only = asked.only.split(",") if asked.only else [kind.__name__ for kind in KINDS]
    chosen = [case for case in cases(asked.seed) if case.kind in only][: asked.count]
    counts = campaign(asked.out.resolve(), chosen, asked.seed, asked.patience)
    sys.exit(1 if counts["failed"] else 0)


if __name__ == "__main__":
    main()

"""Hostile changes to a run folder, a checkpoint or a cache: the cases of hostile_files.py."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import random
import shutil
import struct
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Any

import torch

import elman
from damage import FORMS, NUMBERS, places
from run_folders import forge

EVIL = """
from pathlib import Path
from elman import cell, ops
Path({mark!r}).touch()
@cell(input="x[I]", state="h[H]", weights="W[H, I], R[H, H]")
def evil(x, h, W, R):
    return ops.tanh(W @ x + R @ h)
"""
NAMES = (
    *("*/ int evil; /*", "<script>alert(1)</script>", "[red]x[/][/]", "\x1b[2J\x07", "a\nb\\"),
    *("\ud800", "../../../x", "\x00", "%s%n", "$(id)", "\u202ex", "x" * 5000, ""),
)
FOREIGN = (None, [], {}, "7", [[[]]], {"a": {"b": 1}}, [1, "2"], True, *NUMBERS, *NAMES)
NAMED = {f"{ascii(foreign)[:40]} ({number})": foreign for number, foreign in enumerate(FOREIGN)}
JSON = ("config.json", "facts.json", "result.json", "model.json")
READ = ("load", "sample", "export", "runs", "report")  # which leave the run's files as they are
WAYS = (*READ, "resume", "weights")
MATRIX = {"weight_hh_l0": torch.zeros(24, 8)}
REOPEN = ("resume", "load", "weights")


@dataclass(frozen=True)
class Place:
    """The folder of a case."""

    root: Path

    run = property(lambda self: self.root / "run")  # the run's folder
    cache = property(lambda self: self.root / "cache")  # elman's
    home = property(lambda self: self.root / "home")  # files of the user, which stay as they are
    mark = property(lambda self: self.root / "ran")  # what code of the folder would leave

    def file(self, name: str) -> Path:
        """A file of the run; ``step/…`` and ``best/…`` of its checkpoints."""
        kind, _, inner = name.partition("/")
        if not inner:
            return self.run / name
        return next((self.run / "checkpoints").glob(f"{kind}-*")) / inner


Change = Callable[[Place, random.Random], object]
Find = Callable[[Place], Iterable[Path]]


@dataclass(frozen=True)
class Case:
    """One way to damage or to forge, and the ways to open what comes of it."""

    kind: str
    name: str
    change: Change
    ways: tuple[str, ...]


def file_of_run(name: str) -> Find:
    """A file of the run; with an empty object of JSON if it was not there."""

    def find(place: Place) -> list[Path]:
        path = place.file(name)
        if not path.exists():
            path.write_text("{}")
        return [path]

    return find


def files_of_cache(pattern: str) -> Find:
    return lambda place: sorted(place.cache.glob(pattern))


def save_weights(place: Place, state: Any = MATRIX) -> list[Path]:
    """A file of weights, with such a state."""
    torch.save(state, place.root / "weights.pt")
    return [place.root / "weights.pt"]


_INNER = ("checkpoint.json", "tensors.safetensors", "metrics.csv")
FILES: dict[str, tuple[Find, tuple[str, ...]]] = {  # and the ways to open them
    **{name: (file_of_run(name), WAYS) for name in (*JSON, "metrics.csv", ".lock", "report.html")},
    **{
        f"{at}/{name}": (file_of_run(f"{at}/{name}"), WAYS)
        for at in ("step", "best")
        for name in _INNER
    },
    "weights": (save_weights, ("weights.pt",)),
    "*.so": (files_of_cache("kernels/*.so"), ("kernel",)),
    "*.lock": (files_of_cache("kernels/*.lock"), ("kernel",)),
    "tuning": (files_of_cache("tuning/*.json"), ("kernel", "tune")),
}


def forms() -> Iterator[Case]:
    def change(find: Find, form: str, place: Place, draw: random.Random) -> None:
        for path in find(place):
            with contextlib.suppress(UnicodeDecodeError):
                FORMS[form](path)

    for name, (find, ways) in FILES.items():
        for form in FORMS:
            yield Case("forms", f"{name}: {form}", partial(change, find, form), ways)


def replaced(content: Any, location: tuple, value: Any) -> None:
    """Put another value at a place."""
    for key in location[:-1]:
        content = content[key]
    content[location[-1]] = value


def edited(path: Path, edit: Callable[[Any], object]) -> None:
    """Change what a file of JSON has."""
    content = json.loads(path.read_text())
    edit(content)
    path.write_text(json.dumps(content))


def values() -> Iterator[Case]:
    def change(find: Find, foreign: Any, place: Place, draw: random.Random) -> None:
        def edit(content: Any) -> None:
            value = content.get("value", content)  # of a record of choices; a run's file
            for location in draw.sample(list(places(value)), min(3, len(value))):
                with contextlib.suppress(KeyError, IndexError, TypeError):
                    replaced(value, location, foreign)

        for path in find(place):
            edited(path, edit)

    for file in (*JSON, "tuning"):
        find, ways = FILES[file]
        for name, foreign in NAMED.items():
            yield Case("values", f"{file}: {name}", partial(change, find, foreign), ways)


SPELLINGS: dict[str, Callable[[Place], str]] = {
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


def trust() -> Iterator[Case]:
    def spelled(spelling: str, formula: Any, place: Place, draw: random.Random) -> None:
        cell = {"cell": SPELLINGS[spelling](place)}
        edited(place.file("config.json"), lambda content: content.update(cell))
        edited(place.file("model.json"), lambda content: content.update({"formula": formula}))

    def recorded(name: str, place: Place, draw: random.Random) -> None:
        spelled("whole", "", place, draw)
        (place.run / name).mkdir(parents=True)
        record = {"cell": "run/evil.py:evil", "sha256": "0" * 64}
        (place.run / name / f"{'0' * 64}.json").write_text(json.dumps(record))

    for name in SPELLINGS:
        for formula in ("", "0" * 16, 7):
            change = partial(spelled, name, formula)
            yield Case("trust", f"{name}, formula {formula!r}", change, WAYS)
    for name in ("runs", "cache/runs", ".cache/elman/runs"):  # in the folder itself
        yield Case("trust", f"a record in {name}", partial(recorded, name), WAYS)


def tensors() -> Iterator[Case]:
    changes: dict[str, Callable[[torch.Tensor], torch.Tensor | None]] = {
        "smaller": lambda v: v.flatten()[: v.numel() // 2].clone(),
        "one": lambda v: v.flatten()[:1].clone(),
        "none": lambda v: v.flatten()[:0].clone(),
        "a number": lambda v: torch.zeros((), dtype=v.dtype),
        "larger": lambda v: torch.cat((v.flatten(), v.flatten())),
        "turned": lambda v: v.flatten()[None].clone(),
        "bytes": lambda v: v.to(torch.uint8),
        "doubles": torch.Tensor.double,
        "halves": torch.Tensor.half,
        "eighths": lambda v: v.float().to(torch.float8_e4m3fn),
        "integers": torch.Tensor.long,
        "nan": lambda v: torch.full_like(v, float("nan") if v.is_floating_point() else 255),
        "missing": lambda v: None,
    }

    def change(tensor: str, changed: Any, place: Place, draw: random.Random) -> None:
        def forged(stored: dict[str, Any], facts: dict[str, Any]) -> None:
            if tensor in stored and (value := changed(stored.pop(tensor))) is not None:
                stored[tensor] = value.contiguous()

        forge(place.run, forged)

    kinds = ("model.recurrent.weight_hh_l0", "model.embedding.weight", "optimizer.1.exp_avg")
    kinds += ("optimizer.2.exp_avg_sq", "optimizer.0.step", "carried.0", "random.cpu")
    for tensor in kinds:
        for name, changed in changes.items():
            yield Case("tensors", f"{tensor}: {name}", partial(change, tensor, changed), REOPEN)


def safetensors(name: str, dtype: str, shape: list[int], at: list[int]) -> bytes:
    """A file with that header."""
    text = json.dumps({name: {"dtype": dtype, "shape": shape, "data_offsets": at}}).encode()
    return struct.pack("<Q", len(text)) + text + bytes(8)


RAW = {
    "a header of 2^62": struct.pack("<Q", 1 << 62),
    "no header": b"",
    "no tensors": struct.pack("<Q", 2) + b"{}",
    "beyond the end": safetensors("model.x", "F32", [2], [0, 1 << 40]),
    "negative": safetensors("model.x", "F32", [-2], [0, 8]),
    "endless": safetensors("model.x", "F32", [1 << 62, 0], [0, 0]),
    "no such type": safetensors("model.x", "F99", [2], [0, 8]),
    "a name": safetensors(NAMES[0], "F32", [2], [0, 8]),
}


def facts() -> Iterator[Case]:
    def change(foreign: Any, place: Place, draw: random.Random) -> None:
        def forged(stored: dict[str, Any], facts: dict[str, Any]) -> None:
            replaced(facts, draw.choice(list(places(facts))), foreign)
            with contextlib.suppress(TypeError, KeyError):
                facts["choices"][draw.choice(NAMES)] = {draw.choice(NAMES): {"engine": foreign}}

        with contextlib.suppress(UnicodeEncodeError):
            forge(place.run, forged)

    def raw(content: bytes, place: Place, draw: random.Random) -> None:
        sha256 = {"tensors.safetensors": hashlib.sha256(content).hexdigest()}
        for at in ("step", "best"):
            place.file(f"{at}/tensors.safetensors").write_bytes(content)
            edited(
                place.file(f"{at}/checkpoint.json"), lambda record: record["sha256"].update(sha256)
            )

    for name, foreign in NAMED.items():
        yield Case("facts", name, partial(change, foreign), ("resume", "load"))
    for name, content in RAW.items():
        yield Case("facts", f"safetensors: {name}", partial(raw, content), REOPEN)


def links() -> Iterator[Case]:
    def change(name: str, place: Place, draw: random.Random) -> None:
        path = place.run / name
        if path.is_dir():
            shutil.rmtree(path)
        path.unlink(missing_ok=True)
        folder = name in ("checkpoints", "tensorboard")
        path.symlink_to(place.home / ("step" if folder else "letter.txt"))

    inner = ("checkpoints", "tensorboard", ".lock", "metrics.csv", "report.html", "result.json")
    for name in (*inner, "config.json", "model.json", "facts.json"):
        for way in ("resume", "runs", "report", "load"):
            yield Case("links", f"{name}, {way}", partial(change, name), (way,))


@dataclass(frozen=True)
class Pickled:
    """A value whose unpickling makes a folder."""

    mark: str

    def __reduce__(self) -> Any:
        return os.mkdir, (self.mark,)


def weights() -> Iterator[Case]:
    states: dict[str, Callable[[Place], Any]] = {
        "code": lambda place: {"weight_hh_l0": Pickled(str(place.mark))},
        "a list": lambda place: [1, 2],
        "numbers": lambda place: {"weight_hh_l0": 7},
        "no names": lambda place: {7: torch.zeros(2)},
        "sparse": lambda place: {"weight_hh_l0": torch.zeros(24, 8).to_sparse()},
        "halves": lambda place: elman.GRU(4, 8).half().state_dict(),
    }
    for name, state in states.items():
        change = lambda place, draw, state=state: save_weights(place, state(place))  # noqa: E731
        yield Case("weights", name, change, ("weights.pt",))


def caches() -> Iterator[Case]:
    for name in ("tuning", "kernels"):
        for mode in (0o777, 0o770, 0o000):
            change = lambda place, draw, at=(name, mode): (place.cache / at[0]).chmod(at[1])  # noqa: E731
            yield Case("caches", f"{name}: mode {mode:o}", change, ("kernel",))


KINDS = (forms, values, trust, tensors, facts, links, weights, caches)


def cases(seed: int) -> list[Case]:
    """Every case: kinds in turn, those of each kind in random order."""
    draw, groups = random.Random(seed), [list(kind()) for kind in KINDS]
    for group in groups:
        draw.shuffle(group)
    return [case for turn in zip_longest(*groups) for case in turn if case is not None]

"""Is one of torch's layers ever faster than what ``elman.accelerate`` puts in its place?

    python -m benchmarks.scripts.never_slower --out FILE.jsonl [--rows GRU*] [--seconds 2]
    python -m benchmarks.scripts.never_slower --from FILE.jsonl

Each shape runs in processes of its own: with an empty cache, as the first run of a user, and again
with what that one left. A row has the speed-ups (median of quotients of alternating rounds, whole
calls as a user makes them), the engine that was chosen, and that of engines ``c`` and ``aten`` by
name, and a second layer of torch's: what that one differs from 1 is noise. The last lines say how
many shapes are below 0.97 of torch's speed, and how many choices were wrong: another engine than
the chosen one was more than 5 % faster in the same process.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

import elman
from benchmarks.machine import code, facts
from benchmarks.rows import append_row
from elman.nn.records import choices

FLOOR, WRONG = 0.97, 1.05
ROUNDS = 25


class Shape(NamedTuple):
    """A call of a layer.

    Attributes:
        kind: RNN, GRU or LSTM.
        T, B, I, H, layers, directions: sizes.
        how: train; infer, without gradients; step: infer with T = 1, the state handed on; onehot:
            train with inputs of zeros but for a one.
    """

    kind: str
    T: int
    B: int
    I: int
    H: int
    how: str = "train"
    layers: int = 1
    directions: int = 1

    @property
    def name(self) -> str:
        """For a table."""
        more = f" x{self.layers}" * (self.layers > 1) + " both" * (self.directions > 1)
        return f"{self.kind}{more} ({self.T},{self.B},{self.I},{self.H}) {self.how}"


def shapes() -> list[Shape]:
    """Sixty: single steps, wide inputs, small and large batches, several layers."""
    rows = [
        Shape(kind, T, B, I, H, how)
        for kind in ("GRU", "LSTM", "RNN")
        for T, B, I, H, how in (
            (1, 1, 64, 64, "step"),
            (1, 16, 64, 128, "step"),
            (1, 50, 32, 100, "train"),
            (1, 256, 512, 512, "train"),
            (10, 1, 16, 32, "train"),
            (20, 32, 16, 16, "train"),
            (50, 32, 64, 64, "infer"),
            (100, 16, 64, 64, "train"),
            (100, 64, 32, 256, "train"),
            (30, 128, 100, 512, "train"),
            (500, 4, 8, 32, "train"),
            (1000, 1, 40, 64, "infer"),
        )
    ]
    rows += [Shape(kind, 1, 50, 5000, 100, "onehot") for kind in ("GRU", "LSTM")]
    rows += [
        Shape("GRU", 1, 50, 5000, 100),
        Shape("GRU", 1, 1, 2000, 256, "step"),
        Shape("GRU", 10, 32, 4000, 64),
        Shape("LSTM", 5, 8, 3000, 300),
        Shape("RNN", 1, 100, 8000, 50),
        Shape("GRU", 10, 64, 1000, 1000),
        Shape("LSTM", 10, 64, 1000, 1000),
        Shape("GRU", 1, 64, 1024, 1024),
        Shape("GRU", 50, 20, 300, 300),
        Shape("LSTM", 35, 20, 650, 650),
        Shape("GRU", 100, 4, 128, 128),
        Shape("LSTM", 24, 32, 7, 64),
        Shape("GRU", 24, 32, 7, 64),
        Shape("GRU", 100, 16, 64, 64, "train", 2),
        Shape("LSTM", 100, 16, 64, 128, "train", 3),
        Shape("LSTM", 50, 32, 100, 100, "train", 1, 2),
        Shape("GRU", 50, 32, 100, 100, "train", 2, 2),
        Shape("GRU", 1, 32, 64, 64, "train", 2),
        Shape("LSTM", 1, 8, 512, 512, "step", 2),
        Shape("RNN", 2, 512, 64, 64),
        Shape("LSTM", 2, 512, 64, 64),
        Shape("GRU", 3, 1024, 32, 32),
    ]
    return rows


def call_of(net: Any, shape: Shape) -> Callable[[], Any]:
    """A call as a user makes it, with inputs that are the same for all."""
    source = torch.Generator().manual_seed(0)
    size = shape.T, shape.B, shape.I
    if shape.how == "onehot":
        places = torch.randint(shape.I, size[:2], generator=source)
        x = nn.functional.one_hot(places, shape.I).float()
    else:
        x = torch.randn(size, generator=source)
    if shape.how == "train":
        x.requires_grad_(shape.I <= 1024)  # wider ones are inputs of a model
    dy = torch.randn(shape.T, shape.B, shape.H * shape.directions, generator=source)
    if shape.how in ("train", "onehot"):
        parameters = [*net.parameters()]

        def train() -> None:
            for value in (*parameters, x):
                value.grad = None
            net(x)[0].backward(dy)

        return train
    state: list[Any] = [None]

    def step() -> None:
        with torch.no_grad():
            state[0] = net(x, state[0])[1]

    def infer() -> None:
        with torch.no_grad():
            net(x)

    return step if shape.how == "step" else infer


def measured(shape: Shape, seconds: float) -> dict[str, Any]:
    """Speed-ups in this process: of what is chosen, then of engines by name."""
    torch.manual_seed(0)
    kind = getattr(nn, shape.kind)
    theirs = kind(shape.I, shape.H, shape.layers, bidirectional=shape.directions > 1)
    nets: dict[str, Any] = {"torch": theirs, "twin": copy.deepcopy(theirs)}
    for engine in ("auto", "c", "aten"):
        nets[engine] = elman.accelerate(
            kind(shape.I, shape.H, shape.layers, bidirectional=shape.directions > 1)
        )
        nets[engine].load_state_dict(theirs.state_dict())
        nets[engine].engine = engine
    calls = {name: call_of(net, shape) for name, net in nets.items()}
    chosen = ("torch", "auto")
    begin = time.perf_counter()
    calls["auto"]()
    first_s = time.perf_counter() - begin
    ratios = compared({name: calls[name] for name in chosen}, seconds)
    engine = next(iter(next(iter(choices(nets["auto"]).values())).values()))
    by_name = compared(calls, seconds)
    return {
        "first_s": first_s,
        "engine": f"{engine['engine']}:{engine['schedule']}",
        **ratios,
        "by_name": by_name,
    }


def compared(calls: dict[str, Callable[[], Any]], seconds: float) -> dict[str, float]:
    """How many times as fast as torch's layer each is."""
    for call in calls.values():
        call()
        call()
    begin = time.perf_counter()
    for call in calls.values():
        call()
    count = max(1, int(seconds / ROUNDS / max(time.perf_counter() - begin, 1e-6)))
    rounds: list[dict[str, float]] = []
    for turn in range(ROUNDS):
        row: dict[str, float] = {}
        for name in [*calls][:: 1 if turn % 2 else -1]:
            begin = time.perf_counter()
            for _ in range(count):
                calls[name]()
            row[name] = time.perf_counter() - begin
        rounds.append(row)
    return {
        name: statistics.median([row["torch"] / row[name] for row in rounds])
        for name in calls
        if name != "torch"
    }


def alone(number: int, seconds: float, cache: str) -> dict[str, Any]:
    """A shape in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.scripts.never_slower", "--alone", str(number)]
    done = subprocess.run(
        [*command, "--seconds", str(seconds)],
        env={**os.environ, "ELMAN_CACHE": cache},
        capture_output=True,
        text=True,
        timeout=600,
        check=True,
    )
    return json.loads(done.stdout.splitlines()[-1])


def table(rows: list[dict[str, Any]]) -> str:
    """The rows, and what they come to."""
    lines = [
        "| shape | empty cache | full cache | engine | c | aten | torch's, twice |",
        "|---|---:|---:|---|---:|---:|---:|",
    ]
    runs: list[tuple[str, dict[str, Any]]] = []
    for row in rows:
        first, again = row["empty"], row["full"]
        runs += [(row["shape"], first), (row["shape"], again)]
        named = again["by_name"]
        lines.append(
            f"| {row['shape']} | {first['auto']:.2f} | {again['auto']:.2f} | {again['engine']} | "
            f"{named['c']:.2f} | {named['aten']:.2f} | {named['twin']:.2f} |"
        )
    slow = [f"{name} {run['auto']:.2f}" for name, run in runs if run["auto"] < FLOOR]
    wrong = [
        name
        for name, run in runs
        for engine in ("c", "aten")
        if not run["engine"].startswith(engine)
        and run["by_name"][engine] > WRONG * run["by_name"]["auto"]
    ]
    medians = statistics.median([run["auto"] for _, run in runs]) if runs else 0.0
    lines += [
        "",
        f"{len(rows)} shapes, median {medians:.2f} times as fast; below {FLOOR}: {len(slow)} of "
        f"{len(runs)} runs{': ' * bool(slow)}{', '.join(slow)}",
        f"wrong choices: {len(wrong)} of {len(runs)}{': ' * bool(wrong)}{', '.join(wrong)}",
    ]
    return "\n".join(lines)


def main() -> None:
    """Measure, or print what was measured."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--out", type=Path)
    parser.add_argument("--from", type=Path, dest="source")
    parser.add_argument("--rows", default="*")
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--alone", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.alone is not None:
        print(json.dumps(measured(shapes()[given.alone], given.seconds)))
        return
    if given.source is not None:
        lines = given.source.read_text(encoding="utf-8").splitlines()
        print(table([json.loads(line) for line in lines]))
        return
    rows: list[dict[str, Any]] = []
    for number, shape in enumerate(shapes()):
        if not fnmatch(shape.name, given.rows):
            continue
        with tempfile.TemporaryDirectory() as cache:
            row: dict[str, Any] = {"shape": shape.name}
            row |= {name: alone(number, given.seconds, cache) for name in ("empty", "full")}
        row |= {"machine": facts(), "code": code()}
        rows.append(row)
        print(f"{shape.name}: {row['empty']['auto']:.2f}, {row['full']['auto']:.2f}", flush=True)
        if given.out is not None:
            append_row(given.out, row)
    print(table(rows))


if __name__ == "__main__":
    main()

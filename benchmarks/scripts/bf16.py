"""Products of bfloat16 in training on a CPU: elman in float32 and with ``precision="bf16"``, and
torch's own layers in float32 and under autocast for bfloat16.

    python -m benchmarks.scripts.bf16 [--quick | --cpu | --users | --sizes T,B,H ...] [--only NAME]
        [--wall] [--out F]

Forward and backward with all gradients, input size = hidden size; of LinearCrossEntropyLoss T is
the number of rows and B that of classes; models of suite ``users`` run under autocast, and torch's
are the loops of their projects. Ways alternate in one process;
medians are printed in ms with their quartiles, and written as rows: of the processor time of all
threads, or with ``--wall`` of the time. Where others use the machine, processor time with one
thread is the steadier one. GFLOP/s are those of the products.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

import elman
from benchmarks.cases import OURS
from benchmarks.machine import code, facts
from benchmarks.rows import append_row
from benchmarks.suites.cpu import AWKWARD, PADDED, RATIOS
from benchmarks.suites.users import AIMS
from benchmarks.users import PROJECTS, USER, draw_user, enter_user
from elman import cells

CASES = [(50, 64, 512), (25, 64, 1024), (128, 256, 512), (100, 1, 1024), (1000, 1, 256)]  # T, B, H
QUICK = [(5, 3, 16)]
SHAPES = [tuple(map(int, shape.split(","))) for shape in (*RATIOS, *AWKWARD, *PADDED)]
OTHERS = [shape for shape in SHAPES if shape not in CASES]
GATES = {"GRU": 3, "LSTM": 4, "RNN": 1, "lstm_layernorm": 4}
LOSS = "LinearCrossEntropyLoss"
LOSSES = [(700, 10_000, 200), (700, 10_000, 650)]
USERS = {  # by name without sizes
    aim.case.name.rsplit(" ", 1)[0]: aim.case
    for aim in AIMS
    if aim.case.measure is USER and aim.case.kind in PROJECTS
}
Runs = dict[str, Callable[[], Any]]  # by the name of the way


class Decoder(nn.Module):
    """A loss of fixed targets, called as layers are."""

    def __init__(self, loss: nn.Module, targets: torch.Tensor) -> None:
        super().__init__()
        self.loss, self.targets = loss, targets

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor]:
        """The loss of x [N, H]."""
        return (self.loss(x, self.targets),)


def losses(rows: int, classes: int, size: int) -> dict[str, tuple[nn.Module, bool]]:
    """As :func:`layers`, of the decoder of a language model and its loss."""
    targets = torch.randint(classes, (rows,))
    loss, torchs = (Decoder(getattr(where, LOSS)(size, classes), targets) for where in (elman, nn))
    ways = {"float32": (loss, False), "bf16": (loss, True)}
    return {**ways, "torch": (torchs, False), "torch autocast": (torchs, True)}


def layers(name: str, size: int) -> dict[str, tuple[nn.Module, bool]]:
    """What is timed by name, and whether autocast is on."""
    if name in ("GRU", "LSTM", "RNN"):
        kind = getattr(elman, name)
        plain, torchs = kind(size, size), getattr(nn, name)(size, size)
        beside = {"torch": (torchs, False), "torch autocast": (torchs, True)}
        rounded = kind(size, size, precision="bf16")
    else:
        cell = getattr(cells, name)
        plain, beside = elman.Recurrent(cell, size, size), {}
        rounded = elman.Recurrent(cell, size, size, precision="bf16")
    rounded.load_state_dict(plain.state_dict())
    return {"float32": (plain, False), "bf16": (rounded, False), **beside}


def step(layer: nn.Module, autocast: bool, x: torch.Tensor) -> Callable[[], Any]:
    """A training step without an optimizer."""
    d = torch.randn(x.shape)

    def run() -> None:
        x.grad = None
        layer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            out = layer(x)[0]
        out.backward(d.to(out.dtype) if out.dim() else None)

    return run


def layer_cases(name: str, shapes: Iterable[Sequence[int]]) -> Iterator[Any]:
    """Sizes, millions of operations in products, and runs, of a layer or the loss."""
    for T, B, H in shapes:
        if name == LOSS:
            x, ways, products = torch.randn(T, H), losses(T, B, H), 6e-6 * T * B * H
        else:
            x, ways = torch.randn(T, B, H), layers(name, H)
            products = 12e-6 * T * B * GATES[name] * H * H
        x.requires_grad_()
        runs: Runs = {way: step(*each, x) for way, each in ways.items()}
        yield (T, B, H), products, runs


def user_case(name: str, quick: bool) -> Iterator[Any]:
    """As :func:`layer_cases`, of a model of suite ``users``, the operations of which are
    unknown."""
    case = replace(USERS[name], T=3, B=2, H=16) if quick else USERS[name]
    problem, runs = draw_user(case), dict[str, Callable[[], Any]]()
    loop = next(iter(PROJECTS[case.kind].ways))
    for way, contestant, half in (
        ("float32", OURS, None),
        ("bf16", OURS, torch.bfloat16),
        ("torch", loop, None),
        ("torch autocast", loop, torch.bfloat16),
    ):
        model: Any = enter_user(contestant, problem, half)
        runs[way] = model.run
    yield (case.T, case.B, case.H), None, runs


def cases_of(names: Iterable[str], shapes: Iterable[Sequence[int]], quick: bool) -> Iterator[Any]:
    """Name, sizes, millions of operations in products (None: unknown), and runs."""
    for name in names:
        layer = LOSSES if name == LOSS and not quick else shapes
        of = user_case(name, quick) if name in USERS else layer_cases(name, layer)
        yield from ((name, *each) for each in of)


def _sizes(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(",")))


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a table, and write its rows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one tiny case")
    parser.add_argument("--cpu", action="store_true", help="the other shapes of suite cpu")
    parser.add_argument("--users", action="store_true", help="models of suite users")
    parser.add_argument("--sizes", nargs="+", type=_sizes, help="of layers: T,B,H")
    parser.add_argument("--wall", action="store_true", help="time, not processor time")
    parser.add_argument("--only", choices=(*GATES, LOSS, *USERS), help="one of them")
    parser.add_argument("--out", type=Path, help="rows, a line each")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--seconds", type=float, default=20.0, help="for each row")
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    clock = time.perf_counter if options.wall else time.process_time
    names = [*GATES] if options.sizes else USERS if options.users else [*GATES, LOSS]
    names = [options.only] if options.only else names
    shapes = options.sizes or (QUICK if options.quick else OTHERS if options.cpu else CASES)
    for name, (T, B, H), products, runs in cases_of(names, shapes, options.quick):
        for way, run in [*runs.items()]:
            try:
                run()
                run()
            except RuntimeError as error:
                if not way.startswith("torch"):
                    raise
                del runs[way]  # this processor has no such products for torch
                print(f"{way} does not run {name} here: {error}", file=sys.stderr)
        times: dict[str, list[float]] = {way: [] for way in runs}
        end = time.perf_counter() + (0.0 if options.quick else options.seconds)
        while time.perf_counter() < end or len(times["bf16"]) < 3:
            for way, run in runs.items():
                start = clock()
                run()
                times[way].append((clock() - start) * 1e3)
        quartiles = {way: statistics.quantiles(values, n=4) for way, values in times.items()}
        shown = [f"{way} {m:.2f} ({a:.2f}-{b:.2f})" for way, (a, m, b) in quartiles.items()]
        medians = {way: m for way, (_, m, _) in quartiles.items()}
        gains = [f"{medians[way] / medians['bf16']:.2f} of {way}" for way in runs if way != "bf16"]
        rate = products and products / medians["bf16"]
        row = f"{name} ({T},{B},{H}): {', '.join(shown)}; bf16 is {', '.join(gains)}"
        print(f"{row}; {rate:.0f} GFLOP/s" if rate else row, flush=True)
        if options.out is not None:
            seconds = {
                way: {"median": m / 1e3, "q1": a / 1e3, "q3": b / 1e3}
                for way, (a, m, b) in quartiles.items()
            }
            of = {"clock": "wall" if options.wall else "cpu", "threads": options.threads}
            of |= {"gflops": rate, **code(), "machine": facts()}
            append_row(options.out, {"case": f"{name} {T},{B},{H}", "seconds": seconds, **of})


if __name__ == "__main__":
    main()

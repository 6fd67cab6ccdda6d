"""Layers of integers: how well they learn, how long a training step takes, and their C.

    python -m benchmarks.scripts.integers --data DIR --out FILE.jsonl
        [--parts accuracy,steps,c,cortex]

Accuracy: DIR has the folder ``fsdd`` (spoken digits, raw audio). A cell learns in float32; then the
same weights are rounded after calibration alone, and trained further with integers, for as many
steps as the float32 model is trained further. The held-out half is read once by each. Steps: a
training step of ``quantize=8`` and of float32, in turns. C: the exported step in both, in turns,
and their sizes. Cortex: bytes, and instructions of a step, of the C in both on an emulated
Cortex-M4 (``arm-none-eabi-gcc`` and ``qemu-system-arm``), with its floating-point unit for float32.
A case that has a row is not run again.
"""

from __future__ import annotations

import argparse
import copy
import ctypes
import re
import statistics
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import elman
from benchmarks.machine import code, facts
from benchmarks.rows import Row, append_row, read_rows
from benchmarks.timing import time_side_by_side
from elman.frontend.cell import Cell
from elman.train.tasks.sequences.config import SeriesConfig
from elman.train.tasks.sequences.data import SequenceData, Tensors, prepare_series

CELLS = ("gru", "lstm", "mingru", "mgu", "rnn", "indrnn")
SEEDS = (1, 2, 3)
PATCH, UNITS, BATCH, RATE = 16, 64, 50, 5e-3
SIZES = ((128, 32, 100), (256, 32, 50))  # units, samples, steps of a training step
STREAMS = (64, 128, 256)  # units of the exported layers
PARTS = ("accuracy", "steps", "c", "cortex")
SHOWN = ("scores", "seconds", "ns", "sizes", "cortex-m4")
CORE = ("-mcpu=cortex-m4", "-mthumb")
UNIT = ("-mfloat-abi=hard", "-mfpu=fpv4-sp-d16", "-DFLOATS")
LINKED = ("--specs=nano.specs", "--specs=rdimon.specs", "-nostartfiles")
BOARD = Path(__file__).parents[1] / "cortex_m"


class Recogniser(nn.Module):
    """Recurrent layers, and a linear layer on the mean of their outputs."""

    def __init__(self, cell: Cell, inputs: int, classes: int, quantize: int | None) -> None:
        super().__init__()
        self.front, self.head = nn.Linear(inputs, UNITS), nn.Linear(UNITS, classes)
        self.layer = elman.Recurrent(cell, UNITS, UNITS, quantize=quantize)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        out = self.layer(self.front(x))[0]
        known = (torch.arange(len(x)).unsqueeze(1) < lengths).unsqueeze(-1)
        return self.head((out * known).sum(0) / lengths.unsqueeze(-1))


def learn(model: nn.Module, data: SequenceData, steps: int, rate: float, seed: int) -> None:
    """Train for some steps, with a step size that falls to 0."""
    source = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.Adam(model.parameters(), rate)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, steps)
    for _ in range(steps):
        rows = torch.randint(len(data.fit), (BATCH,), generator=source)
        batch = data.cut(data.fit, rows)
        (x, lengths), y = batch.inputs, batch.targets
        loss = nn.functional.cross_entropy(model(x, lengths), y)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()


@torch.no_grad()
def accuracy(model: nn.Module, data: SequenceData, half: Tensors) -> float:
    """Share of a half that is recognised."""
    right = 0
    for rows in torch.arange(len(half)).split(100):
        batch = data.cut(half, rows)
        (x, lengths), y = batch.inputs, batch.targets
        right += int((model(x, lengths).argmax(-1) == y).sum())
    return right / len(half)


def learned(name: str, data: SequenceData, steps: int) -> Row:
    """Accuracies of a cell by seed: in float32, trained further, after calibration, trained with
    integers."""
    cell, classes = getattr(elman.cells, name), len(data.spec.classes)
    scores: dict[str, list[float]] = {k: [] for k in ("float32", "further", "after", "trained")}
    for seed in SEEDS:
        torch.manual_seed(seed)
        plain = Recogniser(cell, data.spec.inputs, classes, None)
        learn(plain, data, steps, RATE, seed)
        whole = Recogniser(cell, data.spec.inputs, classes, 8)
        whole.load_state_dict(plain.state_dict(), strict=False)
        typical = torch.arange(0, len(data.fit), max(1, len(data.fit) // 50))
        with torch.no_grad():
            whole.layer.calibrate(whole.front(data.cut(data.fit, typical).inputs[0]))
        further = copy.deepcopy(plain)
        scores["float32"].append(accuracy(plain, data, data.validation_half))
        scores["after"].append(accuracy(whole, data, data.validation_half))
        for model, kind in ((further, "further"), (whole, "trained")):
            learn(model, data, max(1, steps // 3), RATE / 4, seed + 100)
            scores[kind].append(accuracy(model, data, data.validation_half))
    return {"steps": steps, "scores": scores}


def in_turns(runs: dict[str, Callable[[], Any]], seconds: float) -> dict[str, float]:
    """Median seconds of each, called in turns."""
    samples = time_side_by_side(runs, seconds, 5)
    return {name: statistics.median(of.steady) for name, of in samples.items()}


def stepped(name: str, units: int, batch: int, steps: int, seconds: float) -> Row:
    """Seconds of a training step in float32 and with integers."""
    cell, x = getattr(elman.cells, name), torch.randn(steps, batch, units)
    plain = elman.Recurrent(cell, units, units, engine="c")
    whole = elman.Recurrent(cell, units, units, engine="c", quantize=8).calibrate(x)

    def train(net: nn.Module) -> Callable[[], None]:
        return lambda: net(x)[0].sum().backward()

    torch.set_num_threads(1)
    return {"seconds": in_turns({"float32": train(plain), "int8": train(whole)}, seconds)}


def exported(name: str, units: int, seconds: float) -> Row:
    """Nanoseconds of a step in C, bytes of its code and constants, and of its memory, in float32
    and with integers."""
    cell, x = getattr(elman.cells, name), torch.randn(50, 4, units)
    nets = {
        "float32": elman.Recurrent(cell, units, units),
        "int8": elman.Recurrent(cell, units, units, quantize=8).calibrate(x),
    }
    runs: dict[str, Callable[[], Any]] = {}
    kept: list[Any] = []
    sizes: dict[str, dict[str, int]] = {}
    steps = 200
    with tempfile.TemporaryDirectory() as folder:
        for kind, net in nets.items():
            elman.export.to_c(net, Path(folder) / kind, "m")
            run("make", "-s", "-C", f"{folder}/{kind}", "libm.so", "m.o")
            code_bytes = int(run("size", f"{folder}/{kind}/m.o").splitlines()[1].split()[0])
            library = ctypes.CDLL(f"{folder}/{kind}/libm.so")
            state = (ctypes.c_uint8 * library.m_bytes())()
            library.m_init(state)
            dtype = torch.float32 if kind == "float32" else torch.int16
            given = torch.zeros(steps, units, dtype=dtype)
            out = torch.zeros(steps, units, dtype=torch.int32)  # as wide as any
            kept += [library, state, given, out]
            at = [ctypes.c_void_p(v.data_ptr()) for v in (given, out)]
            runs[kind] = partial(library.m_run, state, *at, steps)
            sizes[kind] = {"code": code_bytes, "memory": library.m_bytes()}
        spent = in_turns(runs, seconds)
    return {"ns": {kind: 1e9 * t / steps for kind, t in spent.items()}, "sizes": sizes}


def run(*words: object) -> str:
    """The output of a program."""
    done = subprocess.run([str(w) for w in words], check=True, capture_output=True, text=True)
    return done.stdout


def emulated(name: str, units: int) -> Row:
    """Bytes of code and constants, memory and stack, and instructions of a step, on a Cortex-M4."""
    torch.manual_seed(0)
    cell, x = getattr(elman.cells, name), torch.randn(50, 4, units)
    nets = {
        "float32": elman.Recurrent(cell, units, units),
        "int8": elman.Recurrent(cell, units, units, quantize=8).calibrate(x),
    }
    row: Row = {}
    for kind, net in nets.items():
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place)
            elman.export.to_c(net, folder, "m")
            target = (*CORE, *(UNIT if kind == "float32" else ("-mfloat-abi=soft",)))
            text, program = folder / "m.o", folder / "m.elf"
            gcc = "arm-none-eabi-gcc", "-O2", *target
            run(
                *gcc,
                "-std=c99",
                "-ffreestanding",
                "-fstack-usage",
                "-c",
                folder / "m.c",
                "-o",
                text,
            )
            usage = (folder / "m.su").read_text(encoding="utf-8").splitlines()
            stacks = [int(line.split("\t")[1]) for line in usage]
            code_bytes = int(run("arm-none-eabi-size", text).splitlines()[1].split()[0])
            given = "float" if kind == "float32" else "int16_t"
            sources = BOARD / "start.c", BOARD / "count.c", text
            run(*gcc, *LINKED, f"-DINPUT={given}", f"-I{folder}", "-T", BOARD / "board.ld",
                *sources, "-o", program)  # fmt: skip
            words = "-M", "mps2-an386", "-nographic", "-icount", "shift=0", "-kernel", program
            semihosting = "-semihosting-config", "enable=on,target=native"
            count = run("qemu-system-arm", *words, *semihosting)
            header = (folder / "m.h").read_text(encoding="utf-8")
            widths = {"int8_t": 1, "int16_t": 2, "int32_t": 4, "float": 4}
            members = re.findall(r"^    (\w+) \w+\[(\d+)\];", header, re.M)
            memory = sum(widths[of] * int(size) for of, size in members)
            row[kind] = {
                "code": code_bytes,
                "memory": memory,
                "stack": sum(stacks),
                "instructions": int(count),
            }
    return {"cortex-m4": row}


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure the cases that have no row."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", required=True, type=Path, help="rows, a line each")
    parser.add_argument("--data", type=Path, help="folder of the data sets")
    parser.add_argument("--parts", default=",".join(PARTS[:3]))
    parser.add_argument("--cells", default=",".join(CELLS))
    parser.add_argument("--steps", type=int, default=600, help="of training")
    parser.add_argument("--seconds", type=float, default=3.0, help="of each timing")
    options = parser.parse_args(arguments)
    parts, cells = options.parts.split(","), options.cells.split(",")
    if unknown := {*parts} - {*PARTS}:
        parser.error(f"there is no part {', '.join(sorted(unknown))}: {', '.join(PARTS)}")
    measured: dict[str, Callable[[], Row]] = {}
    if "accuracy" in parts:
        if options.data is None:
            parser.error("accuracy needs --data")
        folder = str(options.data / "fsdd")
        data = prepare_series(SeriesConfig.of({"data": folder, "patch": PATCH}))
        for name in cells:
            measured[f"digits {name}"] = lambda name=name: learned(name, data, options.steps)
    for name in cells if "steps" in parts else ():
        for size in SIZES:
            case = f"step {name} {size[0]}"
            measured[case] = lambda name=name, size=size: stepped(name, *size, options.seconds)
    for name in cells if "c" in parts else ():
        for units in STREAMS:
            case = f"c {name} {units}"
            measured[case] = lambda name=name, u=units: exported(name, u, options.seconds)
    for name in cells if "cortex" in parts else ():
        for units in STREAMS[:2]:
            measured[f"cortex {name} {units}"] = partial(emulated, name, units)
    for case, measure in measured.items():
        if case not in read_rows(options.out):
            row = {"case": case, **measure(), **code(), "machine": facts()}
            append_row(options.out, row)
        row = read_rows(options.out)[case]
        print(case, {k: v for k, v in row.items() if k in SHOWN})


if __name__ == "__main__":
    main()

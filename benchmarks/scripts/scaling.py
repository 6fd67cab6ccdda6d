"""Scaling laws of recurrent cells: loss over data and over compute, with the slopes of power laws.

    python -m benchmarks.scripts.scaling --data FILE --out FILE.jsonl [--cells gru,lstm,lem,...]
        [--sizes 10000,100000,...] [--seeds 3] [--steps 4000] [--hidden 256]

Each cell, as one layer of a character model, learns the first N symbols of a text for at most so
many steps; all predict the same symbols at the end of the text, and the best validation counts.
Rows are appended as they are measured, and are not measured again. A slope is a power law
bits ~ x^slope by least squares in the logarithms: over N, of the means of the seeds, with two
standard errors; and over the products' FLOP of the best validations so far on the largest N,
without an interval, as neighbours of one curve depend on each other (Hestness et al. 2017,
arXiv:1712.00409; Kaplan et al. 2020, arXiv:2001.08361). Of four sizes and more a floor is fitted,
too: bits ~ floor + x^slope. Passes over the text are printed with each row, and whether the best
validation was the last one: steps limit the loss then, not data.
"""

from __future__ import annotations

import argparse
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.claims import UnmeasuredError, fit_trend
from benchmarks.machine import code, facts
from benchmarks.rows import Row, append_row, read_rows
from benchmarks.studies.learning import begin
from elman.train.tasks.text.config import TextConfig

CELLS = ("gru", "lstm", "lem", "rglru", "slstm")
SIZES = (10_000, 30_000, 100_000, 300_000, 1_000_000, 3_000_000, 10_000_000)
ALPHABET = 96  # symbols; rarer ones are one more
UNKNOWN = "\ufffd"
HELD_OUT = 100_000  # symbols, at most a tenth
VALIDATIONS = 20
T = 64  # symbols of a segment
FEWEST = 4  # sizes, of which a floor is fitted


def parts_of(text: str, folder: Path, sizes: Sequence[int]) -> dict[int, Path]:
    """Folders of a training and a validation text, by the number of training symbols; every
    training text begins with the alphabet, so that all models predict the same symbols."""
    known = {symbol for symbol, _ in Counter(text).most_common(ALPHABET)}
    text = "".join(symbol if symbol in known else UNKNOWN for symbol in text)
    first = "".join(sorted(known | {UNKNOWN}))
    held_out = min(HELD_OUT, len(text) // 10)
    folders: dict[int, Path] = {}
    for size in sizes:
        if size + held_out <= len(text):
            folders[size] = folder / str(size)
            folders[size].mkdir()
            (folders[size] / "train.txt").write_text(first + text[:size])
            (folders[size] / "valid.txt").write_text(text[-held_out:])
    return folders


def learn(cell: str, folder: Path, seed: int, options: argparse.Namespace) -> list[Any]:
    """Steps and bits per character of each validation of one run, and its FLOP per step."""
    model = {"cell": cell, "layers": 1, "hidden": options.hidden, "engine": "c"}
    segments = {"batch": options.batch, "bptt": T, "validation_chars": HELD_OUT}
    place = {"data": str(folder), "seed": seed, "steps": options.steps, "accelerator": "cpu"}
    run = begin(TextConfig.of({**model, **segments, **place}))
    run.learn(max(1, options.steps // VALIDATIONS))
    weights = sum(
        value.numel()
        for name, value in run.stepper.plain.named_parameters()
        if value.dim() == 2 and not name.startswith("embedding")
    )
    return [[step, bits, 6 * weights * step * options.batch * T] for step, bits, _ in run.scores]


def measure(cell: str, size: int, folder: Path, options: argparse.Namespace) -> Row:
    """The row of a cell on so many symbols, of all seeds."""
    curves = [learn(cell, folder, seed, options) for seed in range(options.seeds)]
    best = [min(bits for _, bits, _ in curve) for curve in curves]
    row = {"case": f"{cell} {size}", "cell": cell, "size": size, "bits": best, "curves": curves}
    sizes = {"steps": options.steps, "hidden": options.hidden, "batch": options.batch}
    return {**row, **sizes, **code(), "machine": facts()}


def limited_by_steps(row: Row) -> bool:
    """Whether the last validation of a run was its best: more steps would lower the loss."""
    return any(min(bits for _, bits, _ in curve) == curve[-1][1] for curve in row["curves"])


def above_floor(rows: Sequence[Row]) -> tuple[float, float] | None:
    """The floor and the slope over data of bits ~ floor + N^slope, by least squares in
    bits over lines through the logarithms of what is above each floor; None of too few sizes."""
    sizes, bits = np.array([(row["size"], np.mean(row["bits"])) for row in rows]).T
    if len(sizes) < FEWEST:
        return None
    fits = list[tuple[float, float, float]]()
    for floor in np.linspace(0, bits.min(), 1000, endpoint=False):
        above = np.log(bits - floor)
        line = np.polynomial.Polynomial.fit(np.log(sizes), above, 1).convert()
        off = np.exp(line(np.log(sizes))) + floor - bits
        fits.append((float(off @ off), floor, float(line.coef[1])))
    _, floor, slope = min(fits)
    return floor, slope


def slopes(rows: Sequence[Row]) -> tuple[str, str]:
    """Slopes of one cell over data, of all seeds, and over compute, as text."""
    data = [(row["size"], sum(row["bits"]) / len(row["bits"])) for row in rows]
    compute = [
        (flop, min(bits for _, bits, _ in curve[: k + 1]))
        for curve in max(rows, key=lambda row: row["size"])["curves"]
        for k, (_, _, flop) in enumerate(curve)
    ]
    return _slope(data), _slope(compute, False)


def _slope(points: list[tuple[float, float]], interval: bool = True) -> str:
    try:
        trend = fit_trend(points)
    except UnmeasuredError:
        return "too few points"
    low, high = (trend.power + side * 2 * trend.error for side in (-1, 1))
    return f"{trend.power:+.3f}" + f" ({low:+.3f} to {high:+.3f})" * interval


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure what has no row, print slopes."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--data", type=Path, required=True, help="a text")
    parser.add_argument("--out", type=Path, required=True, help="rows, a line each")
    parser.add_argument("--cells", default=",".join(CELLS))
    parser.add_argument("--sizes", default=",".join(map(str, SIZES)), help="training symbols")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=4000, help="of each run")
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--batch", type=int, default=32)
    options = parser.parse_args(arguments)
    text, sizes = options.data.read_text("utf-8"), [int(size) for size in options.sizes.split(",")]
    with tempfile.TemporaryDirectory() as place:
        folders = parts_of(text, Path(place), sizes)
        for cell in options.cells.split(","):
            for size, folder in folders.items():
                if f"{cell} {size}" not in read_rows(options.out):
                    row = measure(cell, size, folder, options)
                    append_row(options.out, row)
                    bits = ", ".join(f"{value:.3f}" for value in row["bits"])
                    passes = options.steps * options.batch * T / size
                    result = f"{bits} bits per character, {passes:.1f} passes"
                    result += ", the last validation is the best" * limited_by_steps(row)
                    print(f"{cell:8} {size:>9,} symbols: {result}", flush=True)
            rows = [row for row in read_rows(options.out).values() if row["cell"] == cell]
            data, compute = slopes(rows)
            text = f"{cell:8} slopes: data {data}, compute {compute}"
            if (fit := above_floor(rows)) is not None:
                text += f"; above {fit[0]:.2f} bits {fit[1]:+.3f}"
            print(text, flush=True)


if __name__ == "__main__":
    main()

"""What a model of characters loses, and saves, if its processes average their weights rarely.

    python -m benchmarks.scripts.averages --data TEXT --out FILE.jsonl [--every 1,4,16,64]
        [--seeds 3] [--steps 1000] [--processes 2]

Each run is ``elman train text`` with as many processes, each of one thread. A row has, by seed, the
bits per character in validation and the seconds of a step; of `every` 1 gradients are averaged in
each step. A case that has a row is not run again.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.machine import code, facts
from benchmarks.rows import append_row, read_rows


def train(words: Sequence[str]) -> tuple[float, float]:
    """Bits per character of a run, and seconds of a step. Raises CalledProcessError: it failed."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "elman", "train", "text", *words, "--out", folder]
        subprocess.run([*command, "--no-compare"], check=True, stdout=subprocess.DEVNULL)
        (path,) = Path(folder).glob("*/result.json")
        result = json.loads(path.read_text())
    return result["valid_loss"], result["train_seconds"] / result["steps"]


def main(arguments: Sequence[str] | None = None) -> None:
    """Train the cases that have no row."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--data", required=True, type=Path, help="a text")
    parser.add_argument("--out", required=True, type=Path, help="rows, a line each")
    parser.add_argument("--every", default="1,4,16,64", help="steps between averages")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--hidden", type=int, default=256)
    options = parser.parse_args(arguments)
    sizes = {key: getattr(options, key) for key in ("steps", "processes", "hidden")}
    words = ["--data", str(options.data), "--steps", str(options.steps), "--layers", "1"]
    words += ["--hidden", str(options.hidden), "--devices", str(options.processes)]
    words += ["--threads", "1", "--accelerator", "cpu", "--random-start"]
    for every in options.every.split(","):
        case = f"every {every}"
        if case not in read_rows(options.out):
            runs = [
                train([*words, "--average-every", every, "--seed", str(seed)])
                for seed in range(options.seeds)
            ]
            bits, seconds = (list(values) for values in zip(*runs, strict=True))
            row = {"case": case, "bits": bits, "step_s": seconds, **sizes, **code()}
            append_row(options.out, row | {"machine": facts()})
        row = read_rows(options.out)[case]
        print(f"{case}: {row['bits']} bits, {row['step_s']} s a step", flush=True)


if __name__ == "__main__":
    main()

"""Two processes of one thread beside one process of two threads: `elman train text`, alternating.

    python -m benchmarks.scripts.workers --out DIR [--hidden 128,256] [--batch 32,128] [--rounds 3]
        [--steps 400] [--more "--engine c …"]

Both train the same model on the same global minibatch with the same two cores. A row per size of
the layers and minibatch: medians over rounds, and of their ratios, samples per second of the two
processes over those of the one. The first fifth of a run's steps, in which engines are chosen, is
left out. Options after --more go to every run. Nothing else may run meanwhile: threads of one
process that wait for one another lose more than processes do.
"""

from __future__ import annotations

import argparse
import random
import shlex
import subprocess
import sys
from itertools import product
from pathlib import Path
from statistics import median

from elman.measuring.process import Program, environment
from elman.train.loop.metrics import read_metrics
from elman.train.run.folder import list_runs

WAYS = {  # -> how the processes of a run are started
    "1 process, 2 threads": ("--devices=1", "--threads=2"),
    "2 processes, 1 thread": ("--devices=2", "--threads=1"),
}
MODEL = ("--layers=2", "--embedding=64", "--bptt=64")
WORDS = ("quick", "brown", "fox", "jumps", "over", "lazy", "dog", "seven", "wizards", "brew")


def throughput(out: Path, data: Path, options: list[str], steps: int) -> float:
    """Items per second of a run, the first fifth of its steps aside."""
    every = max(1, steps // 20)
    words = ["--accelerator=cpu", "--no-compare", f"--steps={steps}", f"--log-every={every}"]
    words += [f"--validate-every={steps}", f"--checkpoint-every={steps}", "--validation-chars=500"]
    command = [sys.executable, "-m", "elman", "train", "text", f"--data={data}", f"--out={out}"]
    ran = subprocess.run(
        [*command, *MODEL, *words, *options],
        env=environment(Program(())),
        capture_output=True,
        text=True,
        check=False,
    )
    if ran.returncode:
        raise SystemExit(ran.stdout + ran.stderr)
    (run,) = list_runs(out)
    return median(row.items_per_s for row in read_metrics(run.metrics) if row.step > steps // 5)


def compared(out: Path, data: Path, more: list[str], rounds: int, steps: int) -> str:
    """The columns of a row: items per second of both ways, and the median ratio."""
    found: dict[str, list[float]] = {name: [] for name in WAYS}
    for round_ in range(rounds):
        for name in sorted(WAYS, reverse=bool(round_ % 2)):
            into = out / f"{name.replace(', ', '-').replace(' ', '-')}-{round_}"
            found[name].append(throughput(into, data, [*WAYS[name], *more], steps))
    alone, both = found.values()
    ratio = median(mine / other for mine, other in zip(both, alone, strict=True))
    return f"{median(alone):,.0f}/s | {median(both):,.0f}/s | {ratio:.3f}"


def numbers(text: str) -> list[int]:
    """Read `32,128`."""
    return [int(word) for word in text.split(",")]


def main() -> None:
    """Run both ways in turn, tell."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("--out", type=Path, required=True, help="folder of all runs, a new one")
    parser.add_argument("--hidden", type=numbers, default=[128], help="units per layer")
    parser.add_argument("--batch", type=numbers, default=[32], help="global minibatches")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--more", type=shlex.split, default=[], help="options of elman train")
    options = parser.parse_args()
    options.out.mkdir(parents=True)
    data, draw = options.out / "words.txt", random.Random(0)
    lines = (" ".join(draw.choices(WORDS, k=6)) + ".\n" for _ in range(30000))
    data.write_text("".join(lines), encoding="utf-8")
    print(f"| units | minibatch | {' | '.join(WAYS)} | ratio |\n|--|--|--|--|--|")
    for hidden, batch in product(options.hidden, options.batch):
        out = options.out / f"{hidden}-{batch}"
        more = [f"--hidden={hidden}", f"--batch={batch}", *options.more]
        row = compared(out, data, more, options.rounds, options.steps)
        print(f"| {hidden} | {batch} | {row} |", flush=True)


if __name__ == "__main__":
    main()

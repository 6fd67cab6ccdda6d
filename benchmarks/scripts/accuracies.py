"""Held-out scores of `elman train` on small data sets, from three seeds each.

    python -m benchmarks.scripts.accuracies --data DIR --out FILE.jsonl [--only NAME] [--steps N]
        [--cells gru,lem,lru,mingru,rglru,unicornn] [--precision bf16-mixed]

DIR has the folders and files that the commands below name. A row per command has the score of each
seed and that of the baseline; a command that has a row already is not run again. With --cells, each
command runs with each of these cells in its layers; --precision is handed to the commands.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from itertools import product
from pathlib import Path

from benchmarks.machine import code, facts
from benchmarks.rows import Row, append_row, read_rows
from elman.train.run.folder import open_run
from elman.train.run.record import read_record, summarise

SEEDS = (0, 1, 2)
SPEECH = "series {}/fsdd --patch 16 --hidden 96 --batch 50 --epochs 30 --lr 3e-3 --noise 0.05"
COMMANDS = {
    "worms": "series {}/ucr-worms --patch 5 --epochs 150 --noise 0.1 --lr 5e-3",
    "digits": SPEECH,
    "strided worms": "series {}/ucr-worms --patch 5 --epochs 150 --noise 0.1 --lr 5e-3 --strides 4",
    "strided digits": f"{SPEECH} --strides 4",
    "bidirectional worms": "series {}/ucr-worms --patch 5 --epochs 150 --noise 0.1 --lr 5e-3"
    " --bidirectional",
    "bidirectional digits": f"{SPEECH} --bidirectional",
    "permuted": "images {}/mnist --permute --hidden 128 --batch 50 --lr 2e-3 --steps 800",
}


def score(words: list[str], seed: int) -> tuple[float, float]:
    """The held-out score of a run, and that of its baseline."""
    with tempfile.TemporaryDirectory() as folder:
        further = ["--seed", str(seed), "--threads", "1", "--no-compare", "--out", folder]
        program = [sys.executable, "-m", "elman", "train", *words, *further]
        subprocess.run(program, check=True, capture_output=True)
        (run,) = Path(folder).iterdir()
        record = read_record(open_run(run))
        assert record.config is not None
        summary = summarise(record, record.config)
        assert summary.valid_score is not None
        assert summary.baseline is not None
        assert summary.baseline.score is not None
        return summary.valid_score, summary.baseline.score


def measure(name: str, data: str, further: list[str], case: str) -> Row:
    """The row of a command, under the name of its case."""
    words = [*COMMANDS[name].format(data).split(), *further]
    scores, baselines = zip(*(score(words, seed) for seed in SEEDS), strict=True)
    return {
        "case": case,
        "command": " ".join(["elman train", COMMANDS[name].format("DATA"), *further]),
        "scores": scores,
        "baseline": baselines[0],
        **code(),
        "machine": facts(),
    }


def main() -> None:
    """Run the commands that have no row."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--data", required=True, help="folder of the data sets")
    parser.add_argument("--out", type=Path, required=True, help="rows, a line each")
    parser.add_argument(
        "--only", choices=COMMANDS, metavar="NAME", help=f"one command: {', '.join(COMMANDS)}"
    )
    parser.add_argument("--steps", help="steps of each run, for a try")
    parser.add_argument("--cells", default="", help="instead of the command's own")
    parser.add_argument("--precision", default="", help="of the commands, instead of float32")
    options = parser.parse_args()
    further = ["--steps", options.steps] if options.steps else []
    further += ["--precision", options.precision] if options.precision else []
    names, cells = [options.only] if options.only else [*COMMANDS], options.cells.split(",")
    for name, cell in product(names, cells):
        case = " ".join(filter(None, (name, cell, options.precision)))
        if case not in read_rows(options.out):
            words = [*further, *(["--cell", cell] if cell else [])]
            append_row(options.out, measure(name, options.data, words, case))
        row = read_rows(options.out)[case]
        scores = ", ".join(f"{score:.1%}" for score in row["scores"])
        print(f"{case:16} {scores} (baseline {row['baseline']:.1%})", flush=True)


if __name__ == "__main__":
    main()

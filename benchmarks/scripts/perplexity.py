"""Perplexities of a word-level model on elman and of the same on torch.nn, trained side by side.

    python -m benchmarks.scripts.perplexity --data DIR|FILE --out FILE.jsonl [--preset small]
        [--epochs 13] [--threads 1] [--chunk 250] [--moved]

Both begin with the same weights, see the same batches and learning rates and draw the same numbers.
They train in turns of some steps. After each epoch both are validated and a row is written:
perplexities of the epoch's training and of the validation text and processor time per step; after
the last one, that of the test text. With --moved a third model trains, that of torch.nn with
weights moved by one part in a million: by how much two runs of the same arithmetic part.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from pathlib import Path
from statistics import fmean

import torch

from benchmarks.rows import append_row
from benchmarks.studies.learning import Learner, learner
from elman.train.distributed.launch import launch
from elman.train.tasks.text.config import TextConfig
from elman.train.tasks.text.data import TextData, prepare
from elman.train.tasks.text.model import build_model

MOVED = 1e-6


def learners(config: TextConfig, data: TextData, moved: bool) -> dict[str, Learner]:
    """The models at their first step, all with the weights of elman's."""
    fabric, first = launch(config), build_model(config, data.spec)
    weights = [weight.detach().clone() for weight in first.parameters()]
    running = {"elman": learner(config, data, first, fabric)}
    for name, by in {"torch.nn": 0.0, **({"torch.nn, moved": MOVED} if moved else {})}.items():
        model = build_model(config, data.spec, baseline=True)
        with torch.no_grad():
            for weight, parameter in zip(weights, model.parameters(), strict=True):
                parameter.copy_(weight * (1 + by * torch.randn_like(weight)))
        running[name] = learner(config, data, model, fabric, inside=False)
    return running


def result(run: Learner, data: TextData, steps: int, seconds: float) -> dict[str, float]:
    """Row of an epoch, with the whole run's figures if it was the last one."""
    run.validate()
    perplexities = {
        "train": math.exp(fmean(map(math.log, run.losses[-steps:]))),
        "valid": run.scores[-1][1],
        "cpu_ms": 1e3 * seconds / steps,
    }
    if len(run.losses) == run.steps and data.test:
        perplexities["test"] = math.exp(run.stepper.validate(data.test_batches()).loss)
    return perplexities


def main() -> None:
    """Train all in turns, print a row after each epoch."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--data", required=True, help="a folder of texts, or a file")
    parser.add_argument("--out", type=Path, required=True, help="rows, a line each")
    parser.add_argument("--preset", default="small")
    parser.add_argument("--epochs", type=int, help="instead of the preset's")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--chunk", type=int, default=250, help="steps before the next one's turn")
    parser.add_argument("--moved", action="store_true")
    options = parser.parse_args()

    torch.set_num_threads(options.threads)
    words = {"preset": options.preset, "data": options.data, "level": "word", "accelerator": "cpu"}
    words |= {"epochs": options.epochs} if options.epochs else {}
    config = TextConfig.of(words)
    data = prepare(config)
    epoch, total = data.train.segments, data.steps()
    assert total is not None, "presets say how many epochs"
    config = TextConfig.of({**words, "epochs": None, "steps": total})
    running = learners(config, data, options.moved)
    print(f"{data.about()}; {epoch} steps an epoch, {total} in all", flush=True)
    step, seconds = 0, dict.fromkeys(running, 0.0)
    while step < total:
        step = min(step + options.chunk, (step // epoch + 1) * epoch)
        for name, run in running.items():
            start = time.process_time()
            while len(run.losses) < step:
                run.step()
            seconds[name] += time.process_time() - start
        if step % epoch == 0:
            results = {n: result(run, data, epoch, seconds[n]) for n, run in running.items()}
            place = {"data": Path(options.data).name, "preset": options.preset}
            row = {"case": f"epoch {step // epoch}", **place, "results": results}
            append_row(options.out, row)
            print(json.dumps(row), flush=True)
            seconds = dict.fromkeys(running, 0.0)


if __name__ == "__main__":
    main()

"""Perplexities of a word-level model on elman and of the same on torch.nn, trained side by side.

    python -m benchmarks.scripts.perplexity --data DIR|FILE --out FILE.jsonl [--preset small]
        [--epochs 13] [--threads 1] [--chunk 250] [--moved]

Both begin with the same weights, see the same batches and learning rates and draw the same numbers
(the generator is set before each step). They train in turns of some steps. After each epoch both
are validated and a row is written: perplexities of the epoch's training and of the validation text
and processor time per step; after the last one, that of the test text. What stands beside
FILE.jsonl (`.pt`) lets the same command go on after an interruption. With --moved a third model
trains, that of torch.nn with weights moved by one part in a million: by how much two runs of the
same arithmetic part.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from lightning_fabric import Fabric

from elman.train.loop.optimizer import learning_rate
from elman.train.loop.stepper import Stepper, make_stepper
from elman.train.tasks.text.config import TextConfig
from elman.train.tasks.text.data import TextData, prepare
from elman.train.tasks.text.model import build_model
from elman.train.tasks.text.task import TEXT

MOVED = 1e-6


@dataclass
class Contestant:
    """A model under way, and what its epoch has brought so far."""

    stepper: Stepper
    nats: list[float] = field(default_factory=list)
    seconds: float = 0.0

    def train(self, data: TextData, config: TextConfig, steps: range, total: int) -> None:
        """Do some steps."""
        began = time.process_time()
        for step in steps:
            torch.manual_seed(config.seed + step)
            lr = learning_rate(step, total, config.peak_lr, config.warmup, config.schedule)
            loss, _ = self.stepper.train(data.batch(step, slice(0, config.batch)), lr)
            self.nats.append(loss)
        self.seconds += time.process_time() - began

    def row(self, data: TextData, last: bool) -> dict[str, float]:
        """Say what the epoch brought, and begin the next one."""
        result = {
            "train": math.exp(sum(self.nats) / len(self.nats)),
            "valid": math.exp(self.stepper.validate(data.held_out()).loss),
            "cpu_ms": 1e3 * self.seconds / len(self.nats),
        }
        if last and data.test:
            result["test"] = math.exp(self.stepper.validate(data.tested()).loss)
        self.nats, self.seconds = [], 0.0
        return result

    def kept(self) -> dict[str, Any]:
        """What another process needs to go on."""
        return {
            "model": self.stepper.plain.state_dict(),
            "optimizer": self.stepper.optimizer.state_dict(),
            "state": self.stepper.state,
            "nats": self.nats,
            "seconds": self.seconds,
        }

    def goes_on(self, checkpoint: dict[str, Any]) -> None:
        """Take over what was kept."""
        self.stepper.plain.load_state_dict(checkpoint["model"])
        self.stepper.optimizer.load_state_dict(checkpoint["optimizer"])
        self.stepper.state = checkpoint["state"]
        self.nats, self.seconds = checkpoint["nats"], checkpoint["seconds"]


def contestants(config: TextConfig, data: TextData, moved: bool) -> dict[str, Contestant]:
    """Build the models, all with the weights of elman's."""
    fabric = Fabric(accelerator="cpu", devices=1)
    first = build_model(config, data)
    models = {"elman": Contestant(make_stepper(fabric, first, config, TEXT.objective))}
    outside = replace(TEXT.objective, inside=False)
    for name, by in {"torch.nn": 0.0, **({"torch.nn, moved": MOVED} if moved else {})}.items():
        model = build_model(config, data, baseline=True)
        with torch.no_grad():
            for mine, its in zip(first.parameters(), model.parameters(), strict=True):
                its.copy_(mine * (1 + by * torch.randn_like(mine)))
        models[name] = Contestant(make_stepper(fabric, model, config, outside))
    return models


def keep(path: Path, step: int, running: dict[str, Contestant]) -> None:
    """Write where the models stand; whoever is killed meanwhile has the file before."""
    beside = path.with_suffix(".part")
    torch.save(
        {"step": step, "of": {name: contestant.kept() for name, contestant in running.items()}},
        beside,
    )
    os.replace(beside, path)


def main() -> None:
    """Train all in turns, tell after each epoch."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("--data", required=True, help="a folder of texts, or a file")
    parser.add_argument("--out", type=Path, required=True, help="rows, a line each")
    parser.add_argument("--preset", default="small")
    parser.add_argument("--epochs", type=int, help="instead of the preset's")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--chunk", type=int, default=250, help="steps before the next one's turn")
    parser.add_argument("--moved", action="store_true")
    options = parser.parse_args()

    torch.set_num_threads(options.threads)
    words = {"preset": options.preset, "data": options.data, "level": "word"}
    words |= {"epochs": options.epochs} if options.epochs else {}
    config = TextConfig.of(words)
    data = prepare(config)
    epoch, total = data.train.segments, data.steps()
    assert total is not None, "presets say how many epochs"
    running = contestants(config, data, options.moved)
    print(f"{data.about()}; {epoch} steps an epoch, {total} in all", flush=True)

    beside, step = options.out.with_suffix(".pt"), 0
    if beside.exists():
        stood = torch.load(beside, weights_only=True)
        step = stood["step"]
        for name, contestant in running.items():
            contestant.goes_on(stood["of"][name])
    while step < total:
        end = min(step + options.chunk, (step // epoch + 1) * epoch)
        for contestant in running.values():
            contestant.train(data, config, range(step, end), total)
        step = end
        if step % epoch == 0:
            results = {
                name: contestant.row(data, step == total) for name, contestant in running.items()
            }
            row = {
                "data": Path(options.data).name,
                "preset": options.preset,
                "epoch": step // epoch,
            }
            with options.out.open("a") as file:
                print(json.dumps({**row, "found": results}), file=file)
            print(json.dumps({**row, "found": results}), flush=True)
        keep(beside, step, running)


if __name__ == "__main__":
    main()

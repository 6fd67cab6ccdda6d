"""Language models of two layers: LSTM, GRU and layers with matrix states, of as many parameters.

    python -m benchmarks.scripts.language_cells [--data DIR|FILE] [--level char|word]
        [--steps 1000] [--parameters 850000] [--cells lstm,gru,...] [--seed 0]
        [--out FILE.jsonl]

The number of units is the one whose model comes nearest to the parameters asked for, of layers with
heads a multiple of 64 (so they differ: 0.73 to 0.91 million of 0.85, MLSTM 0.89). All models
see the same batches and learning rates, and train in turns of some steps on as many threads. A row
of each: bits per character (or perplexity) of the validation and the test text, tokens per second
of a whole training step (median), units, parameters. Each validation is printed when it is done.
Layers with matrix states run in residual blocks with a norm each; ``lstm:blocks`` does, too.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import torch

from benchmarks.machine import code, facts
from benchmarks.rows import append_row
from benchmarks.studies.learning import Learner, learner
from elman.layers.stack import LAYERS
from elman.train.distributed.launch import launch
from elman.train.tasks.registry import labels_of
from elman.train.tasks.text.config import TextConfig
from elman.train.tasks.text.data import TextData, prepare
from elman.train.tasks.text.model import build_model

CELLS = (
    *("lstm", "gru", "lstm:blocks", "gru:blocks"),
    *("gated_delta_net", "mlstm", "rwkv7", "mamba2"),
)
_HEAD = 64  # units of a head of layers with matrix states, whose sizes are multiples of it
_LARGEST = 1024


def parameters_of(config: TextConfig, data: TextData) -> int:
    """Parameters of a configuration's model, those of embedding and read-out included."""
    return sum(p.numel() for p in build_model(config, data.spec).parameters())


def sized(words: dict[str, Any], cell: str, target: int, data: TextData) -> tuple[TextConfig, int]:
    """The configuration of a cell whose model has the number of parameters nearest to a target."""
    name, _, blocks = cell.partition(":")
    words = {**words, "cell": name, "norm": bool(blocks)}
    best: tuple[int, TextConfig, int] | None = None
    each = _HEAD if cell in LAYERS else 4
    for units in range(_HEAD, _LARGEST, each):
        config = TextConfig.of({**words, "hidden": units})
        count = parameters_of(config, data)
        if best is None or abs(count - target) < best[0]:
            best = abs(count - target), config, count
        if count > target:
            break
    assert best is not None, "some size is accepted"
    return best[1], best[2]


def result(run: Learner, config: TextConfig, count: int, data: TextData) -> dict[str, Any]:
    """What a row says of a trained model."""
    run.validate()
    speed = config.items_per_step / median(run.seconds)
    figures: dict[str, Any] = {"valid": run.scores[-1][1], "tokens_s": speed}
    if data.test:
        loss = run.stepper.validate(data.test_batches()).loss
        figures["test"] = labels_of(config).unit(loss)
    curve = [(step, value) for step, value, _ in run.scores]
    return {**figures, "units": config.hidden, "parameters": count, "curve": curve}


def main(arguments: Sequence[str] | None = None) -> None:
    """Train all in turns, print a row of each."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--data", help="a folder of texts, or a file; else Python's own sources")
    parser.add_argument("--level", default="char", choices=("char", "word"))
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--parameters", type=int, default=850_000)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--bptt", type=int, default=128)
    parser.add_argument("--chunk", type=int, default=100, help="steps before the next one's turn")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0, help="of weights and dropout")
    parser.add_argument("--cells", default=",".join(CELLS))
    parser.add_argument("--out", type=Path, help="rows, a line each")
    options = parser.parse_args(arguments)

    torch.set_num_threads(options.threads)
    words = {"data": options.data, "level": options.level, "layers": options.layers}
    words |= {"batch": options.batch, "bptt": options.bptt, "steps": options.steps}
    words |= {"accelerator": "cpu", "seed": options.seed}
    data = prepare(TextConfig.of(words))
    cells = options.cells.split(",")
    sizes = {cell: sized(words, cell, options.parameters, data) for cell in cells}
    running: dict[str, Learner] = {}
    for cell, (config, _) in sizes.items():
        torch.manual_seed(config.seed)
        running[cell] = learner(config, data, build_model(config, data.spec), launch(config))
    print(f"{data.about()}; {options.steps} steps of {options.batch} x {options.bptt}", flush=True)
    step, every = 0, max(options.chunk, math.ceil(options.steps / 10))
    while step < options.steps:
        step = min(step + options.chunk, options.steps)
        for cell, run in running.items():
            while len(run.losses) < step:
                run.step()
            if step % every < options.chunk and step < options.steps:
                run.validate()
                print(f"{cell}: {run.scores[-1][1]:.4f} after {step} steps", flush=True)
    text = Path(options.data).name if options.data else "python"
    about = {"steps": options.steps, "layers": options.layers, "level": options.level}
    about |= {"data": text, "seed": options.seed, **code(), **facts()}
    for cell, run in running.items():
        case = {"case": f"{text} {cell}, seed {options.seed}", "cell": cell}
        row = {**case, **about, "results": result(run, *sizes[cell], data)}
        if options.out:
            append_row(options.out, row)
        print(json.dumps({**case, **row["results"]}), flush=True)


if __name__ == "__main__":
    main()

"""Models of transformers before and after `elman.functional.install`, on a CPU.

    pip install transformers
    python -m benchmarks.scripts.transformers_models [--only NAME] [--out FILE.jsonl]
    python -m benchmarks.scripts.transformers_models --hidden 1024 --threads 1 --seconds 3

Random weights, each recurrent type of transformers. A row has the relative errors of the logits and
of the gradient (all parameters as one vector), whether both generate the same tokens, and what runs
on elman. With ``--seconds`` it has medians (s), in turns, of a training step, of a prompt and of a
token behind it, the last also with ``weights=``. The exit status is 1 if logits or tokens
differ.
"""

from __future__ import annotations

import argparse
import copy
import json
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.machine import code, facts
from benchmarks.rows import append_row
from benchmarks.scripts.small_models import TYPES, VOCABULARY, make
from elman.functional import install, uninstall

TOLERANCE = 1e-5  # of the logits' relative errors
TOKENS = 16  # of a decoded text that is timed
WARM_UP = 3  # samples that are not counted: kernels are compiled, and engines chosen
WEIGHTS = {"float32": "float32", "int8": "int8"}  # of models whose linear layers are ours, too


def train(model: nn.Module, tokens: Tensor) -> tuple[Tensor, Tensor]:
    """Logits, and the gradient of all parameters."""
    model.zero_grad()
    output = model(input_ids=tokens, labels=tokens, use_cache=False)
    output.loss.backward()
    gradients = [p.grad.flatten() for p in model.parameters() if p.grad is not None]
    return output.logits.detach(), torch.cat(gradients)


def generate(model: Any, tokens: Tensor) -> Tensor:
    """Ten tokens behind some."""
    with torch.no_grad():
        result: Tensor = model.generate(tokens[:, :50], max_new_tokens=10, do_sample=False)
    return result


@torch.no_grad()
def prompt(model: nn.Module, tokens: Tensor) -> Any:
    """A prompt; its cache."""
    return model(input_ids=tokens, use_cache=True)


def after(output: Any, position: int) -> dict[str, Any]:
    """What a model is given with the next token: its cache, by the name under which it returns it,
    or the position where it keeps its states itself."""
    for name in ("cache", "state", "cache_params", "past_key_values"):
        if name in output:
            return {name: output[name]}
    return {"position_ids": torch.tensor([[position]])}


@torch.no_grad()
def decode(model: nn.Module, tokens: Tensor) -> float:
    """Seconds of a token behind a prompt."""
    output, start = prompt(model, tokens[:, :32]), 0.0
    for n in range(TOKENS + 1):
        output = model(input_ids=tokens[:, n : n + 1], use_cache=True, **after(output, 32 + n))
        start = start or time.perf_counter()  # the first one also copies weights
    return (time.perf_counter() - start) / TOKENS


def compare(model: nn.Module, tokens: Tensor) -> dict[str, Any]:
    """The errors of a model's row."""
    uninstall(model)
    before = *train(model, tokens), generate(model, tokens)
    report = install(model)
    try:
        after = *train(model, tokens), generate(model, tokens)
    finally:
        uninstall(model)
    errors = [
        float((got - want).norm() / want.norm())
        for got, want in zip(after[:2], before[:2], strict=True)
    ]
    same = torch.equal(after[2], before[2])
    ran = [*dict.fromkeys(report.values())]
    return {"logits": errors[0], "gradient": errors[1], "same text": same, "report": ran}


def race(model: nn.Module, tokens: Tensor, seconds: float) -> dict[str, dict[str, float]]:
    """Medians (s) of each phase, by side."""

    def timed(run: Callable[[nn.Module, Tensor], Any], model: nn.Module) -> float:
        start = time.perf_counter()
        run(model, tokens)
        return time.perf_counter() - start

    phases: dict[str, Callable[[nn.Module], float]] = {
        "training": lambda model: timed(train, model),
        "prompt": lambda model: timed(prompt, model),
        "token": lambda model: decode(model, tokens),
    }
    rows = dict[str, dict[str, float]]()
    for phase, run in phases.items():
        models = {"torch": model, "elman": model}
        if phase == "token":
            models |= {side: copy.deepcopy(model) for side in WEIGHTS}
            for side, weights in WEIGHTS.items():
                install(models[side], weights=weights)
        samples: dict[str, list[float]] = {side: [] for side in models}
        end = time.perf_counter() + seconds
        while len(samples["elman"]) < WARM_UP + 3 or time.perf_counter() < end:
            for side, each in models.items():
                (uninstall if side == "torch" else install)(each)
                samples[side].append(run(each))
        rows[phase] = {side: median(times[WARM_UP:]) for side, times in samples.items()}
    uninstall(model)
    return rows


def main(arguments: Sequence[str] | None = None) -> None:
    """Compare all models, and print a line of each."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", default="", help="models whose type begins so")
    parser.add_argument("--out", type=Path, help="rows, a line each")
    parser.add_argument("--steps", type=int, default=300, help="tokens of a sequence")
    parser.add_argument("--batch", type=int, default=2, help="sequences")
    parser.add_argument("--hidden", type=int, default=128, help="units")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--seconds", type=float, default=0.0, help="of each timing; 0: none")
    options = parser.parse_args(arguments)
    try:
        version = metadata.version("transformers")
    except metadata.PackageNotFoundError:
        print("transformers is not installed: pip install transformers")
        return
    sys.modules.setdefault("fla", None)  # type: ignore[arg-type]  # what runs without kernels
    torch.set_num_threads(options.threads)
    wrong = list[str]()
    for name in [name for name in TYPES if name.startswith(options.only)]:
        model = make(name, options.hidden)
        tokens = torch.randint(3, VOCABULARY, (options.batch, options.steps))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            row = {"case": name, "version": version, **compare(model, tokens), **code()}
            if options.seconds:
                row["seconds"] = race(model, tokens, options.seconds)
        sizes = {key: getattr(options, key) for key in ("hidden", "batch", "steps", "threads")}
        if row["logits"] > TOLERANCE or not row["same text"]:
            wrong.append(name)
        if options.out:
            append_row(options.out, row | sizes | {"machine": facts()})
        print(json.dumps({key: value for key, value in row.items() if key != "code"}), flush=True)
    if wrong:
        sys.exit(f"different: {', '.join(wrong)}")


if __name__ == "__main__":
    main()

"""Prompts of models of transformers on a CPU by torch, by elman and by OpenVINO.

    pip install transformers openvino
    python -m benchmarks.scripts.transformers_runtimes [--only NAME] [--out FILE.jsonl]

A row has the relative errors of the logits from torch's, medians (s) of a prompt, in turns, and
what comes before the first one: torch.export and conversion, and compilation (s). OpenVINO computes
in float32 (its default rounds to bfloat16 where the processor has that), on as many threads.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.machine import code, facts
from benchmarks.rows import append_row
from benchmarks.scripts.small_models import VOCABULARY, make
from elman.functional import install, uninstall

TYPES = ("mamba2", "falcon_h1", "granitemoehybrid", "bamba", "qwen3_5_text", "lfm2")
EXPORTED = "export", "compile"


class Logits(nn.Module):
    """A model without a cache, whose result is one tensor."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor) -> Tensor:
        logits: Tensor = self.model(input_ids=tokens, use_cache=False).logits
        return logits


def by_openvino(
    model: nn.Module, tokens: Tensor, threads: int
) -> tuple[Callable[[], Tensor], dict[str, float]]:
    """A prompt by OpenVINO, and how long its preparation takes (s)."""
    openvino: Any = import_module("openvino")
    begin = time.perf_counter()
    graph = openvino.convert_model(torch.export.export(model, (tokens,)))
    converted = time.perf_counter()
    options = {"INFERENCE_NUM_THREADS": threads, "INFERENCE_PRECISION_HINT": "f32"}
    compiled = openvino.Core().compile_model(graph, "CPU", options)
    times = converted - begin, time.perf_counter() - converted
    given = [tokens.numpy()]
    return lambda: torch.from_numpy(compiled(given)[0]), dict(zip(EXPORTED, times, strict=True))


@torch.no_grad()
def race(model: nn.Module, tokens: Tensor, threads: int, seconds: float) -> dict[str, Any]:
    """A row of a model."""
    whole = Logits(model)
    uninstall(model)
    want = whole(tokens)
    theirs, before = by_openvino(whole, tokens, threads)
    sides: dict[str, Callable[[], Tensor]] = {
        "torch": lambda: whole(tokens),
        "elman": lambda: whole(tokens),
        "openvino": theirs,
    }
    times: dict[str, list[float]] = {side: [] for side in sides}
    errors = dict[str, float]()
    begin = time.perf_counter()
    while len(times["torch"]) < 5 or time.perf_counter() < begin + seconds:
        for side, run in sides.items():
            (install if side == "elman" else uninstall)(model)
            start = time.perf_counter()
            got = run()
            times[side].append(time.perf_counter() - start)
            errors[side] = float((got - want).norm() / want.norm())
    uninstall(model)
    return {
        "errors": errors,
        "seconds": {side: median(laps[2:]) for side, laps in times.items()},
        "before": before,
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Compare all models, and print a line of each."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", default="", help="models whose type begins so")
    parser.add_argument("--out", type=Path, help="rows, a line each")
    parser.add_argument("--steps", type=int, default=256, help="tokens of a prompt")
    parser.add_argument("--hidden", type=int, default=1024, help="units")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--seconds", type=float, default=3.0, help="of each model")
    options = parser.parse_args(arguments)
    try:
        versions = {name: import_module(name).__version__ for name in ("transformers", "openvino")}
    except ImportError as error:
        print(f"{error.name} is not installed: pip install transformers openvino")
        return
    sys.modules.setdefault("fla", None)  # type: ignore[arg-type]  # what runs without kernels
    torch.set_num_threads(options.threads)
    for name in [name for name in TYPES if name.startswith(options.only)]:
        model = make(name, options.hidden).eval()
        tokens = torch.randint(3, VOCABULARY, (1, options.steps))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            row: dict[str, Any] = {"case": name, "versions": versions, **code()}
            row |= race(model, tokens, options.threads, options.seconds)
        row |= {key: getattr(options, key) for key in ("hidden", "steps", "threads")}
        if options.out:
            append_row(options.out, row | {"machine": facts()})
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()

"""Models of transformers on a CPU by torch, by elman, by OpenVINO and by llama.cpp.

    pip install transformers openvino llama-cpp-python
    python -m benchmarks.scripts.transformers_runtimes [--only NAME] [--out FILE.jsonl]
    python -m benchmarks.scripts.transformers_runtimes --threads 1 --llama FOLDER_OF_ITS_SOURCES

A row has the relative errors of the logits from torch's, medians (s) of a prompt, in turns, and
what comes before the first one: torch.export and conversion, and compilation (s). OpenVINO computes
in float32 (its default rounds to bfloat16 where the processor has that), on as many threads.

With ``--llama``, whose converter writes the files (``gguf`` and ``load``, s), llama.cpp runs the
prompt, too, and a row has medians of a token behind a prompt (``token``): torch, elman, elman with
``weights=`` of two types, and llama.cpp with two. Errors are then of 16 tokens, which is the most
that elman reads such weights for. Attention of llama.cpp rounds to float16, which is faster.
"""

from __future__ import annotations

import argparse
import copy
import json
import sys
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.machine import code, facts
from benchmarks.rows import append_row
from benchmarks.scripts.llama import TYPES as FILES
from benchmarks.scripts.llama import Llama, write
from benchmarks.scripts.small_models import VOCABULARY, make
from benchmarks.scripts.transformers_models import TOKENS, WARM_UP, WEIGHTS, decode
from elman.engines.c.kernels.few_rows import MOST_ROWS
from elman.functional import install, uninstall

TYPES = ("mamba2", "falcon_h1", "granitemoehybrid", "bamba", "qwen3_5_text", "lfm2")
UNLIKE = {"bamba"}  # llama.cpp's file, whose converter permutes what is not rotated, too
EXPORTED = "export", "compile"
PACKAGES = {"transformers": "transformers", "openvino": "openvino", "llama_cpp": "llama-cpp-python"}


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


def by_llama(
    model: nn.Module, sources: Path, steps: int, threads: int
) -> tuple[dict[str, Llama], dict[str, float]]:
    """What llama.cpp has loaded, by the type of weights, and how long float32's takes (s)."""
    loaded, before = dict[str, Llama](), dict[str, float]()
    for weights in FILES:
        with TemporaryDirectory() as folder:
            begin = time.perf_counter()
            file = write(model, weights, sources, Path(folder))
            written = time.perf_counter()
            loaded[weights] = Llama(file, max(steps, 33 + TOKENS), threads)
        before = before or {"gguf": written - begin, "load": time.perf_counter() - written}
    return loaded, before


def in_turns(sides: Mapping[str, Callable[[], float]], seconds: float) -> dict[str, float]:
    """Medians of what sides measure."""
    samples: dict[str, list[float]] = {side: [] for side in sides}
    begin, count = time.perf_counter(), 0
    while count < WARM_UP + 3 or time.perf_counter() < begin + seconds:
        for side in [*sides][:: -1 if count % 2 else 1]:  # so that none always follows the same
            samples[side].append(sides[side]())
        count += 1
    return {side: median(times[WARM_UP:]) for side, times in samples.items()}


def error(got: Tensor, want: Tensor) -> float:
    """The relative error of logits."""
    return float((got - want).norm() / want.norm())


def token(
    model: nn.Module, tokens: Tensor, loaded: Mapping[str, Llama], seconds: float
) -> dict[str, dict[str, float]]:
    """Errors and medians (s) of a token behind a prompt."""
    uninstall(model)
    words, first = tokens[0].tolist(), tokens[:, :MOST_ROWS]
    copies = {weights: copy.deepcopy(model) for weights in WEIGHTS}
    for weights, one in copies.items():
        install(one, weights=weights)
    want = Logits(model)(first)
    logits = {weights: Logits(one)(first) for weights, one in copies.items()}
    logits |= {f"llama {weights}": one.run(words[:MOST_ROWS]) for weights, one in loaded.items()}

    def ours(switch: Callable[[nn.Module], object]) -> float:
        switch(model)
        return decode(model, tokens)

    sides: dict[str, Callable[[], float]] = {
        "torch": lambda: ours(uninstall),
        "elman": lambda: ours(install),
    }
    sides |= {weights: lambda one=one: decode(one, tokens) for weights, one in copies.items()}
    for weights, one in loaded.items():
        sides[f"llama {weights}"] = lambda one=one: one.decode(words, TOKENS)
    errors = {side: error(got, want) for side, got in logits.items()}
    return {"errors": errors, "seconds": in_turns(sides, seconds)}


@torch.no_grad()
def race(
    model: nn.Module, tokens: Tensor, others: set[str], options: argparse.Namespace
) -> dict[str, Any]:
    """A row of a model, in comparison with other packages."""
    uninstall(model)
    whole, words = Logits(model), tokens[0].tolist()
    want, errors, before = whole(tokens), dict[str, float](), dict[str, float]()
    sides: dict[str, Callable[[], Tensor]]
    sides = dict.fromkeys(("torch", "elman"), lambda: whole(tokens))
    if "openvino" in others:
        sides["openvino"], before = by_openvino(whole, tokens, options.threads)
    if "llama_cpp" in others:
        loaded, more = by_llama(model, options.llama, options.steps, options.threads)
        sides["llama"], before = lambda: loaded["float32"].run(words), before | more

    def timed(side: str) -> float:
        (install if side == "elman" else uninstall)(model)
        start = time.perf_counter()
        got = sides[side]()
        elapsed = time.perf_counter() - start
        errors[side] = error(got, want)
        return elapsed

    turns = {side: lambda side=side: timed(side) for side in sides}
    row: dict[str, Any] = {"errors": errors, "before": before}
    row["seconds"] = in_turns(turns, options.seconds)
    if "llama_cpp" in others:
        row["token"] = token(model, tokens, loaded, options.seconds)
    uninstall(model)
    return row


def main(arguments: Sequence[str] | None = None) -> None:
    """Compare all models, and print a line of each."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", default="", help="models whose type begins so")
    parser.add_argument("--out", type=Path, help="rows, a line each")
    parser.add_argument("--llama", type=Path, help="the sources of llama.cpp, which then runs, too")
    parser.add_argument("--steps", type=int, default=256, help="tokens of a prompt")
    parser.add_argument("--hidden", type=int, default=1024, help="units")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--seconds", type=float, default=3.0, help="of each model")
    options = parser.parse_args(arguments)
    versions = dict[str, str]()
    for name, package in PACKAGES.items():
        if name == "llama_cpp" and not options.llama:
            continue
        try:
            versions[name] = import_module(name).__version__
        except ImportError:
            print(f"{name} is not installed: pip install {package}")
    others = {*versions} - {"transformers"}
    if "transformers" not in versions or not others:
        return
    sys.modules.setdefault("fla", None)  # type: ignore[arg-type]  # what runs without kernels
    torch.set_num_threads(options.threads)
    for name in [name for name in TYPES if name.startswith(options.only)]:
        model = make(name, options.hidden).eval()
        tokens = torch.randint(3, VOCABULARY, (1, options.steps))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            row: dict[str, Any] = {"case": name, "versions": versions, **code()}
            able = others - {"llama_cpp"} if name in UNLIKE else others
            row |= race(model, tokens, able, options)
        row |= {key: getattr(options, key) for key in ("hidden", "steps", "threads")}
        if options.out:
            append_row(options.out, row | {"machine": facts()})
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()

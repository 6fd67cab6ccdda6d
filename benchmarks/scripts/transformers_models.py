"""Models of transformers before and after `elman.functional.install`, on a CPU.

    pip install transformers
    python -m benchmarks.scripts.transformers_models [--only NAME] [--out FILE.jsonl]
    python -m benchmarks.scripts.transformers_models --hidden 1024 --threads 1 --seconds 3
    python -m benchmarks.scripts.transformers_models --published --steps 512 --seconds 3

Random weights, each recurrent type of transformers; with ``--published``, models of the sizes of
published ones. A row has the relative errors of the logits and of the gradient (all parameters as
one vector), whether both generate the same tokens, and what runs on elman. The errors are
differences from torch; of published sizes from the same model in float64, and torch's stand beside
ours. With ``--seconds`` it has medians (s), in turns, of a training step, of one of LoRA adapters
(``adapters``, by peft), of a prompt and of a token behind it, the last also with ``weights=``, the
others also with matrix products in bfloat16 (torch's ``fp32_precision``). ``products`` is what
torch's float32 products of the projections take of torch's time, which no replacement of the rest
can save. The exit status is 1 if logits or tokens differ.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from importlib import import_module, metadata
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

from benchmarks.machine import code, facts
from benchmarks.rows import append_row
from benchmarks.scripts.small_models import PUBLISHED, TYPES, VOCABULARY, make, make_published
from elman.functional import install, uninstall

TOLERANCE = 1e-5  # of the logits' relative errors
COMPARED = 300  # tokens of a sequence whose results are compared
COMPARED_IN_DOUBLE = 128  # with float64, whose weights, gradients and steps fill memory
TOKENS = 64  # of a decoded text that is timed
CONTEXT = 32  # tokens before
WARM_UP = 3  # samples that are not counted: kernels are compiled, and engines chosen
SIZES = ("hidden", "batch", "steps", "threads", "context")  # of a row
PHASES = ("training", "prompt", "token")
WEIGHTS = ("float32", "int8")  # of models whose linear layers are ours, too
PRODUCTS = ("aten::mm", "aten::addmm", "aten::mv", "aten::addmv")  # of projections


Results = tuple[list[Tensor], list[Tensor]]  # logits; gradients of all parameters


def train(model: nn.Module, tokens: Tensor) -> Results:
    """Logits, and the gradients of all parameters."""
    model.zero_grad()
    output = model(input_ids=tokens, labels=tokens, use_cache=False)
    output.loss.backward()
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    return [output.logits.detach()], gradients


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
def decode(model: nn.Module, tokens: Tensor, context: int = CONTEXT) -> float:
    """Seconds of a token behind a prompt of so many."""
    output, start = prompt(model, tokens[:, :context]), 0.0
    for n in range(TOKENS + 1):
        output = model(input_ids=tokens[:, n : n + 1], use_cache=True, **after(output, context + n))
        start = start or time.perf_counter()  # the first one also copies weights
    return (time.perf_counter() - start) / TOKENS


def error(got: Sequence[Tensor], want: Sequence[Tensor]) -> float:
    """The relative error of all values as one vector."""
    off = sum(float((a - b).square().sum()) for a, b in zip(got, want, strict=True))
    return math.sqrt(off / sum(float(b.square().sum()) for b in want))


def errors(got: Results, want: Results) -> dict[str, float]:
    """The relative errors of the logits and of the gradient."""
    return {"logits": error(got[0], want[0]), "gradient": error(got[1], want[1])}


def compare(model: nn.Module, tokens: Tensor, double: bool = False) -> dict[str, Any]:
    """The errors of a model's row. With `double` both sides' of the same model in float64: deep
    models are no closer to each other than to that."""
    uninstall(model)
    row = dict[str, Any]()
    exact = None
    if double:  # first: a copy of the model, or gradients of both sides, may not fit next to it
        exact = train(model.double(), tokens)
        model.zero_grad()
        model.float()
    theirs = train(model, tokens)
    text = generate(model, tokens)
    if exact is not None:
        row["torch"] = errors(theirs, exact)
        theirs = exact
    report = install(model)
    try:
        row |= errors(train(model, tokens), theirs)
        same = torch.equal(generate(model, tokens), text)
    finally:
        uninstall(model)
    return row | {"same text": same, "report": [*dict.fromkeys(report.values())]}


def with_adapters(model: nn.Module) -> nn.Module:
    """A copy of a model with LoRA adapters of its linear layers, which alone are trained. Those of
    the output and ``out_proj``, which peft refuses in Mamba, have none."""
    peft: Any = import_module("peft")
    names = {n.rpartition(".")[2] for n, m in model.named_modules() if isinstance(m, nn.Linear)}
    config = peft.LoraConfig(target_modules=sorted(names - {"lm_head", "out_proj"}))
    adapted: nn.Module = peft.get_peft_model(copy.deepcopy(model), config)
    return adapted


def share_of_products(run: Callable[[], object]) -> float:
    """What part of the time of a call matrix products of two matrices take."""
    with profile(activities=[ProfilerActivity.CPU]) as profiled:
        run()
    events = profiled.key_averages()
    products = sum(e.self_cpu_time_total for e in events if e.key in PRODUCTS)
    return products / max(1e-9, sum(e.self_cpu_time_total for e in events))


def race(
    model: nn.Module,
    tokens: Tensor,
    seconds: float,
    phases: Sequence[str] = PHASES,
    context: int = CONTEXT,
) -> dict[str, dict[str, float]]:
    """Medians (s) of phases, by side."""
    backends: Any = torch.backends
    multiply = backends.mkldnn.matmul
    before = multiply.fp32_precision

    def timed(run: Callable[[nn.Module, Tensor], Any], model: nn.Module) -> float:
        start = time.perf_counter()
        run(model, tokens)
        return time.perf_counter() - start

    runs: dict[str, Callable[[nn.Module], float]] = {
        "training": lambda model: timed(train, model),
        "adapters": lambda model: timed(train, model),
        "prompt": lambda model: timed(prompt, model),
        "token": lambda model: decode(model, tokens, context),
    }
    rows = dict[str, dict[str, float]]()
    for phase in phases:
        one = with_adapters(model) if phase == "adapters" else model
        models = {"torch": one, "elman": one}
        if phase == "token":
            for weights in WEIGHTS:
                models[weights] = copy.deepcopy(model)
        else:
            models |= {"torch bf16": one, "elman bf16": one}
        samples: dict[str, list[float]] = {side: [] for side in models}
        start = time.perf_counter()
        warm_up = 0
        while len(samples["elman"]) < warm_up + 3 or time.perf_counter() < start + seconds:
            sides = [*models.items()]  # forth and back, so that none always follows the same one
            for side, each in sides[:: -1 if len(samples["elman"]) % 2 else 1]:
                if side.startswith("torch"):
                    uninstall(each)
                else:
                    install(each, weights=side if side in WEIGHTS else None)
                multiply.fp32_precision = "bf16" if side.endswith("bf16") else before
                samples[side].append(runs[phase](each))
            if len(samples["elman"]) == 1:  # one of a step that takes long is enough
                warm_up = WARM_UP if time.perf_counter() - start < seconds else 1
        multiply.fp32_precision = before
        rows[phase] = {side: median(times[warm_up:]) for side, times in samples.items()}
        uninstall(one)
        share = share_of_products(lambda one=one, phase=phase: runs[phase](one))
        rows[phase]["products"] = share * rows[phase]["torch"]
        model.zero_grad()
    uninstall(model)
    return rows


def main(arguments: Sequence[str] | None = None) -> None:
    """Compare all models, and print a line of each."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", default="", help="models whose type begins so")
    parser.add_argument("--by-size", action="store_true", help="rows are named by sizes, too")
    parser.add_argument("--published", action="store_true", help="sizes of published models")
    parser.add_argument("--phases", default=",".join(PHASES), help="that are timed: adapters, too")
    parser.add_argument("--out", type=Path, help="rows, a line each")
    parser.add_argument("--steps", type=int, default=300, help="tokens of a sequence")
    parser.add_argument("--batch", type=int, default=2, help="sequences")
    parser.add_argument("--hidden", type=int, default=128, help="units")
    parser.add_argument(
        "--context", type=int, default=CONTEXT, help="tokens before one that is timed"
    )
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
    phases = options.phases.split(",")
    if unknown := {*phases} - {*PHASES, "adapters"}:
        parser.error(f"there is no phase {', '.join(sorted(unknown))}")
    wrong = list[str]()
    names = PUBLISHED if options.published else TYPES
    for name in [name for name in names if name.startswith(options.only)]:
        model = make_published(name) if options.published else make(name, options.hidden)
        tokens = torch.randint(3, VOCABULARY, (options.batch, options.steps))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            row: dict[str, Any] = {"case": name, "version": version, **code()}
            compared = COMPARED_IN_DOUBLE if options.published else COMPARED
            row |= compare(model, tokens[:, :compared], options.published)
            if options.seconds:
                row["seconds"] = race(model, tokens, options.seconds, phases, options.context)
        keys = SIZES[1:] if options.published else SIZES
        sizes = {key: getattr(options, key) for key in keys}
        rounding = row["torch"]["logits"] if options.published else 0.0
        if row["logits"] > max(TOLERANCE, 2 * rounding) or not row["same text"]:
            wrong.append(name)
        if options.by_size:
            before = "" if options.context == CONTEXT else f",{options.context} before"
            row["case"] = f"{name} {options.batch},{options.steps}{before}"
        if options.out:
            append_row(options.out, row | sizes | {"machine": facts()})
        print(json.dumps({key: value for key, value in row.items() if key != "code"}), flush=True)
    if wrong:
        sys.exit(f"different: {', '.join(wrong)}")


if __name__ == "__main__":
    main()

"""Layers of `elman.layers` beside their authors' implementations, on the same random weights.

    pip install flash-linear-attention transformers triton xlstm rwkv
    python -m benchmarks.scripts.authors_layers [--only NAME] [--engine c] [--seconds 0]
        [--out FILE.jsonl]

Each case draws every parameter of the other implementation, loads them into elman's layer or model,
and compares outputs, the state after the last step, a stream in parts, and gradients of the input
and of every parameter by name. A row has the largest relative errors, |a - b| / |b| of each tensor.
With ``--seconds``, training steps of usual size in float32 are timed, too, where the other
implementation is made of torch's operators: both run interleaved, a row has the medians (s).
All runs on the CPU. A case is skipped, and says so, if a package is missing. The exit status is 1
if a case differs. Half a minute of one core; times want an idle machine and two minutes.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from functools import partial
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import torch
from torch import Tensor

from benchmarks.machine import code, facts
from benchmarks.peers import authors
from benchmarks.peers.authors import Pair, Sizes, draw
from benchmarks.rows import Row, append_row
from benchmarks.timing import time_side_by_side

PARTS = (17, 1, 13)  # steps of each call of a stream
# Of relative errors. The terms of some gradients all but cancel: of input gates, and of decays. In
# float64 there is xLSTM alone, whose code adds 1e-6 to a divisor.
TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-6}


class Case(NamedTuple):
    """A comparison.

    Attributes:
        layer: of elman.layers.
        other: what it is compared with.
        modules: that must be installed, the one that has the other first.
        build: makes both for an engine of elman.
        usual: the same of usual size in float32; None: not timed.
    """

    layer: str
    other: str
    modules: tuple[str, ...]
    build: Callable[[str], Pair]
    usual: Callable[[str], Pair] | None = None


PACKAGES = {"fla": "flash-linear-attention"}  # of modules with another name
_FLA = ("fla", "triton", "transformers")
USUAL = Sizes(T=512, B=4, size=512, heads=4, rows=64, chunk=64)
CASES = {
    "DeltaNet": Case(
        *("DeltaNet", "`fla.layers`", _FLA),
        lambda engine: authors.fla("DeltaNet", engine, num_heads=2),
    ),
    "DeltaNet with a gate": Case(
        *("DeltaNet", "`fla.layers`, `use_gate`, `allow_neg_eigval`", _FLA),
        lambda engine: authors.fla(
            "DeltaNet", engine, num_heads=2, use_gate=True, allow_neg_eigval=True
        ),
    ),
    "GatedDeltaNet": Case(
        *("GatedDeltaNet", "`fla.layers`", _FLA),
        lambda engine: authors.fla("GatedDeltaNet", engine, num_heads=2, head_dim=12),
    ),
    "GatedDeltaNet of Qwen3-Next": Case(
        *("GatedDeltaNet", "`Qwen3NextGatedDeltaNet`", ("transformers",), authors.qwen),
        lambda engine: authors.qwen(engine, USUAL),
    ),
    "GatedLinearAttention": Case(
        *("GatedLinearAttention", "`fla.layers`", _FLA),
        lambda engine: authors.fla("GatedLinearAttention", engine, num_heads=2),
    ),
    "MLSTM": Case(
        *("MLSTM", "`mLSTMLayer` of `xlstm_large`", ("xlstm",), authors.xlstm),
        lambda engine: authors.xlstm(engine, USUAL, torch.float32),
    ),
    "Mamba2": Case(
        *("Mamba2", "`Mamba2ForCausalLM`, two layers", ("transformers",), authors.mamba2),
        lambda engine: authors.mamba2(engine, USUAL._replace(chunk=256)),
    ),
    "RWKV7": Case("RWKV7", "`RWKV`, a model of two blocks", ("rwkv",), authors.rwkv),
}


def error(got: Tensor, want: Tensor) -> float:
    """The relative error of a tensor, in the Euclidean norm."""
    assert got.shape == want.shape, f"{list(got.shape)} instead of {list(want.shape)}"
    return float((got - want).norm() / want.norm().clamp(min=1e-30))


def forward_errors(pair: Pair) -> tuple[float, float]:
    """The largest errors of outputs and of states, of all steps at once and of a stream."""
    outputs, states = [], []
    for parts in ([len(pair.x)], PARTS):
        rows, ours, theirs = [], None, None
        for part in pair.x.split([*parts]):
            got, ours, *_ = pair.ours(part, ours)
            want, theirs = pair.call(part, theirs)
            rows.append((got, want))
        outputs.append(error(*map(torch.cat, zip(*rows, strict=True))))
        assert ours is not None, "there are steps"
        states += map(error, ours, pair.state(theirs))
    return max(outputs), max(states)


def gradient_errors(pair: Pair) -> dict[str, float]:
    """Errors of gradients by our names, of that of x if it has one, and of outputs beside them."""
    ours, weights = dict(pair.ours.named_parameters()), dict(pair.weights)
    for value in weights.values():
        value.requires_grad_()
    x, same = (
        value.clone().requires_grad_(value.is_floating_point()) for value in (pair.x, pair.x)
    )
    got, want = pair.ours(x)[0], pair.call(same, None)[0]
    inputs = [x] if x.requires_grad else []
    d, others = torch.randn_like(want), [same] if same.requires_grad else []
    grads = torch.autograd.grad(got, [*ours.values(), *inputs], d)
    wanted = torch.autograd.grad(want, [*weights.values(), *others], d)
    theirs = pair.renamed(dict(zip(weights, wanted, strict=False)))
    errors = {name: error(grad, theirs[name]) for name, grad in zip(ours, grads, strict=False)}
    if inputs:
        errors["x"] = error(grads[-1], wanted[-1])
    return {**errors, "outputs": error(got.detach(), want.detach())}


def compare(pair: Pair) -> dict[str, Any]:
    """The largest relative errors of a pair, on the same weights.

    Raises:
        RuntimeError: the weights do not load, or an output depends on none of them.
    """
    draw(pair.weights)
    load_weights(pair)
    with torch.no_grad():
        outputs, states = forward_errors(pair)
    errors = gradient_errors(pair)
    outputs = max(outputs, errors.pop("outputs"))
    worst = max(errors, key=errors.__getitem__)
    found = {"outputs": outputs, "gradients": errors[worst], "state": states}
    weights = pair.renamed(pair.weights)
    (dtype,) = {value.dtype for value in weights.values()}
    return {
        **found,
        "worst": worst,
        "dtype": str(dtype).removeprefix("torch."),
        "parameters": sum(value.numel() for value in weights.values()),
        "names": len(weights),
        "agree": all(value < TOLERANCE[dtype] for value in found.values()),
    }


def load_weights(pair: Pair) -> None:
    """Give our module the other's weights. Raises RuntimeError: they do not load."""
    named = {name: value.detach() for name, value in pair.renamed(pair.weights).items()}
    pair.ours.load_state_dict(named)


def training_times(pair: Pair, seconds: float) -> dict[str, float]:
    """Medians (s) of training steps of both, whose outputs are the same.

    Raises:
        AssertionError: they are not.
    """
    load_weights(pair)
    weights = {"theirs": [*pair.weights.values()], "elman": [*pair.ours.parameters()]}
    for value in weights["theirs"]:
        value.requires_grad_()
    calls = {"theirs": lambda x: pair.call(x, None)[0], "elman": lambda x: pair.ours(x)[0]}
    with torch.no_grad():
        difference = error(*(call(pair.x) for call in reversed([*calls.values()])))
    assert difference < TOLERANCE[torch.float32], f"outputs differ by {difference:.1e}"

    def step(name: str) -> object:
        inputs = [pair.x.clone().requires_grad_()] if pair.x.is_floating_point() else []
        out = calls[name](inputs[0] if inputs else pair.x)
        return torch.autograd.grad(out.square().mean(), [*weights[name], *inputs])

    runs = {name: partial(step, name) for name in calls}
    samples = time_side_by_side(runs, seconds, rounds=3)
    return {name: median(each.steady) for name, each in samples.items()}


def measure(name: str, engine: str, seed: int, seconds: float) -> Row:
    """The row of a case, with times if it takes seconds, or the reason why there is none."""
    layer, other, modules, build, usual = CASES[name]
    row = {"case": name, "layer": layer, "other": other, "engine": engine}
    missing = [PACKAGES.get(each, each) for each in modules if find_spec(each) is None]
    if missing:
        return {**row, "skipped": f"pip install {' '.join(missing)}"}
    package = PACKAGES.get(modules[0], modules[0])
    torch.manual_seed(seed)
    found = compare(build(engine))
    if seconds and usual is not None:
        found["seconds"] = training_times(usual(engine), seconds)
    return {**row, "package": package, "version": metadata.version(package), **found}


def line(row: Row) -> str:
    """A row as text."""
    if "skipped" in row:
        return f"{row['case']:28} skipped: {row['skipped']}"
    errors = ", ".join(f"{key} {row[key]:.1e}" for key in ("outputs", "gradients", "state"))
    times = [f"{way} {1e3 * s:.1f} ms" for way, s in row.get("seconds", {}).items()]
    errors = ", ".join([errors, *times])
    told = "" if row["agree"] else f"  DIFFERS most in {row['worst']}"
    where = f"{row['package']} {row['version']}, {row['names']} parameters, {row['dtype']}"
    return f"{row['case']:28} {errors} ({where}){told}"


def main(arguments: Sequence[str] | None = None) -> None:
    """Compare all cases, print a line of each."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", default="", help="cases whose name begins so")
    parser.add_argument("--engine", default="c", help="of elman")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=0.0, help="of the rounds of a case")
    parser.add_argument("--out", type=Path, help="rows, a line each")
    options = parser.parse_args(arguments)
    if not options.seconds:
        torch.set_num_threads(1)
    agree = True
    for name in CASES:
        if name.startswith(options.only):
            row = measure(name, options.engine, options.seed, options.seconds)
            print(line(row), flush=True)
            if options.out and "skipped" not in row:
                append_row(options.out, {**row, **code(), "machine": facts()})
            agree = agree and row.get("agree", True)
    if not agree:
        raise SystemExit(1)


if __name__ == "__main__":
    main()

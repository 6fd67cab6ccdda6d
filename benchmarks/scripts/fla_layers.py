"""Layers and models of flash-linear-attention on a CPU without Triton, by `elman.functional.fla`.

    pip install flash-linear-attention transformers
    python -m benchmarks.scripts.fla_layers [--only NAME] [--seconds 2] [--out FILE.jsonl]

Random weights. A layer on elman is compared with itself on the package's own reference functions
(``naive``, torch's operations): outputs, and the gradient of its input and all parameters as one
vector. Sequences behind one another (``cu_seqlens``) are compared with each of them alone, and a
prompt with steps behind it, from a cache, with all steps at once; so is a whole model. A row has
the largest relative errors; with ``--seconds`` also medians (s) of a training step of usual size,
by the reference functions and by elman, interleaved. The exit status is 1 if something differs.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from importlib import import_module, metadata
from pathlib import Path
from statistics import median
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from benchmarks.machine import code, facts
from benchmarks.rows import append_row
from benchmarks.timing import time_side_by_side
from elman import functional

TOLERANCE = 1e-4  # of relative errors in float32
COMPARED = ("outputs", "gradient", "packed", "steps", "model")
VOCABULARY = 100
Results = tuple[Tensor, Any]


def naive(place: str, name: str) -> Callable[..., Any]:
    """A reference function of the package."""
    return getattr(import_module(f"fla.ops.{place}"), name)


def turned(*values: Tensor) -> list[Tensor]:
    """[B, T, heads, ..] as [B, heads, T, ..], and back."""
    return [x.transpose(1, 2) for x in values]


def unit(x: Tensor) -> Tensor:
    """Rows of norm 1."""
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-6)


def gla(q: Tensor, k: Tensor, v: Tensor, g: Tensor, **_: Any) -> Results:
    return naive("gla.naive", "naive_recurrent_gla")(q, k, v, g)


def simple_gla(q: Tensor, k: Tensor, v: Tensor, g: Tensor, **_: Any) -> Results:
    out, last = naive("simple_gla.naive", "naive_chunk_simple_gla")(q, k, v, g)
    return out, last


def retention(q: Tensor, k: Tensor, v: Tensor, **_: Any) -> Results:
    out = naive("retention.naive", "naive_retention")(*turned(q, k, v))
    return turned(out)[0], None


def linear(q: Tensor, k: Tensor, v: Tensor, normalize: bool, **_: Any) -> Results:
    function = naive("linear_attn.naive", "naive_recurrent_linear_attn")
    return function(q, k, v, normalize=normalize)


def delta(q: Tensor, k: Tensor, v: Tensor, beta: Tensor, **_: Any) -> Results:
    function = naive("delta_rule.naive", "delta_rule_chunkwise")
    out, last = function(*turned(unit(q), unit(k), v, beta))
    return turned(out)[0], last


def gated_delta(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, **given: Any) -> Results:
    g = naive("gated_delta_rule.gate", "naive_gdn_gate")(g, given["A_log"], given["dt_bias"])
    function = naive("gated_delta_rule.naive", "naive_chunk_gated_delta_rule")
    return function(unit(q), unit(k), v, g, beta.sigmoid())


def kda(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, **given: Any) -> Results:
    g = naive("kda.gate", "naive_kda_gate")(g, given["A_log"], given["dt_bias"])
    function = naive("kda.naive", "naive_chunk_kda")
    return function(unit(q), unit(k), v, g, beta.sigmoid())


def product(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, **given: Any) -> Results:
    function = naive("gated_delta_product.naive", "naive_recurrent_gated_delta_product")
    scale, n = q.shape[-1] ** -0.5, given["num_householder"]
    return function(unit(q), unit(k), v, g, beta, scale, num_householder=n)


def rwkv7(r: Tensor, w: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor, **_: Any) -> Results:
    function = naive("generalized_delta_rule.dplr.naive", "dplr_recurrence")
    out, last = function(*turned(r * r.shape[-1] ** 0.5, k, v, a, b, w))
    return turned(out)[0], last


def rwkv6(r: Tensor, k: Tensor, v: Tensor, w: Tensor, u: Tensor, **given: Any) -> Results:
    function = naive("rwkv6.recurrent_naive", "naive_recurrent_rwkv6")
    out, last = function(*turned(r, k, v, w), u, scale=given["scale"])
    return turned(out)[0], last


def hgrn(x: Tensor, g: Tensor, **_: Any) -> Results:
    return naive("hgrn.naive", "naive_recurrent_hgrn")(x, g)


def mamba2(layer: Any, *given: Any, **options: Any) -> Any:
    """What the package runs on a CPU."""
    theirs = functional.fla.original("Mamba2", "torch_forward")
    return theirs(layer, *given, **options)


class Case(NamedTuple):
    """A layer and its model.

    Attributes:
        module, layer: in ``fla.layers``.
        rule: what is replaced by ``reference``: a function of the layer's module, or its method.
        options, usual: of the layer, besides ``hidden_size``: small ones, and those of its times.
        model: the name of its model and configuration in ``fla.models``.
        of_model: options of the configuration.
    """

    module: str
    layer: str
    rule: str
    reference: Callable[..., Any]
    options: dict[str, Any]
    usual: dict[str, Any]
    model: str = ""
    of_model: Mapping[str, Any] = MappingProxyType({})


_TWO, _FOUR = {"num_heads": 2}, {"num_heads": 4}
_SMALL, _WIDE = {"num_heads": 2, "head_dim": 16}, {"num_heads": 4, "head_dim": 64}
CASES = {
    "GLA": Case("gla", "GatedLinearAttention", "chunk_gla", gla, _TWO, _FOUR, "GLA", _TWO),
    "GLA, convolutions": Case(
        *("gla", "GatedLinearAttention", "chunk_gla", gla),
        {"use_short_conv": True, **_TWO},
        {"use_short_conv": True, **_FOUR},
    ),
    "RetNet": Case(
        *("multiscale_retention", "MultiScaleRetention", "chunk_retention", retention),
        *(_TWO, _FOUR, "RetNet", _TWO),
    ),
    "simple GLA": Case(
        *("simple_gla", "SimpleGatedLinearAttention", "chunk_simple_gla", simple_gla, _TWO, _FOUR),
    ),
    "linear attention": Case(
        *("linear_attn", "LinearAttention", "chunk_linear_attn", linear),
        {"do_feature_map_norm": True, "feature_map": "elu", **_TWO},
        {"do_feature_map_norm": True, "feature_map": "elu", **_FOUR},
        *("LinearAttention", _TWO),
    ),
    "DeltaNet": Case(
        "delta_net", "DeltaNet", "chunk_delta_rule", delta, _TWO, _FOUR, "DeltaNet", _TWO
    ),
    "gated DeltaNet": Case(
        *("gated_deltanet", "GatedDeltaNet", "chunk_gated_delta_rule", gated_delta),
        *(_SMALL, _WIDE, "GatedDeltaNet", _SMALL),
    ),
    "gated DeltaProduct": Case(
        *("gated_deltaproduct", "GatedDeltaProduct", "chunk_gated_delta_product", product),
        *(_SMALL, _WIDE, "GatedDeltaProduct", _SMALL),
    ),
    "KDA": Case("kda", "KimiDeltaAttention", "chunk_kda", kda, _SMALL, _WIDE, "KDA", _SMALL),
    "RWKV-7": Case(
        *("rwkv7", "RWKV7Attention", "chunk_rwkv7", rwkv7),
        {"head_dim": 16, "num_hidden_layers": 2},
        {"head_dim": 64, "num_hidden_layers": 2},
        *("RWKV7", {"head_dim": 16}),
    ),
    "RWKV-6": Case("rwkv6", "RWKV6Attention", "chunk_rwkv6", rwkv6, _TWO, _FOUR, "RWKV6", _TWO),
    "HGRN-2": Case(
        *("hgrn2", "HGRN2Attention", "chunk_gla", gla),
        *({"expand_ratio": 16}, {"expand_ratio": 64}, "HGRN2", {"expand_ratio": 16}),
    ),
    "HGRN": Case(
        *("hgrn", "HGRNAttention", "chunk_hgrn", hgrn),
        *({"mode": "fused_recurrent"}, {}, "HGRN"),
    ),
    "Mamba-2": Case(
        *("mamba2", "Mamba2", "torch_forward", mamba2),
        *({"num_heads": 8, "head_dim": 16, "state_size": 16, "chunk_size": 16}, {"head_dim": 64}),
        *("Mamba2", {"num_heads": 8, "head_dim": 16, "state_size": 16, "chunk_size": 16}),
    ),
}


def error(got: Tensor, want: Tensor) -> float:
    """The relative error in the Euclidean norm."""
    assert got.shape == want.shape, f"{[*got.shape]} instead of {[*want.shape]}"
    got, want = got.detach(), want.detach()
    return float((got - want).norm() / want.norm())


def make(case: Case, hidden: int, options: dict[str, Any]) -> nn.Module:
    """A layer with random weights, none of which is zero."""
    torch.manual_seed(0)
    kind = getattr(import_module(f"fla.layers.{case.module}"), case.layer)
    layer = kind(hidden_size=hidden, layer_idx=0, **options)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    return layer


@contextmanager
def by_reference(case: Case) -> Any:
    """Inside, the layer runs the package's own function."""
    module = import_module(f"fla.layers.{case.module}")
    owner = module if hasattr(module, case.rule) else getattr(module, case.layer)
    ours = getattr(owner, case.rule)
    setattr(owner, case.rule, case.reference)
    try:
        yield
    finally:
        setattr(owner, case.rule, ours)


def train(layer: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    """Outputs, and the gradient of x and all parameters."""
    x = x.clone().requires_grad_()
    out = layer(x)[0]
    leaves = [x, *layer.parameters()]
    grads = torch.autograd.grad(out.square().sum(), leaves, allow_unused=True)
    return out.detach(), torch.cat([grad.flatten() for grad in grads if grad is not None])


@torch.no_grad()
def steps_error(layer: nn.Module, x: Tensor) -> float:
    """Of a prompt of most steps, and single ones behind it."""
    cache = import_module("fla.models.utils").Cache()
    parts = [x[:, :-5], *x[:, -5:].split(1, 1)]
    rows = [layer(part, past_key_values=cache, use_cache=True)[0] for part in parts]
    return error(torch.cat(rows, 1), layer(x)[0])


def packed_error(layer: nn.Module, x: Tensor) -> float:
    """Of sequences behind one another."""
    ends = torch.tensor([0, 30, 31, x.shape[1]])
    each = [layer(part)[0] for part in x[:1].split(ends.diff().tolist(), 1)]
    return error(layer(x[:1], cu_seqlens=ends)[0], torch.cat(each, 1))


def model_errors(case: Case) -> dict[str, Any]:
    """Of a model of two layers: its loss is differentiated, and tokens behind a prompt have the
    logits of all tokens at once."""
    models = import_module("fla.models")
    sizes = {"hidden_size": 64, "num_hidden_layers": 2, "vocab_size": VOCABULARY}
    config = getattr(models, f"{case.model}Config")(**sizes, **case.of_model)
    torch.manual_seed(0)
    model = getattr(models, f"{case.model}ForCausalLM")(config)
    tokens = torch.randint(3, VOCABULARY, (2, 80))
    model(input_ids=tokens, labels=tokens).loss.backward()
    grads = [p.grad.flatten() for p in model.parameters() if p.grad is not None]
    model.eval()
    with torch.no_grad():
        want = model(input_ids=tokens).logits
        output, rows = model(input_ids=tokens[:, :70], use_cache=True), []
        for n in range(70, 80):
            rows.append(output.logits[:, -1])
            cache = output.past_key_values
            output = model(input_ids=tokens[:, n : n + 1], past_key_values=cache, use_cache=True)
    return {
        "model": error(torch.stack(rows, 1), want[:, 69:79]),
        "gradient norm": float(torch.cat(grads).norm()),
    }


def compare(case: Case) -> dict[str, Any]:
    """The errors of a row."""
    layer, x = make(case, 64, case.options), torch.randn(2, 128, 64)
    with by_reference(case):
        want = train(layer, x)
    got = train(layer, x)
    row: dict[str, Any] = {"outputs": error(got[0], want[0]), "gradient": error(got[1], want[1])}
    if case.layer != "Mamba2":  # whose layer does not know of sequences behind one another
        row["packed"] = packed_error(layer, x)
    row["steps"] = steps_error(layer.eval(), x)
    return {**row, **(model_errors(case) if case.model else {})}


def race(case: Case, seconds: float) -> dict[str, float]:
    """Medians (s) of a training step, by side."""
    layer, x = make(case, 256, case.usual), torch.randn(2, 512, 256)

    def reference() -> object:
        with by_reference(case):
            return train(layer, x)

    runs = {"naive": reference, "elman": partial(train, layer, x)}
    samples = time_side_by_side(runs, seconds, rounds=3)
    return {name: median(each.steady) for name, each in samples.items()}


def main(arguments: Sequence[str] | None = None) -> None:
    """Compare all layers, and print a line of each."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", default="", help="layers whose name begins so")
    parser.add_argument("--out", type=Path, help="rows, a line each")
    parser.add_argument("--seconds", type=float, default=0.0, help="of each timing; 0: none")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args(arguments)
    try:
        version = metadata.version("flash-linear-attention")
    except metadata.PackageNotFoundError:
        print("flash-linear-attention is not installed: pip install flash-linear-attention")
        return
    functional.fla.install()
    torch.set_num_threads(options.threads)
    wrong = list[str]()
    for name, case in CASES.items():
        if not name.startswith(options.only):
            continue
        row = {"case": name, "version": version, **compare(case)}
        if max(row.get(key, 0.0) for key in COMPARED) > TOLERANCE:
            wrong.append(name)
        if options.seconds:
            row |= {"seconds": race(case, options.seconds), "threads": options.threads}
        print(json.dumps(row), flush=True)
        if options.out:
            append_row(options.out, {**row, **code(), "machine": facts()})
    if wrong:
        sys.exit(f"different: {', '.join(wrong)}")


if __name__ == "__main__":
    main()

"""Small models of transformers before and after `elman.functional.install`, on a CPU.

    pip install transformers
    python -m benchmarks.scripts.transformers_models [--only NAME] [--out FILE.jsonl]

Random weights, two sequences of 300 tokens. A row has the relative errors of the logits and of the
gradient (all parameters as one vector), whether both generate the same tokens, and the seconds of a
training step (the faster of two). The exit status is 1 if logits or tokens differ. A minute.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from importlib import import_module, metadata
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.machine import code, facts
from benchmarks.rows import append_row
from elman.functional import install, uninstall

TOLERANCE = 1e-5  # of the logits' relative errors
_USUAL = {"vocab_size": 500, "hidden_size": 128, "pad_token_id": 0}
_ATTENTION = {"num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 256}
_RULE = {f"linear_num_{name}_heads": count for name, count in (("key", 2), ("value", 4))}
_RULE |= {"linear_key_head_dim": 32, "linear_value_head_dim": 32, "head_dim": 32}
_EXPERTS = {"num_experts": 2, "num_experts_per_tok": 1}
_MAMBA2 = {"mamba_n_heads": 4, "mamba_d_head": 64, "mamba_d_state": 32}
MODELS: dict[str, dict[str, Any]] = {  # by model type: its configuration
    "qwen3_5_text": {"num_hidden_layers": 4, **_ATTENTION, **_RULE},
    "qwen3_next": {
        "num_hidden_layers": 4,
        "moe_intermediate_size": 64,
        **_ATTENTION,
        **_RULE,
        **_EXPERTS,
        "shared_expert_intermediate_size": 64,
    },
    "olmo_hybrid": {"num_hidden_layers": 4, **_ATTENTION},
    "mamba": {"num_hidden_layers": 2},
    "falcon_mamba": {"num_hidden_layers": 2},
    "jamba": {
        "num_hidden_layers": 4,
        **_ATTENTION,
        **_EXPERTS,
        "attn_layer_period": 2,
        "attn_layer_offset": 1,
    },
    "mamba2": {
        "num_hidden_layers": 2,
        "num_heads": 4,
        "head_dim": 64,
        "state_size": 32,
        "n_groups": 2,
    },
    "nemotron_h": {
        "num_hidden_layers": 4,
        "mamba_num_heads": 4,
        "mamba_head_dim": 64,
        "n_groups": 2,
        "ssm_state_size": 32,
        **_ATTENTION,
        "head_dim": 32,
    },
    "bamba": {"num_hidden_layers": 2, **_ATTENTION, **_MAMBA2, "attn_layer_indices": [1]},
    "falcon_h1": {
        "num_hidden_layers": 2,
        **_ATTENTION,
        **_MAMBA2,
        "mamba_d_ssm": 256,
        "head_dim": 32,
    },
    "granitemoehybrid": {
        "num_hidden_layers": 2,
        **_ATTENTION,
        **_MAMBA2,
        "num_local_experts": 0,
        "layer_types": ["mamba", "attention"],
        "shared_intermediate_size": 128,
    },
    "zamba2": {
        "num_hidden_layers": 3,
        **_ATTENTION,
        "num_key_value_heads": 4,
        "mamba_d_state": 32,
        "mamba_headdim": 32,
        "n_mamba_heads": 8,
        "layers_block_type": ["mamba", "mamba", "hybrid"],
    },
}


def train(model: nn.Module, tokens: Tensor) -> tuple[Tensor, Tensor]:
    """Logits, and the gradient of all parameters."""
    model.zero_grad()
    output = model(input_ids=tokens, labels=tokens)
    output.loss.backward()
    gradients = [p.grad.flatten() for p in model.parameters() if p.grad is not None]
    return output.logits.detach(), torch.cat(gradients)


def timed(model: nn.Module, tokens: Tensor) -> tuple[float, Tensor, Tensor, Tensor]:
    """Seconds of the faster of two training steps, logits, gradient, and generated tokens."""
    seconds, results = list[float](), (tokens, tokens)
    for _ in range(2):
        start = time.perf_counter()
        results = train(model, tokens)
        seconds.append(time.perf_counter() - start)
    generate: Any = model.generate
    with torch.no_grad():
        text = generate(tokens[:1, :50], max_new_tokens=10, do_sample=False)
    return min(seconds), *results, text


def compare(model: nn.Module, tokens: Tensor) -> dict[str, Any]:
    """The row of a model."""
    before = timed(uninstall(model), tokens)
    try:
        after = timed(install(model), tokens)
    finally:
        uninstall(model)
    errors = [
        float((got - want).norm() / want.norm())
        for got, want in ((after[1], before[1]), (after[2], before[2]))
    ]
    times = {"torch": before[0], "elman": after[0]}
    same = torch.equal(after[3], before[3])
    return {"logits": errors[0], "gradient": errors[1], "same text": same, "seconds": times}


def main(arguments: Sequence[str] | None = None) -> None:
    """Compare all models, and print a line of each."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", default="", help="models whose type begins so")
    parser.add_argument("--out", type=Path, help="rows, a line each")
    parser.add_argument("--steps", type=int, default=300, help="tokens of a sequence")
    options = parser.parse_args(arguments)
    try:
        version = metadata.version("transformers")
    except metadata.PackageNotFoundError:
        print("transformers is not installed: pip install transformers")
        return
    sys.modules.setdefault("fla", None)  # type: ignore[arg-type]  # what runs without kernels
    transformers: Any = import_module("transformers")
    wrong = list[str]()
    for name, sizes in MODELS.items():
        if not name.startswith(options.only):
            continue
        config = transformers.CONFIG_MAPPING[name](**_USUAL, **sizes)
        torch.manual_seed(0)
        model = transformers.AutoModelForCausalLM.from_config(
            config, experts_implementation="eager"
        ).eval()
        tokens = torch.randint(1, _USUAL["vocab_size"], (2, options.steps))
        row = {"case": name, "version": version, **compare(model, tokens), **code()}
        if row["logits"] > TOLERANCE or not row["same text"]:
            wrong.append(name)
        if options.out:
            append_row(options.out, row | {"machine": facts()})
        print(json.dumps({key: value for key, value in row.items() if key != "code"}), flush=True)
    if wrong:
        sys.exit(f"different: {', '.join(wrong)}")


if __name__ == "__main__":
    main()

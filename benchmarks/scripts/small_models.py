"""Models of the recurrent types of transformers, with random weights: small ones of every type, and
some of the proportions of published ones."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import torch
from torch import nn

VOCABULARY = 500
TYPES: dict[str, dict[str, Any]] = {  # by model type: what differs from what all have
    "mamba": {},
    "falcon_mamba": {},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1, "num_experts": 1},
    "zamba": {
        "num_hidden_layers": 4,
        "layers_block_type": ["mamba", "hybrid"] * 2,
        "n_mamba_heads": 2,
    },
    "mamba2": {"expand": 2},
    "nemotron_h": {},
    "bamba": {"attn_layer_indices": [1], "num_hidden_layers": 2},
    "falcon_h1": {"num_hidden_layers": 2},
    "granitemoehybrid": {
        "num_hidden_layers": 2,
        "layer_types": ["mamba", "attention"],
        "num_local_experts": 0,
    },
    "zamba2": {
        "num_hidden_layers": 3,
        "layers_block_type": ["mamba", "mamba", "hybrid"],
    },
    "qwen3_5_text": {},
    "qwen3_5_moe_text": {},
    "qwen3_next": {},
    "qwen4_exp_text": {
        "ngram_vocab_size_base": 1000,
        "split_ngram_parts": 1,
        "indexer_n_heads": 2,
        "indexer_kv_heads": 1,
        "indexer_head_dim": 64,
        "indexer_budget": 64,
        "indexer_compress_ratio": 4,
    },
    "olmo_hybrid": {},
    "lara_mini": {},
    "kimi_linear": {},
    "bailing_hybrid": {},
    "minimax": {},
    "recurrent_gemma": {"block_types": ("recurrent", "attention")},
    "rwkv": {},
    "xlstm": {},
    "lfm2": {"layer_types": ["conv", "full_attention"], "num_hidden_layers": 2},
    "lfm2_moe": {
        "layer_types": ["conv", "full_attention"],
        "num_hidden_layers": 2,
        "num_dense_layers": 1,
    },
    "lfm3": {},
    "inkling_text": {},
    "inkling2_text": {},
    "inkling2_loop_text": {},
    "zaya": {},
}
_MAMBA2 = {"state_size": 128, "head_dim": 64, "num_heads": 24, "n_groups": 1, "expand": 2}
_FALCON = {"mamba_d_ssm": 1536, "mamba_n_heads": 24, "mamba_d_head": 64, "mamba_d_state": 128}
_GRANITE = {"mamba_n_heads": 48, "mamba_d_head": 32, "mamba_d_state": 128, "num_local_experts": 0}
PUBLISHED: dict[str, tuple[str, dict[str, Any]]] = {  # type and sizes, by the name of a model
    "Qwen3.5-0.8B": (
        "qwen3_5_text",
        {"hidden_size": 1024, "intermediate_size": 3584, "num_hidden_layers": 24}
        | {"num_attention_heads": 8, "num_key_value_heads": 2, "linear_num_value_heads": 16}
        | {"tie_word_embeddings": True},
    ),
    "Falcon-H1-0.5B": (
        "falcon_h1",
        {"hidden_size": 1024, "intermediate_size": 2048, "num_hidden_layers": 36}
        | {"num_attention_heads": 8, "num_key_value_heads": 2, "vocab_size": 32784, **_FALCON},
    ),
    "Granite-4.0-H-350M": (
        "granitemoehybrid",
        {"hidden_size": 768, "shared_intermediate_size": 2048, "num_hidden_layers": 32}
        | {"layer_types": (["mamba"] * 7 + ["attention"]) * 4, "num_attention_heads": 12}
        | {"num_key_value_heads": 4, "vocab_size": 100352, "tie_word_embeddings": True, **_GRANITE},
    ),
    "LFM2-350M": (
        "lfm2",
        {"hidden_size": 1024, "intermediate_size": 6656, "num_hidden_layers": 16}
        | {"full_attn_idxs": [2, 5, 8, 10, 12, 14], "num_attention_heads": 16},
    ),
    "Mamba2-130m": (
        "mamba2",
        {"hidden_size": 768, "num_hidden_layers": 24, "vocab_size": 50288, **_MAMBA2}
        | {"tie_word_embeddings": True},
    ),
    "Mamba-130m": ("mamba", {"num_hidden_layers": 24}),
    "RWKV-4-169m": (
        "rwkv",
        {"hidden_size": 768, "attention_hidden_size": 768, "intermediate_size": 3072}
        | {"num_hidden_layers": 12},
    ),
}


def common(hidden: int) -> dict[str, Any]:
    """Sizes of all types, of which a configuration takes those that it has."""
    heads = max(hidden // 64, 2)
    inner = 2 * hidden // 64  # heads of Mamba-2
    sizes = {
        "vocab_size": VOCABULARY,
        "unpadded_vocab_size": VOCABULARY,
        "hidden_size": hidden,
        "num_hidden_layers": 4,
        "intermediate_size": 2 * hidden,
        "moe_intermediate_size": hidden // 2,
        "shared_expert_intermediate_size": hidden // 2,
        "shared_intermediate_size": hidden,
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "num_heads": inner,
        "head_dim": 64,
        "state_size": 64,
        "n_groups": 1,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    sizes |= {f"linear_num_{name}_heads": heads // 2 for name in ("key", "value")}
    sizes |= {"linear_key_head_dim": 64, "linear_value_head_dim": 64, "linear_head_dim": 64}
    sizes |= {"linear_num_heads": heads, "lru_width": hidden}
    sizes |= {
        "mamba_n_heads": inner,
        "mamba_d_head": 64,
        "mamba_d_state": 64,
        "mamba_d_ssm": 2 * hidden,
    }
    sizes |= {"mamba_num_heads": inner, "mamba_head_dim": 64, "ssm_state_size": 64}
    sizes |= {"n_mamba_heads": inner, "mamba_headdim": 64, "mamba_ngroups": 1, "mamba_n_groups": 1}
    sizes |= {"num_experts": 2, "num_experts_per_tok": 1, "num_local_experts": 2}
    sizes |= {"n_routed_experts": 2, "n_group": 1, "topk_group": 1, "n_shared_experts": 1}
    return sizes


def make(name: str, hidden: int = 128, **more: Any) -> nn.Module:
    """A model of a type, in eval mode, its weights drawn from seed 0."""
    transformers: Any = import_module("transformers")
    kind = transformers.CONFIG_MAPPING[name]
    default = kind()
    sizes = {key: value for key, value in common(hidden).items() if hasattr(default, key)}
    types = getattr(default, "layer_types", None)
    is_field = not isinstance(getattr(kind, "layer_types", None), property)
    is_field &= "layer_types" not in kind.attribute_map
    if types and is_field and not {"layer_types", "layers_block_type"} & {*TYPES[name]}:
        sizes["layer_types"] = [*dict.fromkeys(types)]
        sizes["num_hidden_layers"] = len(sizes["layer_types"])
    return _model(kind(**{**sizes, **TYPES[name], **more}))


def make_published(name: str) -> nn.Module:
    """A model of the proportions of a published one, as :func:`make`."""
    transformers: Any = import_module("transformers")
    kind, sizes = PUBLISHED[name]
    return _model(transformers.CONFIG_MAPPING[kind](**sizes))


def _model(config: Any) -> nn.Module:
    transformers: Any = import_module("transformers")
    torch.manual_seed(0)
    model: nn.Module = transformers.AutoModelForCausalLM.from_config(
        config, experts_implementation="eager"
    )
    return model.eval()

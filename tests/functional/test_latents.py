"""Attention whose cache has latents: a module of one layer stands in for those of transformers."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from elman.functional import install, report, uninstall
from elman.functional.stand_ins import replaced, uninstall_modules

CODE = """
import torch
from torch import nn

def sdpa(layer, query, key, value, attention_mask, dropout=0.0, scaling=None, position_bias=None):
    layer.seen.append(key.shape)
    causal = query.shape[2] > 1 and attention_mask is None
    mask = attention_mask if position_bias is None else position_bias
    out = nn.functional.scaled_dot_product_attention(
        query, key, value, mask, is_causal=causal, scale=scaling
    )
    return out.transpose(1, 2).contiguous(), None

class Table(dict):
    def get_interface(self, name, default):
        return self.get(name, default)

ALL_ATTENTION_FUNCTIONS = Table(sdpa=sdpa)

class LatentAttention(nn.Module):
    def __init__(self, config, heads, rank, nope, rotary, values):
        super().__init__()
        self.config, self.num_heads, self.kv_lora_rank, self.seen = config, heads, rank, []
        self.qk_nope_head_dim, self.qk_rope_head_dim, self.v_head_dim = nope, rotary, values
        self.kv_b_proj = nn.Linear(rank, heads * (nope + values), bias=False)

    def expand_kv(self, kv_nope, k_rot):
        both = self.kv_b_proj(kv_nope[:, 0]).view(*kv_nope[:, 0].shape[:2], self.num_heads, -1)
        keys, values = both.transpose(1, 2).split((self.qk_nope_head_dim, self.v_head_dim), -1)
        return torch.cat((keys, k_rot.expand(-1, self.num_heads, -1, -1)), -1), values

    def forward(self, query, latents, rotary, mask=None, **options):
        keys, values = self.expand_kv(latents, rotary)
        name = self.config._attn_implementation
        attend = ALL_ATTENTION_FUNCTIONS.get_interface(name, sdpa)
        return attend(self, query, keys, values, mask, **options)

class Indexed(LatentAttention):
    def expand_kv(self, kv_nope, k_rot):
        return LatentAttention.expand_kv(self, kv_nope, k_rot)

    def forward(self, query, latents, rotary):
        keys, values = self.expand_kv(latents, rotary)
        return self.indexer(keys, values)
"""


@pytest.fixture(scope="module")
def package():
    module = ModuleType("transformers.models.latents")
    sys.modules[module.__name__] = module
    exec(CODE, vars(module))
    yield module
    del sys.modules[module.__name__]


def layer_of(module: Any, *sizes: int, kind: str = "LatentAttention") -> Any:
    config = SimpleNamespace(_attn_implementation="sdpa")
    return getattr(module, kind)(config, *sizes).eval()


def draw(layer: Any, batch: int, steps: int, tokens: int) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, latents and the keys' rotary parts, the latter views as of a cache."""
    width = layer.qk_nope_head_dim + layer.qk_rope_head_dim
    query = torch.randn(batch, steps, layer.num_heads, width).transpose(1, 2)
    latents = torch.randn(batch, 1, tokens + 1, layer.kv_lora_rank)[:, :, :tokens]
    return query, latents, torch.randn(batch, 1, tokens, layer.qk_rope_head_dim)


def mask_of(kind: str, batch: int, steps: int, tokens: int) -> Tensor | None:
    """None, or which tokens each query sees: those before it but for some of padding."""
    if kind == "none":
        return None
    ends = torch.arange(tokens - steps, tokens)[:, None]
    sees = (torch.arange(tokens) <= ends).expand(batch, 1, steps, tokens).clone()
    sees[0, :, :, : (tokens - steps) // 2] = False
    if kind == "bool":
        return sees
    return torch.zeros(sees.shape).masked_fill(~sees, torch.finfo(torch.float32).min)


@given(
    batch=st.integers(1, 3),
    steps=st.integers(1, 4),
    before=st.integers(0, 9),
    heads=st.integers(1, 3),
    sizes=st.tuples(*[st.integers(1, 9)] * 4),
    mask=st.sampled_from(("none", "bool", "float")),
    options=st.sampled_from(({}, {"scaling": 0.3, "dropout": 0.0})),
)
def test_the_same_outputs(package, batch, steps, before, heads, sizes, mask, options) -> None:
    """With few queries, and without keys and values then; and with many."""
    torch.manual_seed(0)
    layer = layer_of(package, heads, *sizes)
    given = (
        *draw(layer, batch, steps, before + steps),
        mask_of(mask, batch, steps, before + steps),
    )
    with torch.no_grad():
        want = layer(*given, **options)[0]
        layer.seen.clear()
        install(layer)
        got, weights = layer(*given, **options)
        uninstall(layer)
    assert weights is None
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
    rank, nope, rotary, values = sizes
    fewer = steps * (2 * rank + rotary) < rank * (nope + values)
    assert bool(layer.seen) is not (heads > 1 and fewer and (steps == 1 or mask != "none"))


def test_calls_that_form_keys_and_values(package) -> None:
    """Gradients, autocast, another attention, dropout, a bias of positions, other weights."""
    layer = layer_of(package, 2, 8, 4, 4, 4)
    assert install(layer) == {"": "LatentAttention, on elman: latent attention"}
    given = draw(layer, 1, 1, 5)

    def forms(**options: Any) -> bool:
        layer.seen.clear()
        layer(*given, **options)
        return bool(layer.seen)

    with torch.no_grad():
        assert not forms()
        assert forms(dropout=0.1)
        assert forms(position_bias=torch.zeros(1, 1, 1, 5))
        with torch.autocast("cpu", torch.bfloat16):
            assert forms()
        layer.config._attn_implementation = "eager"
        assert forms()
        layer.config._attn_implementation = "sdpa"
        layer.kv_b_proj = nn.Sequential(layer.kv_b_proj)
        assert forms()
        layer.kv_b_proj = layer.kv_b_proj[0]
        assert not forms()
    assert forms()
    uninstall(layer)
    with torch.no_grad():
        assert forms()
    assert replaced() == []


def test_layers_that_read_keys_elsewhere(package) -> None:
    """They are not replaced; nor is anything behind, if a process puts all back."""
    layer = layer_of(package, 2, 8, 4, 4, 4, kind="Indexed")
    with pytest.warns(UserWarning, match="replaced nothing"):
        install(layer)
    other = layer_of(package, 2, 8, 4, 4, 4)
    install(other)
    assert replaced() == ["ALL_ATTENTION_FUNCTIONS", "expand_kv"]
    uninstall_modules()
    assert replaced() == []
    assert report(other) == {"": "LatentAttention, not replaced: elman.functional.install(model)"}

"""Attention whose cache has latents, without keys and values of the tokens before.

Multi-head latent attention keeps c [n, rank] and, for rotary parts, r [n, rotary] of the text so
far, and forms keys [c Wk', r] and values c Wv' of all of it for each new token. A query meets them
as well by (q Wk) c' + q_r r', and the outputs are (p c) Wv', which forms none (DeepSeek-AI 2024,
arXiv:2405.04434, section 2.1.2).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch import Tensor, nn

from elman.functional.linear_layers import FewRowsLinear

EXPAND = "expand_kv"  # makes keys and values of latents
_SIZES = ("num_heads", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")


def keeps_latents(kind: type) -> bool:
    """Return whether a class of transformers makes keys and values of latents, for nothing but an
    attention function."""
    forward = inspect.unwrap(vars(kind).get("forward", keeps_latents))
    used = forward.__code__.co_names
    return EXPAND in vars(kind) and EXPAND in used and "indexer" not in used


def expand_later(expand: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a layer's ``expand_kv``: where latents may be enough it leaves them to the attention
    function of :func:`attend_to_latents`."""

    @wraps(expand)
    def call(layer: Any, latents: Tensor, rotary: Tensor) -> tuple[Tensor, Tensor]:
        if _may_stay(layer, latents, rotary):
            return latents, rotary
        return expand(layer, latents, rotary)

    return call


def _may_stay(layer: Any, latents: Tensor, rotary: Tensor) -> bool:
    """Return whether an attention function may be given latents, which it knows by their sizes."""
    product: Any = getattr(layer, "kv_b_proj", None)
    return (
        not torch.is_grad_enabled()
        and not torch.compiler.is_compiling()
        and not torch.is_autocast_enabled("cpu")
        and all(isinstance(getattr(layer, name, None), int) for name in _SIZES)
        and layer.num_heads > 1
        and type(product) in (nn.Linear, FewRowsLinear)
        and product.bias is None
        and product.weight.dtype is latents.dtype is rotary.dtype
        and latents.device.type == product.weight.device.type == "cpu"
        and layer.config._attn_implementation == "sdpa"
        and latents.dim() == rotary.dim() == 4
        and _are_latents(layer, latents, rotary)
    )


def _are_latents(layer: Any, key: Tensor, value: Tensor) -> bool:
    """Return whether keys and values are latents, by their sizes."""
    sizes = layer.kv_lora_rank, layer.qk_rope_head_dim
    return key.shape[1] == value.shape[1] == 1 and (key.shape[3], value.shape[3]) == sizes


def attend_to_latents(attend: Callable[..., Any]) -> Callable[..., tuple[Tensor, Any]]:
    """Wrap an attention function for layers with :func:`expand_later`."""

    @wraps(attend)
    def call(
        layer: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Any,
        *given: Any,
        **options: Any,
    ) -> tuple[Tensor, Any]:
        if not hasattr(layer, "kv_lora_rank") or not _are_latents(layer, key, value):
            return attend(layer, query, key, value, mask, *given, **options)
        is_plain = not given and not options.get("dropout") and options.get("position_bias") is None
        if is_plain and _is_shorter(layer, query, mask):
            return _attention(layer, query, key[:, 0], value[:, 0], mask, options), None
        key, value = inspect.unwrap(getattr(type(layer), EXPAND))(layer, key, value)
        return attend(layer, query, key, value, mask, *given, **options)

    return call


def _is_shorter(layer: Any, query: Tensor, mask: Any) -> bool:
    """Return whether queries are so few that expanding the latents takes longer, and whether a mask
    says what they see, unless there is one query, which sees all."""
    rank, outputs = layer.kv_lora_rank, layer.qk_nope_head_dim + layer.v_head_dim
    steps = query.shape[2]
    fewer = steps * (2 * rank + layer.qk_rope_head_dim) < rank * outputs
    return fewer and (steps == 1 or isinstance(mask, Tensor))


def _attention(
    layer: Any, query: Tensor, latents: Tensor, rotary: Tensor, mask: Any, options: dict[str, Any]
) -> Tensor:
    """Outputs [B, steps, heads, values] of queries [B, heads, steps, nope + rotary]."""
    B, heads, steps, _ = query.shape
    rank, nope = layer.kv_lora_rank, layer.qk_nope_head_dim
    weight = layer.kv_b_proj.weight.view(heads, -1, rank)
    wide = query[..., :nope].transpose(0, 1).reshape(heads, B * steps, nope) @ weight[:, :nope]
    wide = wide.view(heads, B, steps, rank).transpose(0, 1).reshape(B, heads * steps, rank)
    scores = wide @ latents.mT
    scores = scores.baddbmm_(query[..., nope:].reshape(B, heads * steps, -1), rotary.mT)
    scale = options.get("scaling")
    scores = scores.view(B, heads, steps, -1) * (
        query.shape[-1] ** -0.5 if scale is None else scale
    )
    if isinstance(mask, Tensor) and mask.dtype is torch.bool:
        scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
    elif isinstance(mask, Tensor):
        scores = scores + mask
    shares = torch.softmax(scores, -1, dtype=torch.float32).to(query.dtype)
    mixed = (shares.view(B, heads * steps, -1) @ latents).view(B, heads, steps, rank)
    mixed = mixed.transpose(0, 1).reshape(heads, B * steps, rank) @ weight[:, nope:].mT
    return mixed.view(heads, B, steps, -1).permute(1, 2, 0, 3)

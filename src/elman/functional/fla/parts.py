"""What lies around the recurrences of flash-linear-attention, in torch's operations: convolutions,
shifts, rotations, norms, activations and losses, in float32 at least. Arguments are those of its
functions, with all that have a default."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812  # torch's own habit
from torch.nn.utils.rnn import pad_sequence

from elman.errors import InputError
from elman.functional import convolutions
from elman.functional.running import check_options, promoted
from elman.functional.state_spaces import mamba2_scan


def causal_conv1d(
    x: Tensor, weight: Tensor, bias: Any, residual: Any, initial_state: Any,
    output_final_state: Any, activation: Any, cu_seqlens: Any, backend: Any, **options: Any,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """x [B, T, channels], states [N, channels, W] of the last W inputs; ``backend`` is of the
    kernels."""
    rows, (channels, W) = x.flatten(2), weight.shape
    packed = cu_seqlens is not None
    lengths = cu_seqlens.diff().tolist() if packed else [rows.shape[1]] * len(rows)
    if packed:
        rows = pad_sequence([*rows[0].split(lengths)], batch_first=True)
    rows = rows.mT
    before = rows.new_zeros(len(rows), channels, W) if initial_state is None else initial_state
    starts = None if initial_state is None else before[..., 1:]
    given = {"initial_states": starts, "activation": activation, **options}
    out = convolutions.causal_conv1d(rows, weight, bias, **given).mT  # type: ignore[union-attr]
    if packed:
        out = torch.cat([y[:n] for y, n in zip(out, lengths, strict=True)])
    out = out.reshape(x.shape) if residual is None else out.reshape(x.shape) + residual
    if not output_final_state:
        return out, None
    window = torch.cat((before, rows), -1)
    return out, torch.stack([y[:, n : n + W] for y, n in zip(window, lengths, strict=True)])


def causal_conv1d_update(
    x: Tensor, cache: Tensor, residual: Any, weight: Tensor, bias: Any, activation: Any
) -> tuple[Tensor, Tensor]:
    """One step of x, [N, channels] in any dims; cache [N, channels, W] is written."""
    rows = x.reshape(-1, cache.shape[1])
    out = convolutions.causal_conv1d_update(rows, cache, weight, bias, activation).view(x.shape)
    return out if residual is None else out + residual, cache


def token_shift(
    x: Tensor, cu_seqlens: Any, cache: Any, output_cache: Any, **options: Any
) -> Tensor | tuple[Tensor, Tensor]:
    """Differences to the inputs of the step before; cache [N, channels] has the last of each
    sequence."""
    check_options(options)
    B, T, channels = x.shape
    bounds = torch.arange(B + 1, device=x.device) * T if cu_seqlens is None else cu_seqlens.long()
    kept = bounds[1:] > bounds[:-1]
    begin, end = bounds[:-1][kept], bounds[1:][kept] - 1
    before = x.new_zeros(len(kept), channels) if cache is None else cache.reshape(-1, channels)
    steps = x.flatten(0, 1)
    past = steps.roll(1, 0).index_copy(0, begin, before[kept])
    delta = (past - steps).view(x.shape)
    last = before.index_copy(0, kept.nonzero().flatten(), steps[end])
    return (delta, last) if output_cache else delta


def rotary_embedding(
    x: Tensor, cos: Tensor, sin: Tensor, interleaved: Any, inplace: Any, seqlen_offsets: Any,
    cu_seqlens: Any, **options: Any,
) -> Tensor:  # fmt: skip
    """Rotations by position (Su et al. 2021, arXiv:2104.09864) of x [B, T, heads, D]; cos and sin
    are [positions, R], of R pairs. What lies before position 0 is 0."""
    check_options(options)
    offsets = seqlen_offsets
    if cu_seqlens is not None:
        offsets = (offsets - cu_seqlens[:-1]).repeat_interleave(cu_seqlens.diff())
    elif isinstance(offsets, Tensor):
        offsets = offsets[:, None]
    places = torch.arange(x.shape[1], device=x.device) + offsets
    if places.numel() and places.max() >= len(cos):
        raise InputError(f"position {int(places.max())} is beyond the {len(cos)} of cos and sin")
    R = cos.shape[-1]
    pairs, cos, sin = promoted(x[..., : 2 * R], cos, sin)
    cos, sin = (table[places.clamp(min=0)].unsqueeze(-2) for table in (cos, sin))
    first, second = (pairs[..., ::2], pairs[..., 1::2]) if interleaved else pairs.chunk(2, -1)
    both = first * cos - second * sin, first * sin + second * cos
    out = torch.stack(both, -1).flatten(-2) if interleaved else torch.cat(both, -1)
    out = torch.where((places >= 0)[..., None, None], out, 0.0)
    out = torch.cat((out.to(x.dtype), x[..., 2 * R :]), -1)
    return x.copy_(out) if inplace else out


# ---- norms


def _norm(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, rms: bool, groups: int = 1
) -> Tensor:
    part = x.unflatten(-1, (groups, -1))
    size = part.shape[-1:]
    out = F.rms_norm(part, size, eps=eps) if rms else F.layer_norm(part, size, eps=eps)
    out = out.flatten(-2) if weight is None else out.flatten(-2) * weight
    return out if bias is None else out + bias


def layer_norm(
    x: Tensor, weight: Any, bias: Any, residual: Any, eps: float, prenorm: Any,
    residual_in_fp32: Any, is_rms_norm: Any = False, num_groups: int = 1,
    g: Tensor | None = None, activation: str = "",
) -> Any:  # fmt: skip
    """Norm of a sum, and a gate g; with ``prenorm`` a pair with the sum."""
    (total,) = promoted(x if residual is None else promoted(x)[0] + residual)
    out = _norm(total, weight, bias, eps, is_rms_norm, num_groups)
    if g is not None:
        (g,) = promoted(g)
        gates = {"swish": F.silu, "silu": F.silu, "sigmoid": torch.sigmoid}
        if activation not in gates:
            raise InputError(f"activation must be one of {[*gates]}, got {activation!r:.40}")
        out = out * gates[activation](g)
    passed = residual if residual is not None else total if residual_in_fp32 else x
    return (out.to(x.dtype), total.to(passed.dtype)) if prenorm else out.to(x.dtype)


def layer_norm_linear(
    norm_weight: Any, norm_bias: Any, linear_weight: Tensor, linear_bias: Any, prenorm: Any,
    **given: Any,
) -> Any:  # fmt: skip
    """:func:`layer_norm` and a projection."""
    out, total = layer_norm(weight=norm_weight, bias=norm_bias, prenorm=True, **given)
    out = F.linear(out.to(linear_weight.dtype), linear_weight, linear_bias)
    return (out, total) if prenorm else out


def gated_norm(
    x: Tensor, weight: Tensor, bias: Any, z: Tensor | None, eps: float, group_size: Any,
    norm_before_gate: Any, is_rms_norm: Any,
) -> Tensor:  # fmt: skip
    """Norm of groups of channels, and a gate before or behind it, as in Mamba-2."""
    out, gate = promoted(x, z)
    groups = 1 if group_size is None else x.shape[-1] // group_size
    if gate is not None and not norm_before_gate:
        out = out * F.silu(gate)
    out = _norm(out, weight, bias, eps, is_rms_norm, groups)
    return (out * F.silu(gate) if gate is not None and norm_before_gate else out).to(x.dtype)


def l2norm(x: Tensor, eps: float, output_dtype: torch.dtype | None) -> Tensor:
    """x / √(Σ x² + eps) of the last axis."""
    (single,) = promoted(x)
    out = single * torch.rsqrt(single.square().sum(-1, keepdim=True) + eps)
    return out.to(output_dtype or x.dtype)


# ---- activations, and sums of RWKV-7


def swiglu(x: Tensor, y: Tensor) -> Tensor:
    """silu(x) y (Shazeer 2020, arXiv:2002.05202)."""
    return F.silu(x) * y


def mix_rwkv7(hidden_states: Tensor, delta: Tensor, **shares: Any) -> list[Any]:
    """An input mixed with the one before in up to six ways."""
    given = [shares.get(f"x{name}") for name in "rwkvag"]
    return [None if share is None else hidden_states.addcmul(delta, share) for share in given]


def key_rwkv7(k: Tensor, a: Tensor, ka: Tensor, **options: Any) -> Tensor:
    """The replacement keys of RWKV-7, whatever sequences they are of."""
    return k.addcmul(k * (a - 1), ka)


def gate_rwkv7(o: Tensor, r: Tensor, k: Tensor, r_k: Tensor, v: Tensor, g: Tensor) -> Tensor:
    """The bonus of the present value, and the gate, of RWKV-7."""
    return (o + ((r * k * r_k).sum(-1, keepdim=True) * v).view(o.shape)) * g


# ---- losses


def cross_entropy_loss(
    logits: Tensor, target: Tensor, label_smoothing: float, logit_scale: float, ignore_index: int,
    logit_softcapping: float | None = None, lse_square_scale: float = 0.0,
    inplace_backward: Any = False, **options: Any,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Losses of each row of logits [N, V], and the part of them that keeps logits small;
    ``inplace_backward`` spares memory only."""
    check_options(options)
    z = promoted(logits)[0] * logit_scale
    z = z if logit_softcapping is None else logit_softcapping * torch.tanh(z / logit_softcapping)
    loss = F.cross_entropy(
        z, target, None, None, ignore_index, reduction="none", label_smoothing=label_smoothing
    )
    if not lse_square_scale:
        return loss, torch.zeros_like(loss)
    squares = lse_square_scale * z.logsumexp(-1).square() * (target != ignore_index)
    return loss + squares, squares.detach()


def linear_cross_entropy_loss(
    x: Tensor, target: Tensor, weight: Tensor, bias: Any, ignore_index: int, reduction: str,
    num_chunks: Any, l2_penalty_factor: Any, accumulate_grad_in_fp32: Any, **options: Any,
) -> Tensor:  # fmt: skip
    """The loss of a projection of x [N, channels]; ``l2_penalty_factor`` is of ``use_l2warp``,
    which is refused, others spare memory only."""
    logits = F.linear(x, weight, bias)
    loss, _ = cross_entropy_loss(logits, target, ignore_index=ignore_index, **options)
    return loss.sum() / ((target != ignore_index).sum() if reduction == "mean" else 1)


def forward_of_loss(module: Any, input: Tensor, target: Tensor) -> Any:
    """``FusedCrossEntropyLoss.forward``, which takes tensors of GPUs alone."""
    names = ("label_smoothing", "logit_scale", "lse_square_scale", "logit_softcapping")
    given = {name: getattr(module, name) for name in (*names, "ignore_index", "process_group")}
    both = cross_entropy_loss(input, target, **given)
    if module.reduction != "none":
        count = (target != module.ignore_index).sum() if module.reduction == "mean" else 1
        both = both[0].sum() / count, both[1].sum() / count
    return both if module.return_z_loss else both[0]


# ---- Mamba-2


def forward_of_mamba2(
    layer: Any, input_states: Tensor, last_state: Any = None, use_cache: Any = False,
    attention_mask: Any = None,
) -> tuple[Tensor, Any, Tensor]:  # fmt: skip
    """``Mamba2.torch_forward``, which fla runs on a CPU, by :func:`mamba2_scan`."""
    inner, N, heads = layer.intermediate_size, layer.ssm_state_size, layer.num_heads
    gate, rows, dt = layer.in_proj(input_states).split([inner, layer.conv_dim, heads], -1)
    mask: Any = 1
    if last_state is None and attention_mask is not None and attention_mask.shape == dt.shape[:2]:
        mask = attention_mask[:, :, None].to(rows.dtype)
    past, state = (last_state or {}).get("conv_state"), (last_state or {}).get("recurrent_state")
    keeps = use_cache or last_state is not None
    taps, bias = layer.conv1d.weight.squeeze(1), layer.conv1d.bias
    rows, past = causal_conv1d(rows * mask, taps, bias, None, past, keeps, None, None, None)
    x, B, C = promoted(*(layer.act(rows) * mask).split([inner, *[layer.n_groups * N] * 2], -1))
    x, A = x.unflatten(-1, (heads, -1)), -promoted(layer.A_log)[0].exp()
    B, C = (each.unflatten(-1, (-1, N)) for each in (B, C))
    y, state = mamba2_scan(
        *(x, dt, A, B, C), dt_bias=layer.dt_bias, initial_states=state, dt_softplus=True,
        dt_limit=layer.dt_limit, return_final_states=True,
    )  # fmt: skip
    y = (y + layer._get_D(expand_to_head_dim=True) * x).flatten(2)
    y = layer.norm(y, gate) if layer.rmsnorm else y * layer.act(gate)
    return layer.out_proj(y.to(input_states.dtype)), past, state


_gelu = partial(F.gelu, approximate="tanh")
_rms = partial(layer_norm, is_rms_norm=True)
FUNCTIONS: dict[str, Callable[..., Any]] = {  # by their names in fla
    "causal_conv1d": causal_conv1d,
    "causal_conv1d_update": causal_conv1d_update,
    "token_shift": token_shift,
    "rotary_embedding": rotary_embedding,
    "layer_norm": layer_norm,
    "group_norm": layer_norm,
    "rms_norm": _rms,
    "layer_norm_gated": layer_norm,
    "rms_norm_gated": _rms,
    "layer_norm_linear": layer_norm_linear,
    "layer_norm_swish_gate_linear": partial(layer_norm_linear, activation="swish"),
    "rms_norm_swish_gate_linear": partial(layer_norm_linear, activation="swish", is_rms_norm=True),
    "layernorm_fn": gated_norm,
    "rmsnorm_fn": partial(gated_norm, is_rms_norm=True),
    "l2norm": l2norm,
    "swish": F.silu,
    "sigmoid": torch.sigmoid,
    "logsigmoid": lambda x, temperature: F.logsigmoid(x) / temperature,
    "sqrelu": lambda x: F.relu(x).square(),
    "fast_gelu_impl": _gelu,
    "bias_gelu_impl": lambda y, bias: _gelu(y + bias),
    "swiglu": swiglu,
    "swiglu_linear": lambda x, y, weight, bias: F.linear(swiglu(x, y), weight, bias),
    "sigmoidglu": lambda x, y: x.sigmoid() * y,
    "fused_addcmul_rwkv7": mix_rwkv7,
    "fused_k_rwkv7": key_rwkv7,
    "gate_output_correction": gate_rwkv7,
    "cross_entropy_loss": cross_entropy_loss,
    "fused_linear_cross_entropy_loss": linear_cross_entropy_loss,
}
METHODS: dict[str, tuple[str, Callable[..., Any]]] = {  # by their classes
    "FusedCrossEntropyLoss": ("forward", forward_of_loss),
    "Mamba2": ("torch_forward", forward_of_mamba2),
}

"""Short causal convolutions, with the calls of causal_conv1d."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812  # torch's own habit

from elman.checks import check_flag, shown
from elman.engines.c.calls.noted import NOTED
from elman.engines.c.kernels.convolution_step import can_step, convolution_step
from elman.errors import InputError
from elman.frontend.cell import cell
from elman.functional.running import (
    check_dims,
    check_options,
    check_shapes,
    check_starts,
    promoted,
    run,
    runs,
)
from elman.nn.autograd.transforms import is_plain
from elman.ops import shift, silu, sum

_ACTIVATIONS = {None: False, "silu": True, "swish": True}


@runs
@cell(input="x[C]", static="w[C], past_w[M, C], bias[C]", state="past[M, C]", output="y[C]")
def short_convolution(
    x: Any, w: Any, past_w: Any, bias: Any, past: Any, *, gate: bool = True
) -> Any:
    """A causal convolution over few steps, each channel by itself, and silu; ``past`` has the last
    M inputs, the oldest first."""
    y = w * x + sum(past_w * past, axis=0) + bias
    return silu(y) if gate else y, shift(past, x)


def causal_conv1d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    seq_idx: Tensor | None = None,
    initial_states: Tensor | None = None,
    return_final_states: bool = False,
    activation: str | None = None,
    **options: Any,
) -> Tensor | tuple[Tensor, Tensor]:
    """A causal convolution of each channel by itself over few steps: out[t] = act(bias + Σ_k
    weight[k] x[t - K + 1 + k]), with the call of ``causal_conv1d_fn`` (causal-conv1d 1.5).

    Args:
        x [B, channels, T]: inputs.
        weight [channels, K]: of the last K steps, that of the present one last.
        bias [channels]: zeros if None.
        seq_idx [B, T]: numbers of the documents that lie behind one another: none sees a step of
            the one before it.
        initial_states [B, channels, K - 1]: inputs before the first one; zeros if None.
        return_final_states: whether the last K - 1 inputs are returned.
        activation: None, or ``"silu"`` (``"swish"``).
        options: of other implementations that change no result.

    Returns:
        out [B, channels, T] in the dtype of x; a pair with the last inputs [B, channels, K - 1] if
        asked for, in the common dtype of all arguments, float32 at least.

    Raises:
        ShapeError: shapes do not belong together.
        InputError: an argument is of another kind, an activation or an option is unknown.
    """
    check_options(options)
    returns = check_flag("return_final_states", return_final_states)
    gate = _check_activation(activation)
    check_dims(x=(x, 3), weight=(weight, 2))
    (B, channels, T), (_, K) = x.shape, weight.shape
    check_shapes({"weight": (weight, (channels, K)), "bias": (bias, (channels,))})
    check_shapes({"initial_states": (initial_states, (B, channels, K - 1))})
    starts = check_starts(seq_idx, (B, T))
    dtype = x.dtype
    x, weight, bias, before = promoted(x, weight, bias, initial_states)
    bias = weight.new_zeros(channels) if bias is None else bias
    before = x.new_zeros(B, channels, K - 1) if before is None else before
    if K == 1:
        out = x * weight + bias[:, None]
        out, last = F.silu(out) if gate else out, before
    else:
        static = [v[None] for v in (weight[:, -1], weight[:, :-1].mT, bias)]
        out, (last,) = run(
            short_convolution,
            {"gate": gate},
            (channels, channels),
            [x.mT[:, :, None]],
            static,
            [before.mT[:, None]],
            reset=starts,
            M=K - 1,
        )
        out, last = out[:, :, 0].mT, last[:, 0].mT
    return (out.to(dtype), last) if returns else out.to(dtype)


def causal_conv1d_update(
    x: Tensor,
    conv_state: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    activation: str | None = None,
    **options: Any,
) -> Tensor:
    """Further steps of :func:`causal_conv1d`, with the call of ``causal_conv1d_update``.

    Args:
        x [B, channels]: inputs of one step; of several [B, channels, T].
        conv_state [B, channels, L]: the last L >= K - 1 inputs, the latest last; those of this call
            are written into it.
        weight, bias, activation, options: see :func:`causal_conv1d`.

    Returns:
        out, of the shape and dtype of x.

    Raises:
        ShapeError, InputError: see :func:`causal_conv1d`.
    """
    check_options(options)
    gate = _check_activation(activation)
    check_dims(conv_state=(conv_state, 3), weight=(weight, 2))
    B, channels, L = conv_state.shape
    K = weight.shape[1]
    single = x.dim() == 2
    rows = x.unsqueeze(-1) if single else x
    check_dims(x=(rows, 3))
    least = max(L, K - 1)  # a state that is too short is refused
    check_shapes({"x": (rows, (B, channels, rows.shape[-1])), "bias": (bias, (channels,))})
    check_shapes(
        {"conv_state": (conv_state, (B, channels, least)), "weight": (weight, (channels, K))}
    )
    if _runs_in_c(rows, conv_state, weight, bias):
        out = convolution_step(rows[..., 0], conv_state, weight, bias, gate)
        return out if single else out.unsqueeze(-1)
    window = torch.cat((conv_state, rows), -1)
    conv_state.copy_(window[..., window.shape[-1] - L :])
    T, window = rows.shape[-1], window.to(weight.dtype)
    if T == 1:
        out = torch.linalg.vecdot(window[..., -K:], weight).unsqueeze(-1)
        out = out if bias is None else out + bias[:, None]
    else:
        window = window[..., -(T + K - 1) :]
        out = F.conv1d(window, weight.unsqueeze(1), bias, groups=channels)
    out = (F.silu(out) if gate else out).to(x.dtype)
    return out.squeeze(-1) if single else out


def _runs_in_c(rows: Tensor, state: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
    """Return whether a call has one step and no gradients, and no mode of torch sees it."""
    return (
        rows.shape[-1] == 1
        and weight.shape[1] <= state.shape[-1]
        and not torch.is_grad_enabled()
        and not torch.compiler.is_compiling()
        and (is_plain() or NOTED.get() is not None)
        and can_step(rows, state, weight, bias)
    )


def _check_activation(name: Any) -> bool:
    """Whether an activation is silu. Raises InputError: there is no such activation."""
    if name is None or (isinstance(name, str) and name in _ACTIVATIONS):
        return _ACTIVATIONS[name]
    raise InputError(f'activation must be None or "silu", got {shown(name)}')

"""The scans of Mamba and Mamba-2, with the calls of mamba_ssm."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812  # torch's own habit

from elman import cells
from elman.cells.mamba import scan_step
from elman.checks import check_flag, is_number, shown
from elman.errors import InputError, ShapeError
from elman.frontend.cell import cell
from elman.functional.running import (
    channel_blocks,
    check_dims,
    check_options,
    check_shapes,
    check_starts,
    check_tensors,
    promoted,
    repeat,
    run,
    runs,
)
from elman.ops import clip, softplus

_NO_LIMIT = (0.0, math.inf)


def _step_size(dt: Any, bias: Any, positive: bool) -> Any:
    return softplus(dt + bias) if positive else dt + bias


@runs
@cell(input="x[P], dt, B[N], C[N]", static="A, D, bias", state="S[P, N]", output="y[P]")
def biased_mamba2(
    x: Any, dt: Any, B: Any, C: Any, A: Any, D: Any, bias: Any, S: Any,
    *, positive: bool = False, low: float = 0.0, high: float = math.inf,
) -> Any:  # fmt: skip
    """Mamba-2 with the skip D x, and step sizes behind a bias, softplus and limits."""
    dt = _step_size(dt, bias, positive)
    if not positive or (low, high) != _NO_LIMIT:
        dt = clip(dt, low, high)
    y, S = cells.mamba2(x, dt, B, C, A, S)
    return y + D * x, S


@runs
@cell(
    input="x[H], dt[H], B[N], C[N]", static="A[H, N], D[H], bias[H]", state="S[H, N]", output="y[H]"
)
def biased_mamba(
    x: Any, dt: Any, B: Any, C: Any, A: Any, D: Any, bias: Any, S: Any, *, positive: bool = False
) -> Any:
    """Mamba with the skip D x, and step sizes behind a bias and softplus."""
    y, S = scan_step(x, _step_size(dt, bias, positive), B, C, S, -A)
    return y + D * x, S


def mamba2_scan(
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    chunk_size: int | None = None,
    D: Tensor | None = None,
    z: Tensor | None = None,
    dt_bias: Tensor | None = None,
    initial_states: Tensor | None = None,
    seq_idx: Tensor | None = None,
    dt_softplus: bool = False,
    dt_limit: tuple[float, float] = _NO_LIMIT,
    return_final_states: bool = False,
    cu_seqlens: Tensor | None = None,
    **options: Any,
) -> Tensor | tuple[Tensor, Tensor]:
    """The recurrence of Mamba-2 (Dao & Gu 2024, arXiv:2405.21060): :data:`elman.cells.mamba2`, with
    the call of ``mamba_chunk_scan_combined``.

    Args:
        x [B, T, heads, P]: inputs.
        dt [B, T, heads]: step sizes, before bias, softplus and limits.
        A [heads]: rates, negative.
        B [B, T, groups, N]: what inputs write, the same for the heads of a group.
        C [B, T, groups, N]: what is read.
        chunk_size, options: of other implementations, which change no result.
        D [heads]: factors of the skip D x; none if None.
        z [B, T, heads, P]: the outputs are multiplied by silu(z).
        dt_bias [heads]: added to step sizes.
        initial_states [B, heads, P, N]: zeros if None.
        dt_softplus: whether step sizes go through softplus.
        dt_limit: of step sizes then.
        return_final_states: whether the last states are returned.
        seq_idx [B, T]: numbers of the documents that lie behind one another: the state begins with
            zeros in each but the first.
        cu_seqlens: not available.

    Returns:
        out [B, T, heads, P] in the dtype of x; a pair with the last states [B, heads, P, N] if
        asked for, in the common dtype of what they depend on, float32 at least.

    Raises:
        ShapeError: shapes do not belong together.
        InputError: an argument is of another kind, or an option is unknown or not available.
    """
    check_options(options)
    if cu_seqlens is not None:
        raise InputError("mamba2_scan: cu_seqlens is not available", "seq_idx=")
    returns = check_flag("return_final_states", return_final_states)
    check_dims(x=(x, 4), A=(A, 1), B=(B, 4))
    lead, heads, P, N, groups = x.shape[:2], A.shape[0], x.shape[-1], B.shape[-1], B.shape[2]
    check_shapes(
        {"x": (x, (*lead, heads, P)), "dt": (dt, (*lead, heads)), "A": (A, (heads,))}
        | {"B": (B, (*lead, groups, N)), "C": (C, (*lead, groups, N)), "D": (D, (heads,))}
        | {"z": (z, x.shape), "dt_bias": (dt_bias, (heads,))}
        | {"initial_states": (initial_states, (len(x), heads, P, N))},
    )
    if groups != heads and (not groups or heads % groups):
        raise ShapeError(f"{heads} heads cannot be divided among {groups} groups of B and C")
    dtype = x.dtype
    x, dt, A, B, C, D, dt_bias, state = promoted(x, dt, A, B, C, D, dt_bias, initial_states)
    zeros = A.new_zeros(heads)
    low, high = _check_limit(dt_limit)
    cell_options = {"positive": check_flag("dt_softplus", dt_softplus), "low": low, "high": high}
    inputs = [x, dt, *(repeat(v, heads) for v in (B, C))]
    static = [A, zeros if D is None else D, zeros if dt_bias is None else dt_bias]
    states = None if state is None else [state]
    starts = check_starts(seq_idx, (len(x), x.shape[1]))
    out, (last,) = run(biased_mamba2, cell_options, (P, N), inputs, static, states, reset=starts)
    out = _gated(out, z).to(dtype)
    return (out, last) if returns else out


def selective_scan(
    u: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None = None,
    z: Tensor | None = None,
    delta_bias: Tensor | None = None,
    delta_softplus: bool = False,
    return_last_state: bool = False,
    **options: Any,
) -> Tensor | tuple[Tensor, Tensor]:
    """The recurrence of Mamba (Gu & Dao 2023, arXiv:2312.00752): :data:`elman.cells.mamba`, with
    the call of ``selective_scan_fn``.

    Args:
        u [B, channels, T]: inputs.
        delta [B, channels, T]: step sizes, before bias and softplus.
        A [channels, N]: rates, negative where states decay.
        B [B, N, T]: what inputs write, the same for all channels.
        C [B, N, T]: what is read.
        D [channels]: factors of the skip D u; none if None.
        delta_bias [channels]: added to step sizes.
        z [B, channels, T]: the outputs are multiplied by silu(z).
        delta_softplus: whether step sizes go through softplus.
        return_last_state: whether the last state is returned.
        options: of other implementations that change no result.

    Returns:
        out [B, channels, T] in the dtype of u; a pair with the last state [B, channels, N] if asked
        for, in the common dtype of what it depends on, float32 at least.

    Raises:
        ShapeError: shapes do not belong together.
        InputError: an argument is of another kind, or an option is unknown.
    """
    check_options(options)
    returns = check_flag("return_last_state", return_last_state)
    check_dims(u=(u, 3), A=(A, 2))
    channels, N, steps = u.shape[1], A.shape[-1], u.shape[-1]
    shape, each = (len(u), N, steps), (channels,)
    check_shapes(
        {"u": (u, (len(u), channels, steps)), "delta": (delta, u.shape), "A": (A, (*each, N))}
        | {"B": (B, shape), "C": (C, shape), "D": (D, each), "z": (z, u.shape)}
        | {"delta_bias": (delta_bias, each)},
    )
    heads, size = channel_blocks(channels)
    dtype = u.dtype
    u, delta, A, B, C, D, delta_bias = promoted(u, delta, A, B, C, D, delta_bias)
    zeros = A.new_zeros(channels)
    inputs = [v.mT.unflatten(-1, (heads, size)) for v in (u, delta)]
    inputs += [v.mT.unsqueeze(2).expand(-1, -1, heads, -1) for v in (B, C)]
    static = [A, zeros if D is None else D, zeros if delta_bias is None else delta_bias]
    static = [v.unflatten(0, (heads, size)) for v in static]
    cell_options = {"positive": check_flag("delta_softplus", delta_softplus)}
    out, (last,) = run(biased_mamba, cell_options, (size, N), inputs, static)
    out, last = out.flatten(2).mT, last.flatten(1, 2)
    out = _gated(out, z).to(dtype)
    return (out, last) if returns else out


def selective_state_update(
    state: Tensor,
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None = None,
    z: Tensor | None = None,
    dt_bias: Tensor | None = None,
    dt_softplus: bool = False,
    **options: Any,
) -> Tensor:
    """A further step of :func:`selective_scan` or :func:`mamba2_scan`, with the call of
    ``selective_state_update``.

    Args:
        state [B, .., N]: of channels, or of heads and their P units; that of the next step is
            written into it.
        x [B, ..]: inputs.
        dt [B, ..]: step sizes, before bias and softplus.
        A [.., N]: rates, negative where states decay.
        B [B, N]: what is written; of heads [B, groups, N].
        C [B, N]: what is read; of heads [B, groups, N].
        D [..]: factors of the skip D x; none if None.
        z [B, ..]: the output is multiplied by silu(z).
        dt_bias [..]: added to step sizes.
        dt_softplus: whether step sizes go through softplus.
        options: of other implementations that change no result.

    Returns:
        out, of the shape and dtype of x.

    Raises:
        ShapeError: shapes do not belong together.
        InputError: an argument is of another kind, or an option is unknown.
    """
    check_options(options)
    positive = check_flag("dt_softplus", dt_softplus)
    check_tensors(state=state)
    if state.dim() not in (3, 4):
        raise ShapeError(f"state must be of 3 or 4 dims, got {[*state.shape]}")
    (count, *each), N = state.shape[:-1], state.shape[-1]
    check_dims(B=(B, state.dim() - 1))
    groups = B.shape[1:-1]  # none, or their number
    check_shapes(
        {"x": (x, (count, *each)), "dt": (dt, (count, *each)), "A": (A, (*each, N))}
        | {"B": (B, (count, *groups, N)), "C": (C, (count, *groups, N)), "D": (D, (*each,))}
        | {"z": (z, (count, *each)), "dt_bias": (dt_bias, (*each,))},
    )
    heads, size = each if groups else channel_blocks(each[0])
    if groups and (not groups[0] or heads % groups[0]):
        raise ShapeError(f"{heads} heads cannot be divided among {groups[0]} groups of B and C")
    dtype, form = x.dtype, (heads, size)
    D = A.new_zeros(()).expand(each) if D is None else D
    dt_bias = A.new_zeros(()).expand(each) if dt_bias is None else dt_bias
    cell = biased_mamba
    if groups and all(map(_is_repeated, (A, dt, D, dt_bias), (2, 1, 1, 1))):
        A, dt, D, dt_bias = A[:, 0, 0], dt[..., 0], D[:, 0], dt_bias[:, 0]
        cell, form = biased_mamba2, (heads,)
    static = [v.reshape(*form, *v.shape[len(each) :]) for v in (A, D, dt_bias)]
    inputs = [x.reshape(count, 1, heads, size), dt.reshape(count, 1, *form)]
    inputs += [repeat(v.reshape(count, 1, -1, N), heads) for v in (B, C)]
    *inputs, begin = promoted(*inputs, state)
    static = promoted(*static, begin)[:-1]
    begin = begin.reshape(count, heads, size, N)
    out, (last,) = run(cell, {"positive": positive}, (size, N), inputs, static, [begin])
    state.copy_(last.view(state.shape))
    return _gated(out.reshape(x.shape), z).to(dtype)


def _is_repeated(value: Tensor, dims: int) -> bool:
    """Whether a tensor has the same value along its last dims."""
    lies = zip(value.stride()[-dims:], value.shape[-dims:], strict=True)
    return value.numel() > 0 and all(stride == 0 or size == 1 for stride, size in lies)


def _gated(out: Tensor, z: Tensor | None) -> Tensor:
    """out · silu(z), in the dtype that both have in common."""
    return out if z is None else out * F.silu(z.to(torch.promote_types(out.dtype, z.dtype)))


def _check_limit(limit: Any) -> tuple[float, float]:
    """Two numbers. Raises InputError: they are others, or the first is the larger."""
    pair = limit if isinstance(limit, tuple | list) else ()
    if len(pair) != 2 or not all(map(is_number, pair)) or not pair[0] <= pair[1]:
        text = f"dt_limit must be two numbers, the lower first, got {shown(limit)}"
        raise InputError(text, "dt_limit=(0.0, float('inf'))")
    return float(pair[0]), float(pair[1])

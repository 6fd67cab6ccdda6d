"""The scans of Mamba and Mamba-2, with the calls of mamba_ssm."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor
from torch.nn import functional as F  # noqa: N812  # torch's own habit

from elman import cells
from elman.cells.mamba import scan_step
from elman.errors import InputError, ShapeError
from elman.frontend.cell import cell
from elman.functional.running import check_options, repeat, run, single
from elman.ops import clip, softplus

_CHANNELS = 64  # of Mamba in one sample at most, so that samples are enough for all cores
_NO_LIMIT = (0.0, math.inf)


def _step_size(dt: Any, bias: Any, positive: bool) -> Any:
    return softplus(dt + bias) if positive else dt + bias


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
        seq_idx, cu_seqlens: not available.

    Returns:
        out [B, T, heads, P]; a pair with the last states [B, heads, P, N] if asked for.

    Raises:
        ShapeError: shapes do not belong together.
        InputError: sequences lie behind one another, or an option is unknown.
    """
    check_options(options)
    if seq_idx is not None or cu_seqlens is not None:
        raise InputError("mamba2_scan: sequences behind one another are not available", "pad them")
    lead, heads, P, N = x.shape[:2], A.shape[0], x.shape[-1], B.shape[-1]
    groups = B.shape[2] if B.dim() == 4 else 0
    _check(
        {"x": (x, (*lead, heads, P)), "dt": (dt, (*lead, heads)), "A": (A, (heads,))}
        | {"B": (B, (*lead, groups, N)), "C": (C, (*lead, groups, N)), "D": (D, (heads,))}
        | {"z": (z, x.shape), "dt_bias": (dt_bias, (heads,))}
        | {"initial_states": (initial_states, (len(x), heads, P, N))},
    )
    if not groups or heads % groups:
        raise ShapeError(f"{heads} heads cannot be divided among {groups} groups of B and C")
    zeros = A.new_zeros(heads)
    low, high = dt_limit
    cell_options = {"positive": dt_softplus, "low": float(low), "high": float(high)}
    inputs = [single(x), single(dt), *(repeat(single(v), heads) for v in (B, C))]
    static = [A, zeros if D is None else D, zeros if dt_bias is None else dt_bias]
    out, last = run(biased_mamba2, cell_options, (P, N), inputs, static, initial_states)
    out = out.to(x.dtype) if z is None else (out * F.silu(single(z))).to(x.dtype)
    return (out, last) if return_final_states else out


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
        out [B, channels, T]; a pair with the last state [B, channels, N] if asked for.

    Raises:
        ShapeError: shapes do not belong together.
        InputError: an option is unknown.
    """
    check_options(options)
    channels, N, steps = u.shape[1], A.shape[-1], u.shape[-1]
    shape, each = (len(u), N, steps), (channels,)
    _check(
        {"u": (u, (len(u), channels, steps)), "delta": (delta, u.shape), "A": (A, (*each, N))}
        | {"B": (B, shape), "C": (C, shape), "D": (D, each), "z": (z, u.shape)}
        | {"delta_bias": (delta_bias, each)},
    )
    size = max(n for n in range(1, min(_CHANNELS, channels) + 1) if channels % n == 0)
    heads, zeros = channels // size, A.new_zeros(channels)
    inputs = [single(v).mT.unflatten(-1, (heads, size)) for v in (u, delta)]
    inputs += [single(v).mT.unsqueeze(2).expand(-1, -1, heads, -1) for v in (B, C)]
    static = [A, zeros if D is None else D, zeros if delta_bias is None else delta_bias]
    static = [v.unflatten(0, (heads, size)) for v in static]
    out, last = run(biased_mamba, {"positive": delta_softplus}, (size, N), inputs, static)
    out, last = out.flatten(2).mT, last.flatten(1, 2)
    out = out.to(u.dtype) if z is None else (out * F.silu(single(z))).to(u.dtype)
    return (out, last) if return_last_state else out


def _check(shapes: dict[str, tuple[Tensor | None, tuple[int, ...]]]) -> None:
    """Raise ShapeError if a tensor has another shape."""
    for name, (value, shape) in shapes.items():
        if value is not None and value.shape != shape:
            raise ShapeError(f"{name} must be {[*shape]}, got {[*value.shape]}")

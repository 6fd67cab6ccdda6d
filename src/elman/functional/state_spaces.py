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
from elman.functional.running import check_options, check_tensors, promoted, repeat, run, runs
from elman.ops import clip, softplus

_CHANNELS = 64  # of Mamba in one sample at most, so that samples are enough for all cores
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
        seq_idx, cu_seqlens: not available.

    Returns:
        out [B, T, heads, P] in the dtype of x; a pair with the last states [B, heads, P, N] if
        asked for, in the common dtype of what they depend on, float32 at least.

    Raises:
        ShapeError: shapes do not belong together.
        InputError: an argument is of another kind, sequences lie behind one another, or an option
            is unknown.
    """
    check_options(options)
    if seq_idx is not None or cu_seqlens is not None:
        raise InputError("mamba2_scan: sequences behind one another are not available", "pad them")
    returns = check_flag("return_final_states", return_final_states)
    _check_dims(x=(x, 4), A=(A, 1), B=(B, 4))
    lead, heads, P, N, groups = x.shape[:2], A.shape[0], x.shape[-1], B.shape[-1], B.shape[2]
    _check(
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
    out, last = run(biased_mamba2, cell_options, (P, N), inputs, static, state)
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
    _check_dims(u=(u, 3), A=(A, 2))
    channels, N, steps = u.shape[1], A.shape[-1], u.shape[-1]
    shape, each = (len(u), N, steps), (channels,)
    _check(
        {"u": (u, (len(u), channels, steps)), "delta": (delta, u.shape), "A": (A, (*each, N))}
        | {"B": (B, shape), "C": (C, shape), "D": (D, each), "z": (z, u.shape)}
        | {"delta_bias": (delta_bias, each)},
    )
    size = max([1, *(n for n in range(2, min(_CHANNELS, channels) + 1) if channels % n == 0)])
    dtype = u.dtype
    u, delta, A, B, C, D, delta_bias = promoted(u, delta, A, B, C, D, delta_bias)
    heads, zeros = channels // size, A.new_zeros(channels)
    inputs = [v.mT.unflatten(-1, (heads, size)) for v in (u, delta)]
    inputs += [v.mT.unsqueeze(2).expand(-1, -1, heads, -1) for v in (B, C)]
    static = [A, zeros if D is None else D, zeros if delta_bias is None else delta_bias]
    static = [v.unflatten(0, (heads, size)) for v in static]
    cell_options = {"positive": check_flag("delta_softplus", delta_softplus)}
    out, last = run(biased_mamba, cell_options, (size, N), inputs, static)
    out, last = out.flatten(2).mT, last.flatten(1, 2)
    out = _gated(out, z).to(dtype)
    return (out, last) if returns else out


def _gated(out: Tensor, z: Tensor | None) -> Tensor:
    """out · silu(z), in the dtype that both have in common."""
    return out if z is None else out * F.silu(z.to(torch.promote_types(out.dtype, z.dtype)))


def _check_dims(**expected: tuple[Any, int]) -> None:
    """Raise InputError if an argument is no tensor of floating-point numbers, ShapeError if it has
    another number of dims."""
    for name, (value, dims) in expected.items():
        check_tensors(**{name: value})
        if value.dim() != dims:
            raise ShapeError(f"{name} must be of {dims} dims, got {[*value.shape]}")


def _check(shapes: dict[str, tuple[Any, tuple[int, ...]]]) -> None:
    """Raise ShapeError if a tensor has another shape; InputError: as :func:`check_tensors`."""
    for name, (value, shape) in shapes.items():
        if value is None:
            continue
        check_tensors(**{name: value})
        if value.shape != shape:
            raise ShapeError(f"{name} must be {[*shape]}, got {[*value.shape]}")


def _check_limit(limit: Any) -> tuple[float, float]:
    """Two numbers. Raises InputError: they are others, or the first is the larger."""
    pair = limit if isinstance(limit, tuple | list) else ()
    if len(pair) != 2 or not all(map(is_number, pair)) or not pair[0] <= pair[1]:
        text = f"dt_limit must be two numbers, the lower first, got {shown(limit)}"
        raise InputError(text, "dt_limit=(0.0, float('inf'))")
    return float(pair[0]), float(pair[1])

"""Recurrences of further published models: RG-LRU, mLSTM, WKV of RWKV-4."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from elman import cells
from elman.cells.rwkv4 import BEFORE_ALL, wkv_step
from elman.checks import check_flag, shown
from elman.errors import InputError
from elman.frontend.cell import cell
from elman.functional.running import (
    channel_blocks,
    check_dims,
    check_number,
    check_options,
    check_shapes,
    promoted,
    run,
    runs,
)
from elman.ops import abs, exp, maximum, sqrt, sum


@runs
@cell(input="x[H], a[H]", state="h[H]")
def decayed_sum(x: Any, a: Any, h: Any) -> Any:
    return a * h + x


@runs
@cell(input="q[K], k[K], v[V], i, f", state="C[K, V], n[K], m", output="y[V]")
def settled_mlstm(
    q: Any, k: Any, v: Any, i: Any, f: Any, C: Any, n: Any, m: Any, *, eps: float = 0.0
) -> Any:
    """mLSTM as the authors' kernels compute it: queries are divided instead of keys, and a small
    number is added to the divisor."""
    _, C, n, top = cells.mlstm(q, sqrt(k.shape[0]) * k, v, i, f, C, n, m)
    q = q / sqrt(q.shape[0])
    return C.T @ q / (maximum(abs(sum(n * q)), exp(-top)) + eps), C, n, top


@runs
@cell(input="k[H], v[H]", static="w[H], u[H]", state="num[H], den[H], top[H]", output="y[H]")
def wkv4_step(k: Any, v: Any, w: Any, u: Any, num: Any, den: Any, top: Any) -> Any:
    """RWKV-4, whose decays and bonuses are arguments."""
    return wkv_step(k, v, num, den, top, w, u)


def rglru_scan(
    x: Tensor, a: Tensor, initial_state: Tensor | None = None, **options: Any
) -> tuple[Tensor, Tensor]:
    """h[t] = a[t] h[t-1] + x[t], each channel by itself: the scan of RG-LRU (De et al. 2024,
    arXiv:2402.19427, eq. 4) behind its gates.

    Args:
        x [B, T, channels]: what is added to a state.
        a [B, T, channels]: what is kept of it.
        initial_state [B, channels]: zeros if None.
        options: of other implementations that change no result.

    Returns:
        out [B, T, channels] in the dtype of x, and the last state [B, channels], in the common
        dtype of all arguments, float32 at least.

    Raises:
        ShapeError: shapes do not belong together.
        InputError: an argument is no tensor of floating-point numbers, or an option is unknown.
    """
    check_options(options)
    check_dims(x=(x, 3))
    check_shapes({"a": (a, x.shape), "initial_state": (initial_state, (len(x), x.shape[-1]))})
    dtype, blocks = x.dtype, channel_blocks(x.shape[-1])
    a, x, state = promoted(a, x, initial_state)
    begin = None if state is None else [state.unflatten(-1, blocks)]
    inputs = [v.unflatten(-1, blocks) for v in (x, a)]
    out, (last,) = run(decayed_sum, {}, (blocks[1], blocks[1]), inputs, states=begin)
    return out.flatten(2).to(dtype), last.flatten(1)


def rwkv4(
    w: Tensor,
    u: Tensor,
    k: Tensor,
    v: Tensor,
    state: Sequence[Tensor] | None = None,
    **options: Any,
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """WKV of RWKV-4 (Peng et al. 2023, arXiv:2305.13048, eq. 16 and appendix D), a mean of values
    with weights exp(k), which decay: :data:`elman.cells.rwkv4`.

    Args:
        w [channels]: logarithms of decays, negative.
        u [channels]: a bonus for the step itself.
        k [B, T, channels]: keys.
        v [B, T, channels]: values.
        state: three [B, channels]: weighted values, weights, and the exponent that both are
            divided by; of no step if None.
        options: of other implementations that change no result.

    Returns:
        out [B, T, channels] in the dtype of k, and the last state, in the common dtype of all
        arguments, float32 at least.

    Raises:
        ShapeError: shapes do not belong together.
        InputError: an argument is no tensor of floating-point numbers, a state is not three, or an
            option is unknown.
    """
    check_options(options)
    check_dims(k=(k, 3))
    B, _, channels = k.shape
    if state is not None and not (isinstance(state, tuple | list) and len(state) == 3):
        raise InputError(f"state must be three tensors [B, channels], got {shown(state)}")
    check_shapes({"v": (v, k.shape), "w": (w, (channels,)), "u": (u, (channels,))})
    check_shapes({f"state[{n}]": (part, (B, channels)) for n, part in enumerate(state or ())})
    dtype, blocks = k.dtype, channel_blocks(channels)
    w, u, k, v, *states = promoted(w, u, k, v, *(state or ()))
    if not states:
        zeros = k.new_zeros(B, channels)
        states = [zeros, zeros, zeros + BEFORE_ALL]
    inputs, static, states = (
        [value.unflatten(-1, blocks) for value in values] for values in ((k, v), (w, u), states)
    )
    out, last = run(wkv4_step, {}, (blocks[1], blocks[1]), inputs, static, states)
    return out.flatten(2).to(dtype), tuple([end.flatten(1) for end in last])


def mlstm(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    i: Tensor,
    f: Tensor,
    c_initial: Tensor | None = None,
    n_initial: Tensor | None = None,
    m_initial: Tensor | None = None,
    return_last_states: bool = False,
    eps: float = 1e-6,
    **options: Any,
) -> Tensor | tuple[Tensor, tuple[Tensor, Tensor, Tensor]]:
    """The mLSTM (Beck et al. 2024, arXiv:2405.04517, eq. 19 to 27): :data:`elman.cells.mlstm`, with
    the call of ``mlstm_chunkwise`` of mlstm_kernels.

    Args:
        q [B, heads, T, K]: queries.
        k [B, heads, T, K]: keys.
        v [B, heads, T, V]: values.
        i [B, heads, T]: input gates, before their exponential.
        f [B, heads, T]: forget gates, before their sigmoid.
        c_initial [B, heads, K, V]: the state's matrix; zeros if None, then its other parts, too.
        n_initial [B, heads, K]: the sum of keys.
        m_initial [B, heads, 1]: the exponent that both are divided by.
        return_last_states: whether the last states are returned.
        eps: added to the divisor.
        options: of other implementations that change no result.

    Returns:
        out [B, heads, T, V] in the dtype of q; a pair with the last three states if asked for, in
        the common dtype of all arguments, float32 at least.

    Raises:
        ShapeError: shapes do not belong together.
        InputError: an argument is of another kind, a part of a state is missing, or an option is
            unknown.
    """
    check_options(options)
    returns = check_flag("return_last_states", return_last_states)
    check_dims(q=(q, 4), v=(v, 4))
    (*lead, T, K), V = q.shape, v.shape[-1]
    check_shapes({"k": (k, q.shape), "v": (v, (*lead, T, V)), "i": (i, (*lead, T))})
    check_shapes({"f": (f, (*lead, T)), "c_initial": (c_initial, (*lead, K, V))})
    check_shapes({"n_initial": (n_initial, (*lead, K)), "m_initial": (m_initial, (*lead, 1))})
    parts = [part for part in (c_initial, n_initial, m_initial) if part is not None]
    if len(parts) not in (0, 3):
        raise InputError("c_initial, n_initial and m_initial are one state: all, or none")
    dtype = q.dtype
    q, k, v, i, f, *states = promoted(q, k, v, i, f, *parts)
    begin = [*states[:2], states[2].squeeze(-1)] if states else None
    inputs = [value.transpose(1, 2) for value in (q, k, v, i, f)]
    out, (C, n, m) = run(
        settled_mlstm, {"eps": check_number("eps", eps)}, (K, V), inputs, states=begin
    )
    out = out.transpose(1, 2).to(dtype)
    return (out, (C, n, m.unsqueeze(-1))) if returns else out

"""Recurrences of flash-linear-attention by elman's functions, with the names of its arguments."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812  # torch's own habit

from elman.errors import InputError
from elman.frontend.cell import Cell, cell
from elman.functional import delta_rules
from elman.functional.delta_rules import run_rule
from elman.functional.recurrences import rglru_scan
from elman.functional.running import check_options, promoted, runs
from elman.ops import exp, outer, rows

_Results = tuple[Tensor, Tensor | None]


@runs
@cell(input="q[K], k[K], v[V], a[K], b[K], g[K]", state="S[K, V]", output="y[V]")
def scaled_dplr(
    q: Any, k: Any, v: Any, a: Any, b: Any, g: Any, S: Any,
    *, scale: float = 1.0, norm: bool = False,
) -> Any:  # fmt: skip
    """A decay for each unit of the key, and a matrix of rank one: RWKV-7 (Peng et al. 2025,
    arXiv:2503.14456, section 4) with ``a`` and ``b`` of its own."""
    S = rows(exp(g)) * S + outer(b, S.T @ a) + outer(k, v)
    return S.T @ (scale * q), S


@runs
@cell(input="q[K], k[K], v[V], g[K]", state="S[K, V]", output="y[V]")
def past_gla(
    q: Any, k: Any, v: Any, g: Any, S: Any, *, scale: float = 1.0, norm: bool = False
) -> Any:
    """Gated linear attention whose queries read before the step is written: RWKV-6 (Peng et al.
    2024, arXiv:2404.05892) but for its bonus."""
    return S.T @ (scale * q), rows(exp(g)) * S + outer(k, v)


def attention(
    rule: Callable[..., _Results],
    initial_state: Tensor | None = None,
    output_final_state: Any = False,
    state_v_first: bool = False,
    **options: Any,
) -> _Results:
    """A function of elman's whose states [N, heads, K, V] are [N, heads, V, K] if asked for."""
    if state_v_first and initial_state is not None:
        initial_state = initial_state.mT
    keeps = bool(output_final_state)  # a model passes None for False
    out, last = rule(initial_state=initial_state, output_final_state=keeps, **options)
    return out, last.mT if state_v_first and last is not None else last


def linear_attention(
    q: Tensor,
    g: Tensor | None = None,
    g_gamma: Tensor | None = None,
    gk: Tensor | None = None,
    **options: Any,
) -> _Results:
    """Linear attention with decays of each step and head, of each head, of each unit of the key, or
    none."""
    if g is not None and g_gamma is not None:
        raise InputError("g and g_gamma are both given: only one may be")
    if g is None and (g_gamma is not None or gk is None):
        g = (q.new_zeros(()) if g_gamma is None else g_gamma).expand(q.shape[:3])
    if gk is None:
        return attention(delta_rules.simple_gla, q=q, g=g, **options)
    return attention(delta_rules.gla, q=q, g=gk if g is None else gk + g[..., None], **options)


def delta_attention(
    q: Tensor, g: Tensor | None = None, beta: Tensor | None = None, gk: Tensor | None = None,
    use_gate_in_kernel: Any = False, A_log: Any = None, dt_bias: Any = None,
    lower_bound: float | None = None, use_beta_sigmoid_in_kernel: Any = False,
    allow_neg_eigval: Any = False, safe_gate: Any = False, max_num_seqs: Any = None, **options: Any,
) -> _Results:  # fmt: skip
    """Delta rules without decays, with those of heads, or of units of the key; ``safe_gate`` and
    ``max_num_seqs`` are of the kernels."""
    beta = q.new_ones(q.shape[:3]) if beta is None else beta
    if use_beta_sigmoid_in_kernel:
        beta = (2 if allow_neg_eigval else 1) * promoted(beta)[0].sigmoid()
    elif allow_neg_eigval:
        raise InputError("allow_neg_eigval is of use_beta_sigmoid_in_kernel, which is not set")
    if use_gate_in_kernel:
        if g is None:
            raise InputError("g is missing, from which use_gate_in_kernel makes decays")
        g = log_decay(g, A_log, dt_bias, lower_bound)
    if gk is not None:
        g = gk if g is None else gk + g[..., None]
    if g is None:
        return attention(delta_rules.delta_rule, q=q, beta=beta, **options)
    rule = delta_rules.gated_delta_rule if g.dim() == 3 else delta_rules.kda
    return attention(rule, q=q, g=g, beta=beta, **options)


def log_decay(
    g: Tensor, A_log: Any, dt_bias: Any, lower_bound: float | None = None,
    output_dtype: torch.dtype | None = None,
) -> Tensor:  # fmt: skip
    """Logarithms of decays g [B, T, heads] or [B, T, heads, K]: -exp(A) softplus(g + bias) as in
    Mamba-2, or lower_bound · sigmoid(exp(A) (g + bias))."""
    g, A_log, dt_bias = promoted(g, A_log, dt_bias)
    shape = g.shape[2:]
    g = g if dt_bias is None else g + dt_bias.view(shape)
    rate = 1.0 if A_log is None else A_log.exp().view(-1, *[1] * (len(shape) - 1))
    if lower_bound is not None:
        g = lower_bound * torch.sigmoid(rate * g)
    elif A_log is None:
        raise InputError("A_log is missing: only with lower_bound there are decays without it")
    else:
        g = -rate * F.softplus(g)
    return g if output_dtype is None else g.to(output_dtype)


def delta_product(
    q: Tensor, g: Tensor | None, num_householder: int, cu_seqlens: Any, **options: Any
) -> _Results:
    """Several steps of a delta rule for each query (Siems et al. 2025, arXiv:2502.10297): the first
    decays, the last is read."""
    n = num_householder
    q = F.pad(q.unsqueeze(2), (0, 0, 0, 0, n - 1, 0)).flatten(1, 2)
    g = None if g is None else F.pad(g.unsqueeze(2), (0, 0, 0, n - 1)).flatten(1, 2)
    ends = None if cu_seqlens is None else cu_seqlens * n
    out, last = delta_attention(q=q, g=g, cu_seqlens=ends, **options)
    return out[:, n - 1 :: n], last


def _run_cell(cell: Cell, inputs: tuple[Tensor, ...], options: dict[str, Any]) -> _Results:
    names = ("scale", "initial_state", "output_final_state", "cu_seqlens")
    scale, state, keeps, ends = (options.pop(name, None) for name in names)
    return run_rule(cell, inputs, False, scale, state, keeps, ends, options)


def dplr(
    q: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor, gk: Tensor | None = None,
    safe_gate: Any = False, lower_bound: Any = None, **options: Any,
) -> _Results:  # fmt: skip
    """:func:`scaled_dplr`; ``safe_gate`` and ``lower_bound`` tell the kernels what gk is."""
    gk = torch.zeros_like(k) if gk is None else gk

    def rule(**others: Any) -> _Results:
        return _run_cell(scaled_dplr, (q, k, v, a, b, gk), others)

    return attention(rule, **options)


def rwkv7(r: Tensor, w: Tensor, kk: Tensor, a: Tensor, **options: Any) -> _Results:
    """RWKV-7 by its removal keys and its rates."""
    return dplr(q=r, gk=w, a=-kk, b=kk * a, **options)


def rwkv6(
    r: Tensor, k: Tensor, v: Tensor, w: Tensor, u: Tensor, scale: float | None, **options: Any
) -> _Results:
    """RWKV-6; u [heads, K] is the bonus of the step itself."""
    scale = r.shape[-1] ** -0.5 if scale is None else scale

    def rule(**others: Any) -> _Results:
        return _run_cell(past_gla, (r, k, v, w), {**others, "scale": scale})

    out, last = attention(rule, **options)
    single_r, single_k, single_v, bonus = promoted(r, k, v, u)
    bonus = scale * (single_r * single_k * bonus).sum(-1, keepdim=True) * single_v
    return (out + bonus).to(v.dtype), last


def hgrn(
    x: Tensor, g: Tensor, initial_state: Any, output_final_state: Any, cu_seqlens: Any = None
) -> _Results:
    """h[t] = exp(g[t]) h[t-1] + x[t] (Qin et al. 2023, HGRN, arXiv:2311.04823): x, g [B, T, D] and
    states [N, D]. Sequences behind one another begin where the decay is set to 0."""
    dtype = x.dtype
    x, g, state = promoted(x, g, initial_state)
    a = g.exp()
    if cu_seqlens is None:
        out, last = rglru_scan(a=a, x=x, initial_state=state)
    else:
        bounds = cu_seqlens.long()
        kept = bounds[1:] > bounds[:-1]
        begin, end = bounds[:-1][kept], bounds[1:][kept] - 1
        state = x.new_zeros(len(kept), x.shape[-1]) if state is None else state
        x = x.index_add(1, begin, a[:, begin] * state[kept])
        out, _ = rglru_scan(a=a.index_fill(1, begin, 0.0), x=x)
        last = state.index_copy(0, kept.nonzero().flatten(), out[0, end])
    return out.to(dtype), last if output_final_state else None


def cumulative_sum(
    s: Tensor, reverse: Any, cu_seqlens: Any, scale: Any, output_dtype: Any, **options: Any
) -> Tensor:
    """Sums over the steps of each sequence, s [B, T, ..]."""
    check_options(options)
    lengths = [s.shape[1]] if cu_seqlens is None else cu_seqlens.diff().tolist()
    parts = promoted(s)[0].split(lengths, 1)
    parts = [p.flip(1).cumsum(1).flip(1) if reverse else p.cumsum(1) for p in parts]
    total = parts[0] if len(parts) == 1 else torch.cat(parts, 1)
    return (total if scale is None else scale * total).to(output_dtype or s.dtype)


_linear, _delta = linear_attention, delta_attention
FUNCTIONS: dict[str, Callable[..., Any]] = {  # by their names in fla, whose others call these
    "chunk_gla": partial(attention, delta_rules.gla),
    "chunk_simple_gla": _linear,  # of retention, lightning and linear attention, too
    "fused_chunk": _linear,
    "fused_recurrent": _linear,
    "parallel_simple_gla": _linear,
    "chunk_delta_rule": _delta,
    "fused_recurrent_delta_rule": _delta,
    "chunk_gated_delta_rule": _delta,
    "fused_recurrent_gated_delta_rule": _delta,
    "chunk_kda": _delta,
    "fused_recurrent_kda": _delta,
    "fused_gdn_gate": log_decay,
    "fused_kda_gate": log_decay,
    "chunk_gated_delta_product": delta_product,
    "chunk_dplr_delta_rule": dplr,  # of RWKV-7
    "fused_recurrent_dplr_delta_rule": dplr,
    "chunk_iplr_delta_rule": dplr,
    "fused_recurrent_iplr_delta_rule": dplr,
    "fused_mul_recurrent_rwkv7": rwkv7,
    "chunk_rwkv6": rwkv6,
    "fused_recurrent_rwkv6": rwkv6,
    "chunk_hgrn": hgrn,
    "fused_recurrent_hgrn": hgrn,
    "chunk_global_cumsum": cumulative_sum,
}

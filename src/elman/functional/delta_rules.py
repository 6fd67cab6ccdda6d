"""Delta rules and gated linear attention, with the calls of flash-linear-attention."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from elman import cells
from elman.errors import ShapeError
from elman.frontend.cell import Cell, cell
from elman.functional.running import check_options, repeat, run, single
from elman.ops import exp, sqrt, sum


def _unit(x: Any) -> Any:
    return x / sqrt(sum(x * x) + 1e-6)


def _scaled(q: Any, k: Any, scale: float, norm: bool) -> tuple[Any, Any]:
    """Queries and keys as the cells take them."""
    return (scale * _unit(q), _unit(k)) if norm else (scale * q, k)


@cell(input="q[K], k[K], v[V], b", state="S[K, V]", output="y[V]")
def scaled_delta_net(
    q: Any, k: Any, v: Any, b: Any, S: Any, *, scale: float = 1.0, norm: bool = False
) -> Any:
    return cells.delta_net(*_scaled(q, k, scale, norm), v, b, S)


@cell(input="q[K], k[K], v[V], g, b", state="S[K, V]", output="y[V]")
def scaled_gated_delta_net(
    q: Any, k: Any, v: Any, g: Any, b: Any, S: Any, *, scale: float = 1.0, norm: bool = False
) -> Any:
    return cells.gated_delta_net(*_scaled(q, k, scale, norm), v, exp(g), b, S)


@cell(input="q[K], k[K], v[V], g[K], b", state="S[K, V]", output="y[V]")
def scaled_kda(
    q: Any, k: Any, v: Any, g: Any, b: Any, S: Any, *, scale: float = 1.0, norm: bool = False
) -> Any:
    return cells.kda(*_scaled(q, k, scale, norm), v, exp(g), b, S)


@cell(input="q[K], k[K], v[V], g[K]", state="S[K, V]", output="y[V]")
def scaled_gla(
    q: Any, k: Any, v: Any, g: Any, S: Any, *, scale: float = 1.0, norm: bool = False
) -> Any:
    return cells.gla(*_scaled(q, k, scale, norm), v, exp(g), S)


def delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    cu_seqlens: Tensor | Sequence[int] | None = None,
    **options: Any,
) -> tuple[Tensor, Tensor | None]:
    """The delta rule (Yang et al. 2024, DeltaNet, arXiv:2406.06484): :data:`elman.cells.delta_net`.

    Args:
        q [B, T, heads, K]: queries.
        k [B, T, heads, K]: keys of norm 1.
        v [B, T, heads, V]: values. A multiple of the heads of q and k is allowed: each of
            these then serves several consecutive heads.
        beta [B, T, heads]: writing strengths.
        scale: of the queries; 1 / sqrt(K) if None.
        initial_state [N, heads, K, V]: zeros if None.
        output_final_state: whether the last states are returned.
        use_qk_l2norm_in_kernel: whether queries and keys are divided by their norms first.
        cu_seqlens [N + 1]: where sequences begin and end that lie behind one another, if B = 1;
            else N = B.
        options: of other implementations that change no result, as ``chunk_size``.

    Returns:
        out [B, T, heads, V], and the last states [N, heads, K, V] or None.

    Raises:
        ShapeError: shapes do not belong together.
        InputError: an option is unknown, or not available.
    """
    common = scale, initial_state, output_final_state, cu_seqlens, options
    return _run(scaled_delta_net, (q, k, v, beta), use_qk_l2norm_in_kernel, *common)


def gated_delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    cu_seqlens: Tensor | Sequence[int] | None = None,
    **options: Any,
) -> tuple[Tensor, Tensor | None]:
    """The gated delta rule (Yang, Kautz & Hatamizadeh 2024, arXiv:2412.06464, eq. 10):
    :data:`elman.cells.gated_delta_net`.

    Args:
        q, k, v, beta, scale, initial_state, output_final_state: as of :func:`delta_rule`.
        use_qk_l2norm_in_kernel, cu_seqlens, options: as of :func:`delta_rule`.
        g [B, T, heads]: logarithms of the decays.

    Returns:
        As :func:`delta_rule`.

    Raises:
        ShapeError, InputError: as of :func:`delta_rule`.
    """
    common = scale, initial_state, output_final_state, cu_seqlens, options
    return _run(scaled_gated_delta_net, (q, k, v, g, beta), use_qk_l2norm_in_kernel, *common)


def kda(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    cu_seqlens: Tensor | Sequence[int] | None = None,
    **options: Any,
) -> tuple[Tensor, Tensor | None]:
    """Kimi delta attention (Kimi Team 2025, arXiv:2510.26692, eq. 1): :data:`elman.cells.kda`.

    Args:
        q, k, v, beta, scale, initial_state, output_final_state: as of :func:`delta_rule`.
        use_qk_l2norm_in_kernel, cu_seqlens, options: as of :func:`delta_rule`.
        g [B, T, heads, K]: logarithms of the decays.

    Returns:
        As :func:`delta_rule`.

    Raises:
        ShapeError, InputError: as of :func:`delta_rule`.
    """
    common = scale, initial_state, output_final_state, cu_seqlens, options
    return _run(scaled_kda, (q, k, v, g, beta), use_qk_l2norm_in_kernel, *common)


def gla(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    cu_seqlens: Tensor | Sequence[int] | None = None,
    **options: Any,
) -> tuple[Tensor, Tensor | None]:
    """Gated linear attention (Yang et al. 2024, arXiv:2312.06635, eq. 3): :data:`elman.cells.gla`.

    Args:
        q, k, v, scale, initial_state, output_final_state: as of :func:`delta_rule`.
        cu_seqlens, options: as of :func:`delta_rule`.
        g [B, T, heads, K]: logarithms of the decays.

    Returns:
        As :func:`delta_rule`.

    Raises:
        ShapeError, InputError: as of :func:`delta_rule`.
    """
    common = scale, initial_state, output_final_state, cu_seqlens, options
    return _run(scaled_gla, (q, k, v, g), False, *common)


def _run(
    cell: Cell,
    given: Sequence[Tensor],
    norm: bool,
    scale: float | None,
    state: Tensor | None,
    output_final_state: bool,
    cu_seqlens: Tensor | Sequence[int] | None,
    options: dict[str, Any],
) -> tuple[Tensor, Tensor | None]:
    """Run a cell whose inputs are a query, a key, a value and gates."""
    check_options(options)
    inputs = _check(cell, given)
    q, _, v, *_ = given
    heads, keys, values = v.shape[2], q.shape[-1], v.shape[-1]
    inputs = [repeat(x, heads) for x in inputs]
    lengths = None
    if cu_seqlens is not None:
        lengths = _lengths(cu_seqlens, inputs[0])
        inputs = [pad_sequence([*x[0].split(lengths)], batch_first=True) for x in inputs]
    shape = [len(inputs[0]), heads, keys, values]
    if state is not None and [*state.shape] != shape:
        raise ShapeError(f"initial_state must be {shape}, got {[*state.shape]}")
    options = {"scale": keys**-0.5 if scale is None else scale, "norm": norm}
    out, last = run(cell, options, (keys, values), inputs, state=state, lengths=lengths)
    if lengths is not None:
        out = torch.cat([x[:n] for x, n in zip(out, lengths, strict=True)])[None]
    return out.to(v.dtype), last if output_final_state else None


def _check(cell: Cell, inputs: Sequence[Tensor]) -> list[Tensor]:
    """The inputs in float32 at least. Raises ShapeError: they do not belong together."""
    q, _, v, *_ = inputs
    names = [entry.name for entry in cell.inputs]
    shapes = {name: list(x.shape) for name, x in zip(names, inputs, strict=True)}
    sizes = {"K": q.shape[-1:], "V": v.shape[-1:]}
    for entry, x in zip(cell.inputs, inputs, strict=True):
        inner = sizes[str(entry.shape[0][0])] if entry.shape else ()
        fits = x.dim() == 3 + len(inner) and x.shape[:2] == q.shape[:2]
        fits = fits and x.shape[3:] == inner and v.shape[2] % x.shape[2] == 0
        if not fits:
            hint = "q, k [B, T, heads, K], v [B, T, heads, V], gates [B, T, heads, ..]"
            raise ShapeError(f"expected {hint}; got {shapes}")
    return [single(x) for x in inputs]


def _lengths(cu_seqlens: Tensor | Sequence[int], x: Tensor) -> list[int]:
    """Lengths of the sequences. Raises ShapeError: these do not lie in x [1, T, ..]."""
    ends = torch.as_tensor(cu_seqlens).tolist()
    lengths = [end - start for start, end in pairwise(ends)]
    if len(x) != 1 or ends[:1] != [0] or ends[-1] != x.shape[1] or min(lengths, default=0) < 1:
        raise ShapeError(
            "cu_seqlens must rise from 0 to T, of inputs [1, T, ..]; "
            f"got {ends} and {list(x.shape)}"
        )
    return lengths

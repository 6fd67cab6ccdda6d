"""Delta rules and gated linear attention, with the calls of flash-linear-attention."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from elman import cells
from elman.checks import check_flag, shown
from elman.errors import InputError, ShapeError
from elman.frontend.cell import Cell, cell
from elman.functional.running import (
    check_number,
    check_options,
    check_tensors,
    promoted,
    repeat,
    run,
    runs,
)
from elman.ops import exp, sqrt, sum


def _unit(x: Any) -> Any:
    return x / sqrt(sum(x * x) + 1e-6)


def _scaled(q: Any, k: Any, scale: float, norm: bool) -> tuple[Any, Any]:
    """Queries and keys as the cells take them."""
    return (scale * _unit(q), _unit(k)) if norm else (scale * q, k)


@runs
@cell(input="q[K], k[K], v[V], beta", state="S[K, V]", output="y[V]")
def scaled_delta_net(
    q: Any, k: Any, v: Any, beta: Any, S: Any, *, scale: float = 1.0, norm: bool = False
) -> Any:
    return cells.delta_net(*_scaled(q, k, scale, norm), v, beta, S)


@runs
@cell(input="q[K], k[K], v[V], g, beta", state="S[K, V]", output="y[V]")
def scaled_gated_delta_net(
    q: Any, k: Any, v: Any, g: Any, beta: Any, S: Any, *, scale: float = 1.0, norm: bool = False
) -> Any:
    return cells.gated_delta_net(*_scaled(q, k, scale, norm), v, exp(g), beta, S)


@runs
@cell(input="q[K], k[K], v[V], g[K], beta", state="S[K, V]", output="y[V]")
def scaled_kda(
    q: Any, k: Any, v: Any, g: Any, beta: Any, S: Any, *, scale: float = 1.0, norm: bool = False
) -> Any:
    return cells.kda(*_scaled(q, k, scale, norm), v, exp(g), beta, S)


@runs
@cell(input="q[K], k[K], v[V], g[K]", state="S[K, V]", output="y[V]")
def scaled_gla(
    q: Any, k: Any, v: Any, g: Any, S: Any, *, scale: float = 1.0, norm: bool = False
) -> Any:
    return cells.gla(*_scaled(q, k, scale, norm), v, exp(g), S)


@runs
@cell(input="q[K], k[K], v[V], g", state="S[K, V]", output="y[V]")
def scaled_simple_gla(
    q: Any, k: Any, v: Any, g: Any, S: Any, *, scale: float = 1.0, norm: bool = False
) -> Any:
    return cells.retention(*_scaled(q, k, scale, norm), v, exp(g), S)


def delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    scale: float | Tensor | None = None,
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
        scale: of the queries, a number or a tensor []; 1 / sqrt(K) if None.
        initial_state [N, heads, K, V]: zeros if None.
        output_final_state: whether the last states are returned.
        use_qk_l2norm_in_kernel: whether queries and keys are divided by their norms first.
        cu_seqlens [N + 1]: where sequences begin and end that lie behind one another, if B = 1;
            else N = B. It rises from 0 to T; a sequence without steps keeps its state. Inside
            torch.compile a list of numbers.
        options: of other implementations that change no result, as ``chunk_size``.

    Returns:
        out [B, T, heads, V] in the dtype of v, and the last states [N, heads, K, V] or None, in the
        common dtype of all arguments, in which is computed: float32 at least.

    Raises:
        ShapeError: shapes do not belong together, or sequences do not lie in [0, T].
        InputError: an argument is of another kind, an option is unknown, or not available.
    """
    common = scale, initial_state, output_final_state, cu_seqlens, options
    return run_rule(scaled_delta_net, (q, k, v, beta), use_qk_l2norm_in_kernel, *common)


def gated_delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    scale: float | Tensor | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    cu_seqlens: Tensor | Sequence[int] | None = None,
    **options: Any,
) -> tuple[Tensor, Tensor | None]:
    """The gated delta rule (Yang, Kautz & Hatamizadeh 2024, arXiv:2412.06464, eq. 10):
    :data:`elman.cells.gated_delta_net`.

    Args:
        q, k, v, beta, scale, initial_state, output_final_state: see :func:`delta_rule`.
        use_qk_l2norm_in_kernel, cu_seqlens, options: see :func:`delta_rule`.
        g [B, T, heads]: logarithms of the decays.

    Returns:
        As :func:`delta_rule`.

    Raises:
        ShapeError, InputError: see :func:`delta_rule`.
    """
    common = scale, initial_state, output_final_state, cu_seqlens, options
    return run_rule(scaled_gated_delta_net, (q, k, v, g, beta), use_qk_l2norm_in_kernel, *common)


def kda(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    scale: float | Tensor | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    cu_seqlens: Tensor | Sequence[int] | None = None,
    **options: Any,
) -> tuple[Tensor, Tensor | None]:
    """Kimi delta attention (Kimi Team 2025, arXiv:2510.26692, eq. 1): :data:`elman.cells.kda`.

    Args:
        q, k, v, beta, scale, initial_state, output_final_state: see :func:`delta_rule`.
        use_qk_l2norm_in_kernel, cu_seqlens, options: see :func:`delta_rule`.
        g [B, T, heads, K]: logarithms of the decays.

    Returns:
        As :func:`delta_rule`.

    Raises:
        ShapeError, InputError: see :func:`delta_rule`.
    """
    common = scale, initial_state, output_final_state, cu_seqlens, options
    return run_rule(scaled_kda, (q, k, v, g, beta), use_qk_l2norm_in_kernel, *common)


def gla(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    scale: float | Tensor | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    cu_seqlens: Tensor | Sequence[int] | None = None,
    **options: Any,
) -> tuple[Tensor, Tensor | None]:
    """Gated linear attention (Yang et al. 2024, arXiv:2312.06635, eq. 3): :data:`elman.cells.gla`.

    Args:
        q, k, v, scale, initial_state, output_final_state: see :func:`delta_rule`.
        cu_seqlens, options: see :func:`delta_rule`.
        g [B, T, heads, K]: logarithms of the decays.

    Returns:
        As :func:`delta_rule`.

    Raises:
        ShapeError, InputError: see :func:`delta_rule`.
    """
    common = scale, initial_state, output_final_state, cu_seqlens, options
    return run_rule(scaled_gla, (q, k, v, g), False, *common)


def simple_gla(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    scale: float | Tensor | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    cu_seqlens: Tensor | Sequence[int] | None = None,
    **options: Any,
) -> tuple[Tensor, Tensor | None]:
    """Linear attention with a decay for each head and step, fixed ones in RetNet (Sun et al. 2023,
    arXiv:2307.08621, eq. 6) and lightning attention: :data:`elman.cells.retention`.

    Args:
        q, k, v, scale, initial_state, output_final_state: see :func:`delta_rule`.
        cu_seqlens, options: see :func:`delta_rule`.
        g [B, T, heads]: logarithms of the decays.

    Returns:
        As :func:`delta_rule`.

    Raises:
        ShapeError, InputError: see :func:`delta_rule`.
    """
    common = scale, initial_state, output_final_state, cu_seqlens, options
    return run_rule(scaled_simple_gla, (q, k, v, g), False, *common)


def run_rule(
    cell: Cell,
    given: Sequence[Tensor],
    norm: Any,
    scale: Any,
    state: Any,
    output_final_state: Any,
    cu_seqlens: Any,
    options: dict[str, Any],
) -> tuple[Tensor, Tensor | None]:
    """Run a cell whose inputs are a query, a key, a value and gates."""
    check_options(options)
    output_final_state = check_flag("output_final_state", output_final_state)
    _check_inputs(cell, given)
    q, _, v, *_ = given
    heads, keys, values = v.shape[2], q.shape[-1], v.shape[-1]
    lengths = None if cu_seqlens is None else _lengths(cu_seqlens, q)
    if state is not None:
        shape = [len(q) if lengths is None else len(lengths), heads, keys, values]
        check_tensors(initial_state=state)
        if [*state.shape] != shape:
            raise ShapeError(f"initial_state must be {shape}, got {[*state.shape]}")
    *inputs, state = promoted(*given, state)
    inputs = [repeat(x, heads) for x in inputs]
    factor = max(keys, 1) ** -0.5 if scale is None else _check_scale(scale)
    is_tensor = isinstance(factor, Tensor)
    of_cell = {
        "scale": 1.0 if is_tensor else factor,
        "norm": check_flag("use_qk_l2norm_in_kernel", norm),
    }
    if lengths is None:
        begin = None if state is None else (state,)
        out, (last,) = run(cell, of_cell, (keys, values), inputs, states=begin)
    else:
        out, last = _run_joined(cell, of_cell, (keys, values), inputs, state, lengths)
    if is_tensor:  # outputs are linear in the query, and states know nothing of it
        out = out * factor
    return out.to(v.dtype), last if output_final_state else None


def _run_joined(
    cell: Cell,
    options: dict[str, Any],
    sizes: tuple[int, int],
    inputs: Sequence[Tensor],
    state: Tensor | None,
    lengths: list[int],
) -> tuple[Tensor, Tensor]:
    """As :func:`run`, of sequences behind one another in inputs [1, T, ..], some maybe of no steps:
    the outputs [1, T, ..], and the last states of each."""
    kept = [n for n, length in enumerate(lengths) if length]
    if not kept:
        none = [x[0, :0].expand(len(lengths), *x.shape[1:]) for x in inputs]
        out, (last,) = run(cell, options, sizes, none, states=None if state is None else (state,))
        return out.flatten(0, 1)[None], last
    pieces = [x[0].split(lengths) for x in inputs]
    padded = [pad_sequence([each[n] for n in kept], batch_first=True) for each in pieces]
    begin = None if state is None else (state if len(kept) == len(lengths) else state[kept],)
    steps = [lengths[n] for n in kept]
    out, (last,) = run(cell, options, sizes, padded, states=begin, lengths=steps)
    out = torch.cat([x[:n] for x, n in zip(out, steps, strict=True)])[None]
    if len(kept) < len(lengths):
        ends = last.new_zeros(len(lengths), *last.shape[1:]) if state is None else state
        last = ends.index_copy(0, torch.tensor(kept, device=last.device), last)
    return out, last


def _check_scale(scale: Any) -> float | Tensor:
    """A number, or a tensor of one. Raises InputError: it is neither; ShapeError: of more."""
    if isinstance(scale, Tensor):
        if scale.dim():
            raise ShapeError(
                f"scale must be a number, or a tensor of no dims, got {[*scale.shape]}"
            )
        check_tensors(scale=scale)
        return scale
    return check_number("scale", scale)


def _check_inputs(cell: Cell, inputs: Sequence[Tensor]) -> None:
    """Raise ShapeError if inputs do not belong together; InputError: as :func:`check_tensors`."""
    names = [entry.name for entry in cell.inputs]
    given = dict(zip(names, inputs, strict=True))
    check_tensors(**given)
    q, _, v, *_ = inputs
    sizes = {"K": q.shape[-1:], "V": v.shape[-1:]}
    for entry, x in zip(cell.inputs, inputs, strict=True):
        inner = sizes[str(entry.shape[0][0])] if entry.shape else ()
        fits = q.dim() == v.dim() == 4 and x.dim() == 3 + len(inner)
        fits = fits and x.shape[:2] == q.shape[:2] and x.shape[3:] == inner
        if not fits or not _divides(x.shape[2], v.shape[2]):
            hint = "q, k [B, T, heads, K], v [B, T, heads, V], gates [B, T, heads, ..]"
            shapes = {name: list(value.shape) for name, value in given.items()}
            raise ShapeError(f"expected {hint}; got {shapes}")


def _divides(groups: int, heads: int) -> bool:
    """Whether each of some groups has as many heads, at least one."""
    return groups == heads or (0 < groups <= heads and heads % groups == 0)


def _lengths(cu_seqlens: Any, x: Tensor) -> list[int]:
    """Lengths of the sequences. Raises InputError: no whole numbers; ShapeError: the sequences do
    not lie in x [1, T, ..]."""
    is_dense = isinstance(cu_seqlens, Tensor) and cu_seqlens.layout is torch.strided
    ends = cu_seqlens.tolist() if is_dense else cu_seqlens
    try:
        if isinstance(ends, Mapping | Tensor):  # a sparse tensor
            raise TypeError
        ends = [operator.index(end) for end in ends]
    except TypeError:
        text = "cu_seqlens must be whole numbers [N + 1], a tensor or a list"
        raise InputError(f"{text}, got {_described(cu_seqlens)}") from None
    lengths = [end - start for start, end in pairwise(ends)]
    if len(x) != 1:
        text = "documents of cu_seqlens (cu_seq_lens_q) lie in one row"
        raise ShapeError(f"{text}, [1, T, ..]; got {list(x.shape)}")
    if ends[:1] != [0] or ends[-1] != x.shape[1] or min(lengths, default=0) < 0:
        raise ShapeError(
            "cu_seqlens must rise from 0 to T, of inputs [1, T, ..]; "
            f"got {ends} and {list(x.shape)}"
        )
    return lengths


def _described(value: Any) -> str:
    """A tensor by its dtype and shape, and else as messages repeat values."""
    return f"{value.dtype} {[*value.shape]}" if isinstance(value, Tensor) else shown(value)

"""Runs a cell over sequences [B, T, heads, ·]."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from elman.errors import InputError
from elman.frontend.cell import Cell
from elman.nn import Recurrent

WITHOUT_EFFECT = (  # options of other implementations that change no result
    *("chunk_indices", "chunk_size", "cu_seqlens_cpu", "disable_recompute", "mode", "use_graph"),
    *("use_associative_scan", "use_mambapy"),
)


def check_options(options: Mapping[str, Any]) -> None:
    """Raise InputError if an option is set that could change a result."""
    for key, value in options.items():
        if key not in WITHOUT_EFFECT and value is not None and value is not False:
            raise InputError(f"there is no option {key}={value!r:.40}")


@lru_cache(maxsize=64)
def _layer(cell: Cell, options: tuple[tuple[str, Any], ...], *sizes: int) -> Recurrent:
    """The layer of a cell, without parameters; shared, since it keeps what was chosen for it."""
    return Recurrent(cell.with_options(**dict(options)), *sizes)


def run(
    cell: Cell,
    options: Mapping[str, Any],
    sizes: tuple[int, int],
    inputs: Sequence[Tensor],
    static: Sequence[Tensor] = (),
    state: Tensor | None = None,
    lengths: Sequence[int] | None = None,
) -> tuple[Tensor, Tensor]:
    """The outputs of a cell [B, T, heads, ·], and its last states [B, heads, ·, ·].

    Args:
        cell: with one state, a matrix.
        options: of the cell.
        sizes: of its first input, and of the columns of its state.
        inputs [B, T, heads, ..]: in float32 at least.
        static [heads, ..]: the same for all sequences.
        state [B, heads, ·, ·]: zeros if None.
        lengths: steps of each sequence.
    """
    count, heads = len(inputs[0]), inputs[0].shape[2]
    rows = tuple([x.transpose(0, 1).flatten(1, 2) for x in inputs])
    fixed = tuple([single(x).expand(count, *x.shape).flatten(0, 1) for x in static])
    first = None if state is None else state.to(rows[0].dtype).flatten(0, 1)[None]
    steps = None if lengths is None else torch.tensor(lengths).repeat_interleave(heads)
    layer = _layer(cell, tuple(options.items()), *sizes)
    out, last = layer(rows, first, static=fixed or None, lengths=steps)
    return out.unflatten(1, (count, heads)).transpose(0, 1), last[0].unflatten(0, (count, heads))


def single(x: Tensor) -> Tensor:
    """In float32 at least."""
    return x if x.dtype == torch.float64 else x.float()


def repeat(x: Tensor, heads: int) -> Tensor:
    """A value of several heads for each head: x [B, T, groups, ..] as [B, T, heads, ..]."""
    return x if x.shape[2] == heads else x.repeat_interleave(heads // x.shape[2], 2)

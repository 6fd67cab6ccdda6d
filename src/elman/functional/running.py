"""Runs a cell over sequences [B, T, heads, ·]."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812  # torch's own habit

from elman.checks import shown
from elman.errors import InputError
from elman.frontend.cell import Cell
from elman.nn import Recurrent
from elman.torch_internals import constant

WITHOUT_EFFECT = (  # options of other implementations that change no result
    *("chunk_indices", "chunk_size", "cu_seqlens_cpu", "disable_recompute", "mode", "use_graph"),
    *("use_associative_scan", "use_mambapy"),
)
_MOST_LAYERS = 64

_Key = tuple[str, tuple[tuple[str, Any], ...], tuple[int, int]]
_cells: dict[str, Cell] = {}
_layers: dict[_Key, Recurrent] = {}  # without parameters; shared, since they keep what was chosen


def check_options(options: Mapping[str, Any]) -> None:
    """Raise InputError if an option is set that could change a result."""
    for key, value in options.items():
        if key not in WITHOUT_EFFECT and value is not None and value is not False:
            raise InputError(f"there is no option {key}={value!r:.40}")


def check_tensors(**given: Any) -> None:
    """Raise InputError if an argument is no tensor of floating-point numbers."""
    for name, value in given.items():
        if not isinstance(value, Tensor):
            raise InputError(f"{name} must be a tensor, got {shown(value)}")
        if not value.is_floating_point():
            raise InputError(f"{name} must be of floating-point numbers, got {value.dtype}")


def promoted(*values: Tensor | None) -> list[Any]:
    """Tensors in their common dtype, float32 at least; before they are repeated, so that gradients
    are summed in it."""
    dtype = torch.float32
    for value in values:
        dtype = dtype if value is None else torch.promote_types(dtype, value.dtype)
    return [None if value is None else value.to(dtype) for value in values]


def runs(cell: Cell) -> Cell:
    """Register a cell by its name, by which the compiler's constants find it."""
    return _cells.setdefault(cell.name, cell)


@constant
def _prepare(name: str, options: tuple[tuple[str, Any], ...], sizes: tuple[int, int]) -> _Key:
    """Make the layer of a cell if there is none; its key. The compiler takes keys for constants,
    but not modules: these it finds in a dict."""
    key = name, options, sizes
    if key not in _layers:
        if len(_layers) >= _MOST_LAYERS:
            _layers.pop(next(iter(_layers)), None)
        _layers[key] = Recurrent(_cells[name].with_options(**dict(options)), *sizes)
    return key


def _fixed(value: Any) -> Any:
    """A number or a flag itself: of a number the compiler makes a symbol when it changes, unless it
    is spelled and read."""
    return float.fromhex(value.hex()) if isinstance(value, float) else value


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
        cell: that :func:`runs` registered, with one state, a matrix.
        options: of the cell: numbers and flags.
        sizes: of its first input, and of the columns of its state.
        inputs [B, T, heads, ..]: one of them is of the size of the output; of the dtype of static
            inputs and state (:func:`promoted`).
        static [heads, ..]: the same for all sequences.
        state [B, heads, ·, ·]: zeros if None.
        lengths: steps of each sequence, at least 1.
    """
    count, steps, heads = inputs[0].shape[:3]
    like = [entry.shape for entry in cell.inputs].index(cell.outputs[0].shape)
    if steps == 0:
        last = inputs[0].new_zeros(count, heads, *sizes) if state is None else state
        return inputs[like], last
    width = inputs[like].shape[-1]
    sizes = operator.index(sizes[0]), operator.index(sizes[1])  # no symbols of the compiler's
    made = max(sizes[0], 1), max(sizes[1], 1)
    if 0 in sizes:
        inputs = [_filled(x, len(e.shape)) for x, e in zip(inputs, cell.inputs, strict=True)]
        static = [_filled(x, len(e.shape)) for x, e in zip(static, cell.static, strict=True)]
        state = None if state is None else _filled(state, 2)
    rows = tuple([x.transpose(0, 1).flatten(1, 2) for x in inputs])
    fixed = tuple([x.expand(count, *x.shape).flatten(0, 1) for x in static])
    first = None if state is None else state.flatten(0, 1)[None]
    ends = None if lengths is None else torch.tensor(lengths).repeat_interleave(heads)
    given = tuple([(key, _fixed(value)) for key, value in options.items()])
    layer = _layers[_prepare(cell.name, given, made)]
    out, last = layer(rows, first, static=fixed or None, lengths=ends)
    out = out.unflatten(1, (count, heads)).transpose(0, 1)
    last = last[0].unflatten(0, (count, heads))
    if 0 in sizes:
        out, last = out[..., :width], last[..., : sizes[0], : sizes[1]]
    return out, last


def _filled(x: Tensor, dims: int) -> Tensor:
    """A tensor whose last dims have at least one value each: 0 adds nothing to a sum of none."""
    widths = [int(x.shape[-k - 1] == 0) for k in range(dims)]
    return F.pad(x, [width for extra in widths for width in (0, extra)]) if any(widths) else x


def repeat(x: Tensor, heads: int) -> Tensor:
    """A value of several heads for each head: x [B, T, groups, ..] as [B, T, heads, ..]."""
    return x if x.shape[2] == heads else x.repeat_interleave(heads // x.shape[2], 2)

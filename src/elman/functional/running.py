"""Runs a cell over sequences [B, T, heads, ·]."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from itertools import count
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812  # torch's own habit

from elman.checks import is_number, shown
from elman.engines.c.calls.noted import NOTED
from elman.errors import InputError, ShapeError
from elman.frontend.cell import Cell
from elman.nn import Recurrent
from elman.torch_internals import constant, no_modes

WITHOUT_EFFECT = (  # options of other implementations that change no result
    *("chunk_indices", "chunk_size", "cu_seqlens_cpu", "disable_recompute", "mode", "use_graph"),
    *("use_associative_scan", "use_mambapy"),
)
_MOST_LAYERS = 64
_NOTHING = nullcontext()
_CHANNELS = 64  # in one sample at most, so that samples are enough for all cores


class _Layers:
    """Layers without parameters, shared, since they keep what was chosen. The compiler reads an
    attribute when it meets it, but a dict as it was when it met its first key."""


_Key = tuple[str, tuple[tuple[str, Any], ...], tuple[int, int]]
_cells: dict[str, Cell] = {}
_names: dict[_Key, str] = {}
_numbers = count()
_layers = _Layers()


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


def check_dims(**expected: tuple[Any, int]) -> None:
    """Raise InputError if an argument is no tensor of floating-point numbers, ShapeError if it has
    another number of dims."""
    for name, (value, dims) in expected.items():
        check_tensors(**{name: value})
        if value.dim() != dims:
            raise ShapeError(f"{name} must be of {dims} dims, got {[*value.shape]}")


def check_shapes(shapes: Mapping[str, tuple[Any, tuple[int, ...]]]) -> None:
    """Raise ShapeError if a tensor has another shape; InputError: as :func:`check_tensors`."""
    for name, (value, shape) in shapes.items():
        if value is None:
            continue
        check_tensors(**{name: value})
        if value.shape != shape:
            raise ShapeError(f"{name} must be {[*shape]}, got {[*value.shape]}")


def check_number(name: str, value: Any) -> float:
    """A number. Raises InputError: it is none, or beyond all floating-point numbers."""
    if is_number(value):
        with suppress(OverflowError):
            return float(value)
    raise InputError(f"{name} must be a number, got {shown(value)}")


def check_starts(seq_idx: Any, shape: tuple[int, int]) -> Tensor | None:
    """Steps [B, T] at which another document begins. Raises InputError: the documents' numbers are
    no integers; ShapeError: they have another shape."""
    if seq_idx is None:
        return None
    if not isinstance(seq_idx, Tensor) or seq_idx.is_floating_point() or seq_idx.is_complex():
        raise InputError(f"seq_idx must be a tensor of integers [B, T], got {shown(seq_idx)}")
    if seq_idx.shape != shape:
        raise ShapeError(f"seq_idx must be {[*shape]}, got {[*seq_idx.shape]}")
    starts = torch.zeros_like(seq_idx, dtype=torch.bool)
    starts[:, 1:] = seq_idx[:, 1:] != seq_idx[:, :-1]
    return starts


def promoted(*values: Tensor | None) -> list[Any]:
    """Tensors in their common dtype, float32 at least; before they are repeated, so that gradients
    are summed in it."""
    dtype = torch.float32
    if all(value is None or value.dtype is dtype for value in values):
        return [*values]
    for value in values:
        dtype = dtype if value is None else torch.promote_types(dtype, value.dtype)
    return [None if value is None else value.to(dtype) for value in values]


def runs(cell: Cell) -> Cell:
    """Register a cell by its name, by which the compiler's constants find it."""
    return _cells.setdefault(cell.name, cell)


@constant
def _prepare(name: str, options: tuple[tuple[str, Any], ...], sizes: tuple[int, int]) -> str:
    """Make the layer of a cell if there is none; its name. The compiler takes names for constants,
    but not modules: these it finds as attributes."""
    key = name, options, sizes
    if key not in _names:
        if len(_names) >= _MOST_LAYERS:
            delattr(_layers, _names.pop(next(iter(_names))))
        _names[key] = f"layer{next(_numbers)}"
        setattr(_layers, _names[key], Recurrent(_cells[name], *sizes, **dict(options)))
    return _names[key]


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
    states: Sequence[Tensor] | None = None,
    lengths: Sequence[int] | None = None,
    reset: Tensor | None = None,
    **dims: int,
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """The outputs of a cell [B, T, heads, ·], and its last states [B, heads, ..].

    Args:
        cell: that :func:`runs` registered.
        options: of the cell: numbers and flags.
        sizes: of its first input, and of the last axis of its first state.
        inputs [B, T, heads, ..]: one of them is of the size of the output; of the dtype of static
            inputs and states (:func:`promoted`).
        static [heads, ..]: the same for all sequences.
        states [B, heads, ..]: zeros if None.
        lengths: steps of each sequence, at least 1.
        reset [B, T]: steps before which states are zeros.
        dims: further sizes of the cell.
    """
    B, steps, heads = inputs[0].shape[:3]
    result = (cell.outputs or cell.states)[0].shape
    like = [entry.shape for entry in cell.inputs].index(result)
    width = inputs[like].shape[-1]
    sizes = operator.index(sizes[0]), operator.index(sizes[1])  # no symbols of the compiler's
    given = tuple([(key, _fixed(value)) for key, value in (*options.items(), *dims.items())])
    is_plain = lengths is None and reset is None and 0 not in sizes
    if steps == 1 and states and is_plain and not torch.compiler.is_compiling():
        if not torch.is_grad_enabled():
            return _run_step(cell, given, sizes, inputs, static, states)
    layer = getattr(_layers, _prepare(cell.name, given, (max(sizes[0], 1), max(sizes[1], 1))))
    if steps == 0:
        zeros = [inputs[0].new_zeros(B, heads, *size) for size in layer.runtime.state_sizes]
        zeros = [z[..., : sizes[0], : sizes[1]] if 0 in sizes else z for z in zeros]
        return inputs[like], tuple(zeros if states is None else states)
    ends_like = [sizes] * len(cell.states) if states is None else [v.shape[2:] for v in states]
    if 0 in sizes:
        inputs = [_filled(x, len(e.shape)) for x, e in zip(inputs, cell.inputs, strict=True)]
        static = [_filled(x, len(e.shape)) for x, e in zip(static, cell.static, strict=True)]
        states = None if states is None else [_filled(state, 2) for state in states]
    if torch.compiler.is_compiling():  # it takes some gradients for contiguous: make them so
        inputs = [x.reshape(-1).view(x.shape) for x in inputs]
    rows = tuple([x.transpose(0, 1).flatten(1, 2) for x in inputs])
    fixed = tuple([x.expand(B, *x.shape).flatten(0, 1) for x in static])
    first = None if states is None else tuple([state.flatten(0, 1)[None] for state in states])
    steps_of = None if lengths is None else torch.tensor(lengths).repeat_interleave(heads)
    flags = None if reset is None else reset.T.repeat_interleave(heads, 1)
    out, last = layer(rows, first, static=fixed or None, lengths=steps_of, reset=flags)
    out = out.unflatten(1, (B, heads)).transpose(0, 1)
    ends = last if isinstance(last, tuple) else (last,)
    ends = tuple([end[0].unflatten(0, (B, heads)) for end in ends])
    if 0 in sizes:
        out = out[..., :width]
        ends = tuple([end[..., : m[0], : m[1]] for end, m in zip(ends, ends_like, strict=True)])
    return out, ends


def _run_step(
    cell: Cell,
    options: tuple[tuple[str, Any], ...],
    sizes: tuple[int, int],
    inputs: Sequence[Tensor],
    static: Sequence[Tensor],
    states: Sequence[Tensor],
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """:func:`run` for one step without gradients, as of generated text. The layer takes static
    inputs as inputs of the step: it then has none to prepare, and its kernel runs with new
    addresses alone."""
    B, _, heads = inputs[0].shape[:3]
    layer = getattr(_layers, _prepare(_name_of_step(cell), options, sizes))
    rows = [x.reshape(1, B * heads, *x.shape[3:]) for x in inputs]
    rows += [(x if B == 1 else x.expand(B, *x.shape).flatten(0, 1))[None] for x in static]
    first = [state.reshape(1, B * heads, *state.shape[2:]) for state in states]
    rows = [x.contiguous() for x in rows]
    with no_modes() if NOTED.get() else _NOTHING:  # the kernel's launch is noted instead
        out, last = layer(tuple(rows), tuple(first))
    ends = last if isinstance(last, tuple) else (last,)
    ends = tuple([end.view(B, heads, *end.shape[2:]) for end in ends])
    return out.view(B, 1, heads, *out.shape[2:]), ends


def _name_of_step(cell: Cell) -> str:
    """The name of a cell of the same formula, whose static inputs are inputs of each step."""
    if not cell.static:
        return cell.name
    name = f"{cell.name}_step"
    if name not in _cells:
        runs(replace(cell, name=name, inputs=(*cell.inputs, *cell.static), static=()))
    return name


def _filled(x: Tensor, dims: int) -> Tensor:
    """A tensor whose last dims have at least one value each: 0 adds nothing to a sum of none."""
    widths = [int(x.shape[-k - 1] == 0) for k in range(dims)]
    return F.pad(x, [width for extra in widths for width in (0, extra)]) if any(widths) else x


def channel_blocks(channels: int) -> tuple[int, int]:
    """How many samples channels that know nothing of each other are made, and of how many each."""
    size = max([1, *(n for n in range(2, min(_CHANNELS, channels) + 1) if channels % n == 0)])
    return channels // size, size


def repeat(x: Tensor, heads: int) -> Tensor:
    """A value of several heads for each head: x [B, T, groups, ..] as [B, T, heads, ..]."""
    if x.shape[2] == 1:
        return x.expand(-1, -1, heads, *x.shape[3:])
    return x if x.shape[2] == heads else x.repeat_interleave(heads // x.shape[2], 2)

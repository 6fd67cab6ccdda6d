"""Arguments with a value for each step and sample: their checks, whatever the option."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from elman.errors import InputError, ShapeError, diagnostic
from elman.nn.call.dense import as_tensor, check_dense
from elman.nn.call.layout import Layout

_DRAWS = torch.int32, torch.int64, torch.float32, torch.float64  # that hold a half of a key
_AXES = "layers·directions, n"  # of draws, behind those of x


def check_step_values(name: str, values: Any, x: Any, layout: Layout, sizes: Sequence[int]) -> None:
    """Check an argument that lies as x does.

    Args:
        name: of the argument.
        values: as given: [T, B, *sizes]; [B, T, ..] with ``batch_first``; [T, ..] unbatched; packed
            as x is.
        x: the first input, as given to the module.
        layout: of x.
        sizes: of further axes, those of draws.

    Raises:
        InputError, ShapeError: it is not such a tensor, or packed otherwise than x.
    """
    if layout.packed:
        if not isinstance(values, PackedSequence):
            raise InputError(f"{name} is packed as x is: pack_padded_sequence({name}, lengths)")
        if not torch.equal(values.batch_sizes, x.batch_sizes):
            raise ShapeError(f"{name} is packed with other lengths than x")
        if sizes and values.data.shape[1:] != tuple(sizes):
            message = f"packed {name} must be [N, {_AXES}] = "
            message += f"{[len(values.data), *sizes]}, got {[*values.data.shape]}"
            raise ShapeError(message)
        _check_place(name, values.data, x.data, sizes)
        return
    _check_tensor(name, values, "step", sizes)
    shape = [*x.shape[: 1 + layout.batched]]
    if [*values.shape] != [*shape, *sizes]:
        names = "T" if not layout.batched else "B, T" if layout.batch_first else "T, B"
        names += f", {_AXES}" if sizes else ""
        message = f"{name} must be [{names}] = {[*shape, *sizes]}, got {[*values.shape]}"
        raise ShapeError(diagnostic(message, [], _hint(name, values, shape, sizes)))
    _check_place(name, values, x, sizes)


def check_sample_values(
    name: str, values: Any, shape: Sequence[int], sizes: Sequence[int] = ()
) -> None:
    """Check one value for each sample of a single step.

    Args:
        name: of the argument.
        values: as given.
        shape: [B]; [] unbatched.
        sizes: as of :func:`check_step_values`.

    Raises:
        InputError, ShapeError: it is not a tensor, or of another shape.
    """
    _check_tensor(name, values, "sample", sizes)
    if [*values.shape] != [*shape, *sizes]:
        shape_text = f"[{'B, ' * len(shape)}{_AXES}]" if sizes else "one flag per sample"
        message = f"{name} must be {[*shape, *sizes]}, {shape_text}, got {[*values.shape]}"
        raise ShapeError(diagnostic(message, [], _hint(name, values, shape, sizes)))


def _check_tensor(name: str, values: Any, per: str, sizes: Sequence[int]) -> None:
    if not isinstance(values, Tensor):
        shape_text = "as net.draws(T, B) returns it" if sizes else f"one flag per {per}"
        message = f"{name} must be a tensor, {shape_text}, got {type(values).__name__}"
        hint = f"torch.stack({name})" if sizes and type(values) is list else as_tensor(values, name)
        raise InputError(diagnostic(message, [], hint))
    check_dense(values, name)


def _check_place(name: str, values: Tensor, like: Tensor, sizes: Sequence[int]) -> None:
    """Check that values are where x is, and can be compared with 0; that draws have all bits.

    Raises:
        InputError: they are elsewhere, or of a type that cannot be so.
    """
    if values.device != like.device:
        message = f"{name} is on {values.device}, but x is on {like.device}"
        raise InputError(diagnostic(message, [], f"{name}.to({str(like.device)!r})"))
    if values.is_complex():
        message = f"{name} must be bool or real numbers, got {values.dtype}"
        raise InputError(diagnostic(message, [], f"{name} != 0"))
    if sizes and values.dtype not in _DRAWS:
        message = f"{name} must be whole numbers of 24 bits, as int32, got {values.dtype}"
        raise InputError(diagnostic(message, [], "keep what net.draws(T, B) returns as it is"))


def _hint(name: str, values: Tensor, shape: Sequence[int], sizes: Sequence[int]) -> str:
    """A reshape that would make values fit, or nothing."""
    if sizes:
        swapped = len(shape) == 2 and [*values.shape] == [*shape[::-1], *sizes]
        return f"{name}.transpose(0, 1)" if swapped else ""
    if [*values.shape] == [*shape, 1]:
        return f"{name}.squeeze(-1)"
    if [*values.shape] == [*shape[::-1]]:
        return f"{name}.T"
    return ""

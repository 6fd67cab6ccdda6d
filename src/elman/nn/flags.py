"""Marks of a call, for each step and sample: flags, ``reset=`` and ``mask=``, and ``draws=``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from elman.errors import InputError, ShapeError, diagnostic
from elman.nn.dense import as_tensor, check_dense
from elman.nn.signature import Opened

_DRAWS = torch.int32, torch.int64, torch.float32, torch.float64  # that hold a half of a key
_AXES = "layers·directions, n"  # of draws, behind those of x


def flags_of_steps(
    name: str, flags: Any, x: Any, opened: Opened, batch_first: bool, sizes: Sequence[int] = ()
) -> Tensor:
    """Check flags, or draws, and bring them into the inner layout.

    Args:
        name: of the argument.
        flags: as given: [T, B]; [B, T] with ``batch_first``; [T] unbatched; packed as x is.
        x: the input they belong to, as given to the module.
        opened: the arguments in the inner layout.
        batch_first: how x lies.
        sizes: of further axes, those of draws.

    Returns:
        [T, B, *sizes], or [N, *sizes] of packed rows.

    Raises:
        InputError, ShapeError: they are not such a tensor, or packed otherwise than x.
    """
    layout = opened.layout
    if layout.packing is not None and layout.padding is None:
        first = x if isinstance(x, PackedSequence) else x[0]
        if not isinstance(flags, PackedSequence):
            raise InputError(f"{name} is packed as x is: pack_padded_sequence({name}, lengths)")
        if not torch.equal(flags.batch_sizes, first.batch_sizes):
            raise ShapeError(f"{name} is packed with other lengths than x")
        if sizes and flags.data.shape[1:] != tuple(sizes):
            message = f"packed {name} must be [N, {_AXES}] = "
            message += f"{[len(flags.data), *sizes]}, got {[*flags.data.shape]}"
            raise ShapeError(message)
        return _placed(name, flags.data, opened.inputs[0], sizes)
    _check_tensor(name, flags, "step", sizes)
    if layout.padding is not None:
        rows = (layout.padding.steps, int(layout.padding.like.batch_sizes[0]))
    else:
        rows = tuple(opened.inputs[0].shape[:2])
    if not layout.batched:
        shape, names = [rows[0]], "T"
    else:
        shape, names = ([*rows[::-1]], "B, T") if batch_first else ([*rows], "T, B")
    if [*flags.shape] != [*shape, *sizes]:
        names += f", {_AXES}" if sizes else ""
        message = f"{name} must be [{names}] = {[*shape, *sizes]}, got {[*flags.shape]}"
        raise ShapeError(diagnostic(message, [], _meant(name, flags, shape, sizes)))
    _placed(name, flags, opened.inputs[0], sizes)
    if not layout.batched:
        return flags.unsqueeze(1)
    own = flags.transpose(0, 1) if batch_first else flags
    return own if layout.padding is None else layout.padding.packed(own)


def check_flags(name: str, flags: Any, shape: Sequence[int], sizes: Sequence[int] = ()) -> None:
    """Refuse what is not one flag, or the draws, of each sample of a single step.

    Args:
        name: of the argument.
        flags: as given.
        shape: [B]; [] unbatched.
        sizes: as of :func:`flags_of_steps`.

    Raises:
        InputError, ShapeError: it is not a tensor, or of another shape.
    """
    _check_tensor(name, flags, "sample", sizes)
    if [*flags.shape] != [*shape, *sizes]:
        what = f"[{'B, ' * len(shape)}{_AXES}]" if sizes else "one flag per sample"
        message = f"{name} must be {[*shape, *sizes]}, {what}, got {[*flags.shape]}"
        raise ShapeError(diagnostic(message, [], _meant(name, flags, shape, sizes)))


def _check_tensor(name: str, flags: Any, per: str, sizes: Sequence[int]) -> None:
    if not isinstance(flags, Tensor):
        what = "as net.draws(T, B) returns it" if sizes else f"one flag per {per}"
        message = f"{name} must be a tensor, {what}, got {type(flags).__name__}"
        hint = f"torch.stack({name})" if sizes and type(flags) is list else as_tensor(flags, name)
        raise InputError(diagnostic(message, [], hint))
    check_dense(flags, name)


def _placed(name: str, flags: Tensor, like: Tensor, sizes: Sequence[int]) -> Tensor:
    """Flags that are where x is, and can be compared with 0; draws that have all of their bits.

    Raises:
        InputError: they are elsewhere, or of a type that cannot be so.
    """
    if flags.device != like.device:
        message = f"{name} is on {flags.device}, but x is on {like.device}"
        raise InputError(diagnostic(message, [], f"{name}.to({str(like.device)!r})"))
    if flags.is_complex():
        message = f"{name} must be bool or real numbers, got {flags.dtype}"
        raise InputError(diagnostic(message, [], f"{name} != 0"))
    if sizes and flags.dtype not in _DRAWS:
        message = f"{name} must be whole numbers of 24 bits, as int32, got {flags.dtype}"
        raise InputError(diagnostic(message, [], "keep what net.draws(T, B) returns as it is"))
    return flags


def _meant(name: str, flags: Tensor, shape: Sequence[int], sizes: Sequence[int]) -> str:
    """What makes flags of another shape those that are wanted, if anything evident does."""
    if sizes:
        turned = len(shape) == 2 and [*flags.shape] == [*shape[::-1], *sizes]
        return f"{name}.transpose(0, 1)" if turned else ""
    if [*flags.shape] == [*shape, 1]:
        return f"{name}.squeeze(-1)"
    if [*flags.shape] == [*shape[::-1]]:
        return f"{name}.T"
    return ""

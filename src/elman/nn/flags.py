"""Flags of a call, one for each step and sample: ``reset=`` and ``mask=``, checked alike."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from elman.errors import InputError, ShapeError, diagnostic
from elman.nn.dense import as_tensor, check_dense
from elman.nn.signature import Opened


def flags_of_steps(name: str, flags: Any, x: Any, opened: Opened, batch_first: bool) -> Tensor:
    """Check flags and bring them into the inner layout.

    Args:
        name: of the argument.
        flags: as given: [T, B]; [B, T] with ``batch_first``; [T] unbatched; packed as x is.
        x: the input they belong to, as given to the module.
        opened: the arguments in the inner layout.
        batch_first: how x lies.

    Returns:
        [T, B], or [N] of packed rows.

    Raises:
        InputError, ShapeError: they are not a tensor of such a shape, or packed otherwise than x.
    """
    layout = opened.layout
    if layout.packing is not None and layout.padding is None:
        first = x if isinstance(x, PackedSequence) else x[0]
        if not isinstance(flags, PackedSequence):
            raise InputError(f"{name} is packed as x is: pack_padded_sequence({name}, lengths)")
        if not torch.equal(flags.batch_sizes, first.batch_sizes):
            raise ShapeError(f"{name} is packed with other lengths than x")
        return _placed(name, flags.data, opened.inputs[0])
    _check_tensor(name, flags, "step")
    if layout.padding is not None:
        sizes = (layout.padding.steps, int(layout.padding.like.batch_sizes[0]))
    else:
        sizes = tuple(opened.inputs[0].shape[:2])
    if not layout.batched:
        shape, names = [sizes[0]], "T"
    else:
        shape, names = ([*sizes[::-1]], "B, T") if batch_first else ([*sizes], "T, B")
    if [*flags.shape] != shape:
        message = f"{name} must be [{names}] = {shape}, got {[*flags.shape]}"
        raise ShapeError(diagnostic(message, [], _meant(name, flags, shape)))
    _placed(name, flags, opened.inputs[0])
    if not layout.batched:
        return flags.unsqueeze(1)
    own = flags.transpose(0, 1) if batch_first else flags
    return own if layout.padding is None else layout.padding.packed(own)


def check_flags(name: str, flags: Any, shape: Sequence[int]) -> None:
    """Refuse what is not one flag per sample of a single step.

    Args:
        name: of the argument.
        flags: as given.
        shape: [B]; [] unbatched.

    Raises:
        InputError, ShapeError: it is not a tensor, or of another shape.
    """
    _check_tensor(name, flags, "sample")
    if flags.shape != tuple(shape):
        message = f"{name} must be {[*shape]}, one flag per sample, got {[*flags.shape]}"
        raise ShapeError(diagnostic(message, [], _meant(name, flags, shape)))


def _check_tensor(name: str, flags: Any, per: str) -> None:
    if not isinstance(flags, Tensor):
        message = f"{name} must be a tensor, one flag per {per}, got {type(flags).__name__}"
        raise InputError(diagnostic(message, [], as_tensor(flags, name)))
    check_dense(flags, name)


def _placed(name: str, flags: Tensor, like: Tensor) -> Tensor:
    """Flags that are where x is, and can be compared with 0.

    Raises:
        InputError: they are elsewhere, or complex.
    """
    if flags.device != like.device:
        message = f"{name} is on {flags.device}, but x is on {like.device}"
        raise InputError(diagnostic(message, [], f"{name}.to({str(like.device)!r})"))
    if flags.is_complex():
        message = f"{name} must be bool or real numbers, got {flags.dtype}"
        raise InputError(diagnostic(message, [], f"{name} != 0"))
    return flags


def _meant(name: str, flags: Tensor, shape: Sequence[int]) -> str:
    """What makes flags of another shape those that are wanted, if anything evident does."""
    if [*flags.shape] == [*shape, 1]:
        return f"{name}.squeeze(-1)"
    if [*flags.shape] == [*shape[::-1]]:
        return f"{name}.T"
    return ""

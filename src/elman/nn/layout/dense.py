"""Checks of tensors, devices and models, shared by all modules."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from elman.checks import shown
from elman.errors import InputError


def is_dense(value: Tensor) -> bool:
    """Whether a tensor has strides and one size for all of its parts."""
    return value.layout is torch.strided and not value.is_nested


def check_dense(value: Tensor, subject: str, of: str = "") -> None:
    """Check one argument of a module.

    Args:
        value: the argument.
        subject, of: its name and its owner, for the message.

    Raises:
        InputError: it is sparse or nested; the hint says what to pass instead.
    """
    if is_dense(value):
        return
    subject = f"{subject} of {of}" if of else subject
    if value.is_nested:
        hint = "torch.nested.to_padded_tensor(x, 0.0), and lengths=[…] of the sequences"
        raise InputError(f"{subject} is a nested tensor", hint)
    raise InputError(f"{subject} is {value.layout}, not dense", "give x.to_dense()")


TRAINED = (torch.float32, torch.float64, torch.bfloat16, torch.float16)  # types of parameters


def check_factory(device: Any, dtype: Any) -> None:
    """Check ``device`` and ``dtype`` of a module's parameters.

    Raises:
        InputError: the device cannot hold parameters, or they cannot have the type.
    """
    if dtype is not None and not (isinstance(dtype, torch.dtype) and dtype in TRAINED):
        subject_type = dtype if isinstance(dtype, torch.dtype) else shown(dtype)
        type_names = ", ".join(map(str, TRAINED))
        raise InputError(
            f"dtype must be a type that weights are trained in ({type_names}), got {subject_type}"
        )
    if device is None:
        return
    subject = (
        f"device={device!r}" if isinstance(device, torch.device) else f"device={shown(device)}"
    )
    try:
        if isinstance(device, bool):
            raise TypeError("it is a bool")
        torch.empty(0, device=device)
    except (TypeError, ValueError, RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).partition("\n")[0]
        hint = 'device="cpu"; torch.cuda.is_available() says whether there is a GPU'
        raise InputError(f"{subject} holds no tensors", hint, torch=reason) from None


def check_model(function: str, model: Any) -> None:
    """Raise InputError for an object that is not a module.

    Args:
        function: name of the caller, for the message.
        model: the object.

    Raises:
        InputError: it is not a module.
    """
    if not isinstance(model, nn.Module):
        subject = f"{function} takes a torch.nn.Module, not {shown(model)}"
        raise InputError(subject, f"{function}(model)")


def as_tensor(value: Any, name: str) -> str:
    """The hint to convert an argument to a tensor, if it holds numbers."""
    numbers = isinstance(value, list | tuple) or hasattr(value, "__array__")
    return f"torch.as_tensor({name})" if numbers else ""


def row_of(x: Any, rank: int) -> tuple[Tensor, ...]:
    """Check the inputs of one step.

    Args:
        x: a tensor, or several.
        rank: number of dims of a batch of the first input; unbatched it has one less.

    Raises:
        InputError: x is not a tensor or tuple of tensors, or has another rank.
    """
    several = isinstance(x, (tuple, list))
    values = tuple(x) if several else (x,)
    if not values or not all(isinstance(value, Tensor) for value in values):
        hint = "" if several else as_tensor(x, "x")
        raise InputError("step: x must be a tensor or a tuple of tensors", hint)
    for value in values:
        check_dense(value, "step: x")
    if values[0].dim() not in (rank, rank - 1):
        raise InputError(
            f"step: x must have {rank} dimensions (or {rank - 1}, unbatched), got "
            f"{values[0].dim()}: the axis of time is left out"
        )
    return values

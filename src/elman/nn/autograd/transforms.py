"""Detection of transforms, modes and tensor classes that hide the memory which kernels read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor
from torch.nn import Parameter

from elman.torch_internals import (
    autocast_enabled,
    constant,
    count_dispatch_modes,
    count_function_modes,
    forward_mode,
    innermost_transform,
    is_batched_cotangent,
    saved_tensors_may_change,
    tracing_state,
)

_PLAIN = (Tensor, Parameter)
FUNC, DUAL = "torch.func", "forward-mode differentiation"  # ``second_order`` supports these


_alone: ContextVar[bool] = ContextVar("elman_torch_ops", default=False)


@contextmanager
def require_torch_ops(enabled: bool = True) -> Iterator[None]:
    """Context in which :func:`transform_reason` allows torch ops only."""
    token = _alone.set(enabled or _alone.get())
    try:
        yield
    finally:
        _alone.reset(token)


def transform_reason(tensors: Iterable[Tensor]) -> str | None:
    """The reason why only torch ops may see these tensors; None if a kernel may read their memory.

    Args:
        tensors: all arguments of a layer.
    """
    if torch.compiler.is_compiling():
        return "torch.compile"
    if _alone.get():
        return "a transform that began after the forward"
    if count_dispatch_modes():
        return "a torch dispatch mode"
    if tracing_state() is not None:
        return "torch.jit.trace"
    for tensor in tensors:
        if type(tensor) not in _PLAIN:
            return f"a {type(tensor).__name__}"
        if tensor.is_meta:
            return "a tensor without memory (device meta)"
        if tensor.is_neg():
            return "a view that negates its memory"
    if inside_func():
        return FUNC
    return DUAL if forward_mode() else None


def unshared(tensors: Iterable[Tensor]) -> tuple[Tensor, ...]:
    """The tensors, or copies of them if users may write to tensors saved for a backward.

    ``allow_mutation_on_saved_tensors`` identifies saved tensors by their first address, so it does
    not notice a write to a row or a column of one; nobody writes to copies.
    """
    if not saved_tensors_may_change():
        return tuple(tensors)
    return tuple([tensor.clone() for tensor in tensors])


def is_plain() -> bool:
    """Whether no transform, mode, tracer, compiler or autocast is active. Tensors may still be of
    classes that hide their memory."""
    return not (
        torch.compiler.is_compiling()
        or autocast_enabled()
        or count_dispatch_modes()
        or count_function_modes()
        or innermost_transform() is not None
        or forward_mode()
        or tracing_state() is not None
        or _alone.get()
    )


def late_cotangents(cotangents: Iterable[Tensor | None]) -> bool:
    """Whether cotangents belong to a transform that began after the forward, so that only torch ops
    may read them."""
    return inside_func() or forward_mode() or is_batched(cotangents)


def inside_func() -> bool:
    """Whether a transform of torch.func is active."""
    return innermost_transform() is not None


def is_batched(cotangents: Iterable[Tensor | None]) -> bool:
    """Whether autograd batches cotangents itself (``is_grads_batched``)."""
    return any(d is not None and is_batched_cotangent(d) for d in cotangents)


@constant
def transforming() -> bool:
    """Whether a transform of torch.func surrounds the code that is being compiled."""
    return innermost_transform() is not None

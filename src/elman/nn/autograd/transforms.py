"""Under what a layer runs: kernels read memory, which transforms, modes and classes may hide."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor
from torch._functorch.pyfunctorch import retrieve_all_functorch_interpreters
from torch.autograd import forward_ad
from torch.nn import Parameter

_C: Any = torch._C
_PLAIN = (Tensor, Parameter)
FUNC, DUAL = "torch.func", "forward-mode differentiation"  # what ``second_order`` goes through


_alone: ContextVar[bool] = ContextVar("elman_torch_ops", default=False)


@contextmanager
def torch_ops_alone(asked: bool = True) -> Iterator[None]:
    """Inside, :func:`transformed` says that only torch ops may run."""
    token = _alone.set(asked or _alone.get())
    try:
        yield
    finally:
        _alone.reset(token)


def transformed(tensors: Iterable[Tensor]) -> str | None:
    """Why only torch ops may see these tensors, or None where a kernel may read their memory.

    Args:
        tensors: all arguments of a layer.
    """
    if torch.compiler.is_compiling():
        return "torch.compile"
    if _alone.get():
        return "a transform that began after the forward"
    if _C._len_torch_dispatch_stack() > 0:
        return "a torch dispatch mode"
    if _C._get_tracing_state() is not None:
        return "torch.jit.trace"
    for tensor in tensors:
        if type(tensor) not in _PLAIN:
            return f"a {type(tensor).__name__}"
        if tensor.is_meta:
            return "a tensor without memory (device meta)"
        if tensor.is_neg():
            return "a view that negates its memory"
    if in_func():
        return FUNC
    return DUAL if forward_ad._current_level >= 0 else None


def plain() -> bool:
    """Whether nothing is under way that changes what torch's operations do: no transform, mode,
    tracer, compiler or autocast. Tensors may still be of classes that hide their memory."""
    return not (
        torch.compiler.is_compiling()
        or _C._is_any_autocast_enabled()
        or _C._len_torch_dispatch_stack()
        or _C._len_torch_function_stack()
        or in_func()
        or forward_ad._current_level >= 0
        or _C._get_tracing_state() is not None
        or _alone.get()
    )


def late_cotangents(cotangents: Iterable[Tensor | None]) -> bool:
    """Whether cotangents are of a transform that began after the forward: only torch ops may see
    them."""
    return in_func() or forward_ad._current_level >= 0 or batched(cotangents)


def in_func() -> bool:
    """Whether a transform of torch.func is under way."""
    return _C._functorch.peek_interpreter_stack() is not None


def batched(cotangents: Iterable[Tensor | None]) -> bool:
    """Whether autograd's own batching (``is_grads_batched``) is what cotangents are of."""
    found = _C._functorch.is_legacy_batchedtensor
    return any(d is not None and found(d) for d in cotangents)


def sampled(weights: Iterable[Tensor]) -> bool:
    """Whether weights are differentiated inside a vmap: their gradients may be asked for by sample.

    Only speed depends on it.
    """
    func = _C._functorch
    if not in_func():
        return False
    stack = retrieve_all_functorch_interpreters()
    batched = [level.level() for level in stack if level.key().name == "Vmap"]
    return bool(batched) and any(
        func.is_gradtrackingtensor(weight) and func.maybe_get_level(weight) > batched[0]
        for weight in weights
    )


def forward_levels() -> int:
    """How many levels of ``torch.func.jvp`` are nested here."""
    if not in_func():
        return 0
    return sum(level.key().name == "Jvp" for level in retrieve_all_functorch_interpreters())

"""Whether kernels may run: not under transforms, modes and tensor classes that need torch ops."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn import Parameter

_C: Any = torch._C
_PLAIN = (Tensor, Parameter)


def transformed(tensors: Iterable[Tensor]) -> str | None:
    """Why only torch ops may see these tensors, or None where a kernel may read their memory.

    Args:
        tensors: all arguments of a layer.
    """
    if torch.compiler.is_compiling():
        return "torch.compile"
    if _C._functorch.peek_interpreter_stack() is not None:
        return "torch.func"
    if forward_ad._current_level >= 0:
        return "forward-mode differentiation"
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
    return None

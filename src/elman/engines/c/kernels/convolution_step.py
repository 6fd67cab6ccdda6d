"""A step of a short causal convolution: the caller of ``convolution_step.h``."""

from __future__ import annotations

import ctypes
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from elman.engines.c.calls.noted import NOTED, Launch
from elman.engines.c.compilation.build import built
from elman.engines.c.compilation.compilers import has_compiler
from elman.engines.c.compilation.isa import Isa, detect
from elman.engines.c.text.units import file, head, runtime

_SIZES = ("rows", "channels", "length", "taps", "row", "channel", "gate")
_ARRAYS = ("x", "weight", "bias", "state", "out")


class _Convolution(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_long) for name in _SIZES),
        *((name, ctypes.c_void_p) for name in _ARRAYS),
    ]


@lru_cache(maxsize=2)
def _function(isa: Isa) -> Any:
    text = "\n".join([head(isa, "float32"), file("convolution_step.h")])
    function = built(text, isa, (runtime(isa, "float32"),))[0].elman_convolution_step
    function.argtypes, function.restype = [ctypes.c_void_p], ctypes.c_long
    return function


def can_step(x: Tensor, state: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
    """Return whether :func:`convolution_step` accepts tensors: float32 on a CPU, all but x
    contiguous, the state one that a recorded launch may write to."""
    tensors = [value for value in (x, state, weight, bias) if value is not None]
    launches = NOTED.get()
    return (
        all(type(v) in (Tensor, torch.nn.Parameter) for v in tensors)
        and all(v.dtype is torch.float32 and v.device.type == "cpu" for v in tensors)
        and all(value.is_contiguous() for value in tensors[1:])
        and state.numel() > 0
        and has_compiler()
        and (launches is None or launches.may_change(state))
    )


def convolution_step(
    x: Tensor, state: Tensor, weight: Tensor, bias: Tensor | None, gate: bool
) -> Tensor:
    """The next output [rows, channels].

    Args:
        x [rows, channels]: the next input.
        state [rows, channels, length]: earlier inputs, the latest last; x is written into it.
        weight [channels, taps]: taps <= length.
        bias [channels]: 0 if None.
        gate: whether SiLU follows.
    """
    function = _function(detect())
    out = torch.empty(x.shape, dtype=torch.float32, device="cpu")
    sizes = *state.shape, weight.shape[1], *x.stride(), int(gate)
    operands = [x, weight, bias, state, out]
    addresses = [None if value is None else value.data_ptr() for value in operands]
    call = _Convolution(
        **dict(zip(_SIZES, sizes, strict=True)), **dict(zip(_ARRAYS, addresses, strict=True))
    )
    function(ctypes.addressof(call))
    if not state.is_inference():
        torch.autograd.graph.increment_version(state)
    if (launches := NOTED.get()) is not None:
        launches.add(Launch(function, ctypes.addressof(call), False, (out,), (call, operands)))
    return out

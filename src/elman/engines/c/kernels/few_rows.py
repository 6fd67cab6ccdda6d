"""Linear layers for few rows, with weights of eight bits to float32: the caller of
``few_rows.h``."""

from __future__ import annotations

import ctypes
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from elman.engines.c.calls.noted import NOTED, Launch
from elman.engines.c.compilation.build import built, find_compiler
from elman.engines.c.compilation.isa import Isa, detect
from elman.engines.c.process.threads import on_pool, oversubscription, threads, workers
from elman.engines.c.text.units import file, head, runtime
from elman.errors import EngineError

MOST_ROWS = 16  # of more rows a matrix product is faster
_BITS = {torch.int8: 8, torch.bfloat16: 16, torch.float32: 32}
_WORTH = 1 << 18  # multiplications; with fewer one thread is faster
_HEAD = ("T", "B", "chunk", "workers", "split", "shares", "flags", "done", "awaits")  # runtime.h
_SIZES = ("rows", "inputs", "outputs", "experts", "choices")
_ARRAYS = ("x", "weight", "scale", "bias", "y", "rounded", "factors", "expert", "order")
_BLOCK = 256  # inputs that are rounded with one factor


class _Linear(ctypes.Structure):
    _fields_ = [
        *((f"head_{name}", ctypes.c_long) for name in _HEAD),
        *((name, ctypes.c_long) for name in _SIZES),
        *((name, ctypes.c_void_p) for name in _ARRAYS),
    ]


@lru_cache(maxsize=4)
def _library(dtype: torch.dtype, isa: Isa) -> Any:
    """The compiled kernel of a type of weights. Raises EngineError: see :func:`check_available`."""
    check_available()
    isa = isa.with_integers() if dtype is torch.int8 else isa
    lines = [f"#define WEIGHT_BITS {_BITS[dtype]}", f"#define BLOCK {_BLOCK}"]
    text = "\n".join([head(isa, "float32"), *lines, file("few_rows.h")])
    library = built(text, isa, (runtime(isa, "float32"),))[0]
    on_pool(library)
    library.elman_linear.argtypes, library.elman_linear.restype = [ctypes.c_void_p], ctypes.c_long
    return library


def check_available() -> None:
    """Raise EngineError if there is no compiler."""
    compiler = find_compiler()
    if isinstance(compiler, str):
        raise EngineError(f"linear layers for few rows need a C compiler: {compiler}")


def linear(
    x: Tensor,
    weight: Tensor,
    scale: Tensor | None,
    bias: Tensor | None,
    expert: Tensor | None = None,
) -> Tensor:
    """x Wᵀ · scale + bias of few rows. With integer weights x may be rounded to 16 bits, in blocks
    of 256 inputs with one factor each.

    Args:
        x [rows, inputs]: at most MOST_ROWS, of float32, contiguous.
        weight [outputs, inputs]: of int8, bfloat16 or float32, contiguous; with an axis of experts
            before, if ``expert`` is given.
        scale, bias [outputs]: float32; 1 and 0 if None; with experts as ``weight``.
        expert [rows, choices] or [rows · choices]: int64, contiguous; the weights that a row is
            multiplied by. Rows of y whose expert there is not are zero.

    Returns:
        [rows, outputs], with experts [rows · choices, outputs].

    Raises:
        EngineError: there is no compiler, or it refuses the kernel.
    """
    library = _library(weight.dtype, detect())
    inputs, outputs = weight.shape[-1], weight.shape[-2]
    rows = len(x) if expert is None else expert.numel()
    shares = threads() if rows * inputs * outputs >= _WORTH else 1
    y = torch.empty(rows, outputs, dtype=torch.float32, device="cpu")
    operands: list[Tensor | None] = [x, weight, scale, bias, y, None, None, None, None]
    if weight.dtype is torch.int8:
        blocks = len(x) * -(-inputs // _BLOCK)
        operands[5] = torch.empty(blocks * _BLOCK, dtype=torch.int16, device="cpu")
        operands[6] = torch.empty(blocks, dtype=torch.float32, device="cpu")
    if expert is not None:
        operands[7:] = expert, torch.empty(rows, dtype=torch.int64, device="cpu")
    addresses = [None if value is None else value.data_ptr() for value in operands]
    choices = max(1, rows // max(1, len(x)))
    sizes = (rows, inputs, outputs, 1 if expert is None else len(weight), choices)
    call = _Linear(
        head_workers=min(workers(), shares),
        head_shares=shares,
        **dict(zip(_SIZES, sizes, strict=True)),
        **dict(zip(_ARRAYS, addresses, strict=True)),
    )
    stolen = library.elman_linear(ctypes.byref(call))
    if call.head_workers > 1:
        oversubscription.tell(stolen)
    if (launches := NOTED.get()) is not None:
        argument, team = ctypes.addressof(call), call.head_workers > 1
        launches.add(Launch(library.elman_linear, argument, team, (y,), (call, operands)))
    return y

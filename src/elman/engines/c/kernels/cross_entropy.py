"""Decoder and loss of ``elman.engines.cross_entropy`` in C: the caller of ``cross_entropy.h``."""

from __future__ import annotations

import ctypes
from functools import lru_cache, partial
from typing import Any

import torch
from torch import Tensor

from elman.engines.c.compilation.build import built, find_compiler
from elman.engines.c.compilation.isa import Isa, detect, lacks_pairs
from elman.engines.c.process.memory import fresh
from elman.engines.c.process.threads import on_pool, oversubscription, threads, workers
from elman.engines.c.products.tiles import WIDEST, shuffles, tile_rows
from elman.engines.c.text.units import file, head, runtime, tile_head, tiles
from elman.engines.cross_entropy import Found, Rows, Wants, chunk_rows, verify
from elman.engines.precision import BF16, IEEE
from elman.errors import EngineError

_NAMES = {torch.float32: "float32", torch.float64: "float64"}
_EXACT = {torch.float32: 1e-5, torch.float64: 1e-12}  # largest relative RMS error accepted
_WORTH = 1 << 18  # multiplications; with fewer one thread is faster
_FEWEST = 2  # rows: a single row would use one lane of each vector
_PRODUCTS = [f"{kind}{n}" for kind in ("rows", "outer") for n in range(1, WIDEST + 1)]
_HEAD = ("T", "B", "chunk", "workers", "split", "shares", "flags", "done", "awaits")  # runtime.h
_SIZES = ("N", "H", "V", "rows")
_ARRAYS = ("x", "weight", "bias", "scale", "targets", "losses", "d_x", "d_weight", "d_bias")
_AREAS = 16  # areas of the kernel's arena


class _Decoder(ctypes.Structure):
    _fields_ = [
        *((f"head_{name}", ctypes.c_long) for name in _HEAD),
        *((name, ctypes.c_long) for name in _SIZES),
        ("smoothing", ctypes.c_double),
        *((name, ctypes.c_void_p) for name in (*_ARRAYS, "arena")),
        ("areas", ctypes.c_void_p * _AREAS),
    ]


@lru_cache(maxsize=4)
def _library(dtype: torch.dtype, isa: Isa) -> Any:
    """The compiled kernel of a dtype, verified against torch's operations; None without a compiler,
    or the error if it fails."""
    if isinstance(find_compiler(), str):
        return None
    name = _NAMES[dtype]
    constants = f"#define TILE {tile_rows(isa, WIDEST)}\n#define PAIRED {int(isa.pairs)}"
    texts = [head(isa, name), tile_head(), shuffles(isa.lanes(name)), constants]
    text = "\n".join([*texts, file("cross_entropy.h")])
    precision = BF16 if isa.pairs else IEEE
    try:
        linked = (runtime(isa, name), *tiles(isa, name, _PRODUCTS))
        library = _declared(built(text, isa, linked)[0])
        like = torch.empty(0, dtype=dtype)
        verify("c", partial(_computed, library), like, _EXACT[dtype], precision)
    except EngineError as error:
        return error
    return library


def _declared(library: Any) -> Any:
    """The library on torch's pool, its functions declared; BuildError if it lacks one."""
    on_pool(library)
    for function in (library.elman_cross_entropy, library.elman_cross_entropy_bytes):
        function.argtypes, function.restype = [ctypes.c_void_p], ctypes.c_long
    return library


def losses_and_gradients(rows: Rows, scale: Tensor, wants: Wants) -> Found | None:
    """Losses and gradients, see :func:`elman.engines.cross_entropy.in_torch`; None for types and
    devices without a kernel, for a single row, or without a compiler. Rows in bfloat16 are computed
    in float32, with products of bfloat16.

    Raises:
        BuildError: the compiler refuses the kernel.
        DisagreementError: the kernel's results differ from torch's.
    """
    dtype = rows.x.dtype
    if rows.x.device.type != "cpu" or len(rows.x) < _FEWEST:
        return None
    if dtype is torch.bfloat16 and lacks_pairs() is None:
        bias = None if rows.bias is None else rows.bias.float()
        wide = (rows.x.float(), rows.weight.float(), bias)
        rows = Rows(*wide, rows.targets, rows.smoothing, BF16)
    if rows.x.dtype not in _NAMES:
        return None
    isa = detect()
    library = _library(rows.x.dtype, isa.with_pairs() if rows.precision == BF16 else isa)
    if isinstance(library, EngineError):
        raise library
    if library is None:
        return None
    losses, *gradients = _computed(library, rows, scale, wants)
    return Found(losses, *(None if value is None else value.to(dtype) for value in gradients))


def _computed(library: Any, rows: Rows, scale: Tensor, wants: Wants) -> Found:
    """One call of the kernel."""
    x, weight, bias = rows.x, rows.weight, rows.bias
    results = Found(
        fresh((len(x),), x.dtype),
        fresh(x.shape, x.dtype) if wants.x else None,
        fresh(weight.shape, x.dtype) if wants.weight else None,
        fresh((len(weight),), x.dtype) if wants.bias else None,
    )
    operands = [x, weight, bias, scale, rows.targets]
    contiguous = [None if value is None else value.contiguous() for value in operands]
    addresses = [None if value is None else value.data_ptr() for value in (*contiguous, *results)]
    shares = threads() if x.numel() * len(weight) >= _WORTH else 1
    decoder = _Decoder(
        head_workers=min(workers(), shares),
        head_shares=shares,
        N=len(x),
        H=x.shape[1],
        V=len(weight),
        rows=chunk_rows(rows),
        smoothing=rows.smoothing,
        **dict(zip(_ARRAYS, addresses, strict=True)),
    )
    arena = fresh((library.elman_cross_entropy_bytes(ctypes.byref(decoder)),), torch.uint8)
    decoder.arena = arena.data_ptr()
    stolen = library.elman_cross_entropy(ctypes.byref(decoder))
    if decoder.head_workers > 1:
        oversubscription.tell(stolen)
    return results

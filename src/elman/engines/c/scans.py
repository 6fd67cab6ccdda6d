"""Linear recurrences in C: channels, samples or time are shared by threads."""

from __future__ import annotations

import ctypes
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from elman.engines.c.build import built, find_compiler
from elman.engines.c.isa import detect
from elman.engines.c.memory import fresh
from elman.engines.c.shared import file, head, runtime
from elman.engines.c.threads import pool, threads
from elman.errors import BuildError

_NAMES = {torch.float32: "float32", torch.float64: "float64"}
_LONG_ENOUGH = 256  # steps per piece of time that are worth another thread
_WORTH = 1 << 14  # elements below which one thread is faster
_INT = ("T", "N", "n", "pieces", "workers")
_ARRAYS = ("A", "b", "y0", "y", "dy", "out", "d_A", "d_b", "d_y0", "ends")


class _Scan(ctypes.Structure):
    _fields_ = [(name, ctypes.c_long) for name in _INT] + [
        (name, ctypes.c_void_p) for name in _ARRAYS
    ]


@lru_cache(maxsize=2)
def _library(dtype: torch.dtype) -> Any:
    """The compiled scans of a dtype; None without a compiler."""
    isa = detect()
    if isinstance(find_compiler(), str):
        return None
    name = _NAMES[dtype]
    text = "\n".join([head(isa, name), "typedef T Real;", file("scan.h"), ""])
    try:
        return _declared(built(text, isa, (runtime(isa, name),))[0])
    except BuildError:
        return None


def _declared(library: Any) -> Any:
    """The library on torch's pool, its functions' types told; BuildError if it lacks one."""
    shared = pool()
    library.elman_threads.argtypes = [ctypes.c_void_p] * 3
    library.elman_threads.restype = None
    library.elman_threads(shared.parallel, shared.number, shared.count)
    for name in ("channels", "samples", "channels_backward", "samples_backward", "pieces"):
        function = getattr(library, f"elman_scan_{name}")
        function.argtypes, function.restype = [ctypes.c_void_p], None
    return library


def _call(function: Any, arrays: dict[str, Tensor], **numbers: int) -> None:
    addresses = {name: value.data_ptr() for name, value in arrays.items()}
    function(ctypes.byref(_Scan(**numbers, **addresses)))


def forward(A: Tensor, b: Tensor, y0: Tensor, units: bool) -> Tensor | None:
    """All y[t] = A[t] y[t-1] + b[t].

    Args:
        A: [T, n, n, N] if ``units``, else [T, N, n, n].
        b: [T, n, N], or [T, N, n].
        y0: [n, N], or [N, n].
        units: whether channels come last.

    Returns:
        y as b; None if this dtype has no scan here, or there is no compiler.
    """
    library = _library(b.dtype) if b.dtype in _NAMES else None
    if library is None or not b.numel():
        return None
    T = b.shape[0]
    n, N = b.shape[1:] if units else b.shape[:0:-1]
    A, b, y0 = A.contiguous(), b.contiguous(), y0.contiguous()
    out = fresh(b.shape, b.dtype)
    workers = threads() if A.numel() >= _WORTH else 1
    arrays = {"A": A, "b": b, "y0": y0, "out": out}
    numbers = {"T": T, "N": N, "n": n, "workers": workers, "pieces": 1}
    if not units:
        _call(library.elman_scan_samples, arrays, **numbers)
        return out
    lanes = 64 // b.dtype.itemsize
    if n > 1 or workers == 1 or lanes * workers <= N or _LONG_ENOUGH * (workers + 1) > T:
        _call(library.elman_scan_channels, arrays, **numbers)
        return out
    arrays["ends"] = torch.empty(2 * workers * N, dtype=b.dtype)
    _call(library.elman_scan_pieces, arrays, **(numbers | {"pieces": workers}))
    return out


def backward(
    A: Tensor, y0: Tensor, y: Tensor, dy: Tensor, units: bool
) -> tuple[Tensor, Tensor, Tensor] | None:
    """Cotangents of A, b and y0; arguments as of :func:`forward`, y and dy as b."""
    library = _library(dy.dtype) if dy.dtype in _NAMES else None
    if library is None or not dy.numel():
        return None
    n, N = dy.shape[1:] if units else dy.shape[:0:-1]
    A, y0, y, dy = A.contiguous(), y0.contiguous(), y.contiguous(), dy.contiguous()
    d_A, d_b, d_y0 = (fresh(v.shape, v.dtype) for v in (A, dy, y0))
    arrays = {"A": A, "y0": y0, "y": y, "dy": dy, "d_A": d_A, "d_b": d_b, "d_y0": d_y0}
    workers = threads() if A.numel() >= _WORTH else 1
    run = library.elman_scan_channels_backward if units else library.elman_scan_samples_backward
    _call(run, arrays, T=dy.shape[0], N=N, n=n, pieces=1, workers=workers)
    return d_A, d_b, d_y0

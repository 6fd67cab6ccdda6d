"""Linear recurrences in C: channels, samples or time are shared by threads."""

from __future__ import annotations

import ctypes
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from elman.engines.c.compilation.build import built, find_compiler
from elman.engines.c.compilation.isa import Isa, detect
from elman.engines.c.process.memory import fresh
from elman.engines.c.process.threads import on_pool, threads
from elman.engines.c.text.units import file, head, runtime
from elman.errors import DisagreementError, EngineError, warn_once

_NAMES = {torch.float32: "float32", torch.float64: "float64"}
_LONG_ENOUGH = 256  # steps per piece of time; shorter pieces do not pay for another thread
_WORTH = 1 << 14  # elements; with fewer one thread is faster
_EXACT = {torch.float32: 1e-5, torch.float64: 1e-12}  # largest relative RMS error accepted
_STEPS = 37  # of the comparison, not a multiple of any block
_TRIED = (  # numbers of a system, systems, whether channels come last, pieces of time
    *((n, 35, units, 1) for n in (1, 2, 3, 9) for units in (False, True)),
    (1, 3, True, 2),
)
_INT = ("T", "N", "n", "pieces", "workers")
_ARRAYS = ("A", "b", "y0", "y", "dy", "out", "d_A", "d_b", "d_y0", "ends")


class _Scan(ctypes.Structure):
    _fields_ = [(name, ctypes.c_long) for name in _INT] + [
        (name, ctypes.c_void_p) for name in _ARRAYS
    ]


@lru_cache(maxsize=4)
def _library(dtype: torch.dtype, isa: Isa) -> Any:
    """The compiled scans of a dtype, verified against the recurrence; None without a compiler, or
    if they fail, which is reported once."""
    if isinstance(find_compiler(), str):
        return None
    name = _NAMES[dtype]
    text = "\n".join([head(isa, name), "typedef T Real;", file("scan.h"), ""])
    try:
        library = _declared(built(text, isa, (runtime(isa, name),))[0])
        _verify(library, dtype)
    except EngineError as error:
        warn_once(f"linear recurrences run in torch's operations, which is slow: {error}")
        return None
    return library


def _verify(library: Any, dtype: torch.dtype) -> None:
    """Compare the scans with the recurrence, one step after another in float64; once per process.

    Raises:
        DisagreementError: the results differ.
    """
    source = torch.Generator().manual_seed(0)
    for n, N, units, pieces in _TRIED:
        A, b, y0, dy = (
            torch.randn(shape, generator=source, dtype=dtype)
            for shape in ((_STEPS, N, n, n), (_STEPS, N, n), (N, n), (_STEPS, N, n))
        )
        A /= 2 * n
        want = _one_by_one(*(value.double() for value in (A, b, y0, dy)))
        if units:  # channels last
            A, b, y0, dy = (
                value.movedim(value.dim() - k, -1) for value, k in zip((A, b, y0, dy), (3, 2, 2, 2))
            )
        y = _forward(library, A, b, y0, units, 2, pieces)
        got = (y, *_backward(library, A, y0, y, dy, units, 2))
        for name, value, exact in zip(("y", "d_A", "d_b", "d_y0"), got, want, strict=True):
            value = value.movedim(-1, value.dim() - (3 if name == "d_A" else 2)) if units else value
            off = float((value.double() - exact).norm() / exact.norm())
            if not off <= _EXACT[dtype]:
                message = f"{name} of a linear recurrence of {n} numbers is off by {off:.1e}"
                raise DisagreementError("c", "linear_scan", message)


def _one_by_one(A: Tensor, b: Tensor, y0: Tensor, dy: Tensor) -> tuple[Tensor, ...]:
    """All y, and the cotangents of A, b and y0 by those of y; A is [T, N, n, n]."""
    y, d = [y0], [torch.zeros_like(y0)]
    for matrix, rest in zip(A, b, strict=True):
        y.append((matrix @ y[-1].unsqueeze(-1)).squeeze(-1) + rest)
    for t in reversed(range(len(A))):
        behind = A[t + 1].mT @ d[-1].unsqueeze(-1) if t + 1 < len(A) else d[-1].unsqueeze(-1)
        d.append(dy[t] + behind.squeeze(-1))
    d_b = torch.stack(d[:0:-1])
    d_A = d_b.unsqueeze(-1) * torch.stack(y[:-1]).unsqueeze(-2)
    return torch.stack(y[1:]), d_A, d_b, (A[0].mT @ d_b[0].unsqueeze(-1)).squeeze(-1)


def _declared(library: Any) -> Any:
    """The library on torch's pool, its functions declared; BuildError if it lacks one."""
    on_pool(library)
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
    library = _library(b.dtype, detect()) if b.dtype in _NAMES else None
    if library is None or not b.numel():
        return None
    T, n, N = b.shape[0], *(b.shape[1:] if units else b.shape[:0:-1])
    workers = threads() if A.numel() >= _WORTH else 1
    lanes = 64 // b.dtype.itemsize  # elements of a cache line, the widest vector
    # with a cache line of channels per thread, threads share channels and read each array once;
    # else time is cut, into pieces of which all but the first are walked twice
    sequential = n > 1 or lanes * workers <= N or _LONG_ENOUGH * (workers + 1) > T
    pieces = 1 if not units or workers == 1 or sequential else workers
    return _forward(library, A, b, y0, units, workers, pieces)


def _forward(
    library: Any, A: Tensor, b: Tensor, y0: Tensor, units: bool, workers: int, pieces: int
) -> Tensor:
    """One call, with time cut into ``pieces``."""
    n, N = b.shape[1:] if units else b.shape[:0:-1]
    A, b, y0 = A.contiguous(), b.contiguous(), y0.contiguous()
    out = fresh(b.shape, b.dtype)
    arrays = {"A": A, "b": b, "y0": y0, "out": out}
    run = library.elman_scan_channels if units else library.elman_scan_samples
    if pieces > 1:
        run = library.elman_scan_pieces
        arrays["ends"] = torch.empty(2 * pieces * N, dtype=b.dtype, device="cpu")
    _call(run, arrays, T=b.shape[0], N=N, n=n, pieces=pieces, workers=workers)
    return out


def backward(
    A: Tensor, y0: Tensor, y: Tensor, dy: Tensor, units: bool
) -> tuple[Tensor, Tensor, Tensor] | None:
    """Cotangents of A, b and y0; for arguments see :func:`forward`, y and dy are shaped as b."""
    library = _library(dy.dtype, detect()) if dy.dtype in _NAMES else None
    if library is None or not dy.numel():
        return None
    workers = threads() if A.numel() >= _WORTH else 1
    return _backward(library, A, y0, y, dy, units, workers)


def _backward(
    library: Any, A: Tensor, y0: Tensor, y: Tensor, dy: Tensor, units: bool, workers: int
) -> tuple[Tensor, Tensor, Tensor]:
    """One call."""
    n, N = dy.shape[1:] if units else dy.shape[:0:-1]
    A, y0, y, dy = A.contiguous(), y0.contiguous(), y.contiguous(), dy.contiguous()
    d_A, d_b, d_y0 = (fresh(v.shape, v.dtype) for v in (A, dy, y0))
    arrays = {"A": A, "y0": y0, "y": y, "dy": dy, "d_A": d_A, "d_b": d_b, "d_y0": d_y0}
    run = library.elman_scan_channels_backward if units else library.elman_scan_samples_backward
    _call(run, arrays, T=dy.shape[0], N=N, n=n, pieces=1, workers=workers)
    return d_A, d_b, d_y0

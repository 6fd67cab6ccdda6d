"""Allocator for large results: unreferenced storages are reused, new ones use huge pages.

The first touch of fresh memory costs more than writing to it: the system clears it, and takes a
fault per page. torch has no cache of its own for the CPU, so each large result would pay that anew.
"""

from __future__ import annotations

import ctypes
import math
import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor

from elman.engines.forks import own_threads
from elman.torch_internals import COUNTS_USERS, count_users

LARGE = 4 << 20  # (bytes) smaller results are torch's own affair
LIMIT = 512 << 20  # (bytes) of results kept at most, in use or not; and of spare buffers
_SMALL = 1 << 17  # (bytes) of what may lie about as a pattern of further ones
_PAGE = 2 << 20  # (bytes) of a large page
_HUGEPAGE = 14  # MADV_HUGEPAGE of Linux
_storages: deque[Any] = deque()  # storages, those used last at the end
address = Tensor.data_ptr
contiguous = Tensor.contiguous


def address_or_null(value: Tensor | None) -> int:
    """Address of a tensor; 0 for None."""
    return 0 if value is None else value.data_ptr()


def contiguous_or_none(value: Tensor | None) -> Tensor | None:
    """A contiguous tensor of the same values; None for None."""
    return None if value is None else value.contiguous()


def rows_of(x: Tensor, joined: bool = True) -> tuple[Tensor, int, int]:
    """A tensor [T, B, ...] as rows: itself if it can be, else a copy; (tensor, t, row).

    Args:
        x: the tensor.
        joined: rows of several steps are read at once, so all must be at one distance. Else those
            of a step must, and one that is expanded over time is read where it lies.
    """
    T, B, *inner = x.shape
    if x.is_contiguous():
        row = inner[0] if inner else 1
        return x, B * row, row
    t, b, *inner = x.stride()
    if inner and inner[0] != 1 and x.shape[2] > 1:
        if t == 0 and b == 0:  # an expanded gradient: one row serves all
            return x[0, 0].contiguous(), 0, 0
        x = x.contiguous()
        t, b = x.stride()[:2]
    elif joined and t != B * b and B > 1 and T > 1:
        x = x.contiguous()
        t, b = x.stride()[:2]
    return x, t, t if B == 1 else b


def _next_storage(storages: deque[Any]) -> tuple[Any, int]:
    """Take the storage that was used longest ago, and count the references to it in Python."""
    storage = storages.popleft()
    return storage, sys.getrefcount(storage)


# What ``_next_storage`` counts if nobody else holds a storage: Python 3.14 lends local variables
# to calls without counting them.
_, _SOLE_OWNER = _next_storage(deque([object()]))


@cache
def _advise() -> Callable[[int, int, int], int] | None:
    """The system's ``madvise``; None where there is none."""
    if sys.platform != "linux":
        return None
    try:
        function = ctypes.CDLL(None).madvise
    except (OSError, AttributeError):
        return None
    function.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    function.restype = ctypes.c_int
    return function


def in_large_pages(tensor: Tensor) -> Tensor:
    """A tensor whose memory nobody has touched yet; the system is asked for large pages if it is
    large."""
    size, advise = tensor.nbytes, _advise()
    if size >= LARGE and advise is not None:
        start = -(-tensor.data_ptr() // _PAGE) * _PAGE
        advise(start, (tensor.data_ptr() + size - start) // _PAGE * _PAGE, _HUGEPAGE)
    return tensor


def fresh(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """An uninitialised tensor, contiguous."""
    size = math.prod(shape) * dtype.itemsize
    if size < LARGE:
        return torch.empty(shape, dtype=dtype, device="cpu")
    again = _unused(size, shape, dtype)
    if again is not None:
        return again
    tensor = in_large_pages(torch.empty(shape, dtype=dtype, device="cpu"))
    if COUNTS_USERS and size <= LIMIT:
        _storages.append(tensor.untyped_storage())
        while sum(storage.nbytes() for storage in tuple(_storages)) > LIMIT:
            _storages.popleft()
    return tensor


def _unused(size: int, shape: Sequence[int], dtype: torch.dtype) -> Tensor | None:
    """A tensor in an unreferenced storage of about this size, or None.

    A storage that was moved into shared memory may be read by another process: it is let go. While
    one is looked at it is in nobody else's hands, so that two threads never get the same.
    """
    if not COUNTS_USERS:
        return None
    strides = [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
    for _ in range(len(_storages)):
        try:
            storage, references = _next_storage(_storages)
        except IndexError:  # another thread took it
            return None
        if storage.is_shared():
            continue
        tensor = None
        in_use = references > _SOLE_OWNER or count_users(storage) > 1
        if size <= storage.nbytes() <= size + size // 8 and not in_use:
            tensor = torch.empty(0, dtype=dtype, device="cpu").set_(storage, 0, shape, strides)
        _storages.append(storage)
        if tensor is not None:
            return tensor
    return None


class Spares(deque[Tensor]):
    """Buffers that calls of one kernel gave back: at most two, for its next calls."""

    def __init__(self) -> None:
        super().__init__(maxlen=2)
        with _spares_lock:
            _spares.add(self)

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return id(self)

    def nbytes(self) -> int:
        """Memory of the buffers (bytes)."""
        return sum(buffer.nbytes for buffer in tuple(self))


_spares: WeakSet[Spares] = WeakSet()
_spares_lock = threading.Lock()


def _make_room(size: int, user: Spares) -> None:
    """Free spare buffers of other kernels until a new one (bytes) fits the limit."""
    with _spares_lock:
        everyone = list(_spares)
    total = size + sum(spares.nbytes() for spares in everyone)
    for spares in everyone:
        if total <= LIMIT:
            return
        if spares is not user:
            total -= spares.nbytes()
            spares.clear()


def release() -> None:
    """Free cached memory that is not in use."""
    _storages.clear()
    with _spares_lock:
        everyone = list(_spares)
    for spares in everyone:
        spares.clear()


class Supply:
    """Allocates uninitialised memory for a kernel's results.

    With the environment variable ELMAN_POISON it is filled with NaN, so that an element that was
    never written shows.
    """

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype
        self.poison = bool(os.environ.get("ELMAN_POISON"))

    def empty(self, shape: Sequence[int]) -> Tensor:
        """Of these sizes."""
        return self._filled(fresh(shape, self.dtype))

    def like(self, tensor: Tensor) -> Tensor:
        """For something of the same sizes, contiguous."""
        if not tensor.is_contiguous() or tensor.nbytes >= LARGE:
            return self.empty(tensor.shape)
        return self._filled(torch.empty_like(tensor))

    def maker(self, shape: Sequence[int]) -> Callable[[], Tensor]:
        """:meth:`empty` of these sizes, as fast as there is for small ones."""
        if self.poison or math.prod(shape) * self.dtype.itemsize > _SMALL:
            return partial(self.empty, tuple(shape))
        return partial(torch.empty_like, torch.empty(shape, dtype=self.dtype, device="cpu"))

    def maker_like(self, tensor: Tensor) -> Callable[[Tensor], Tensor]:
        """:meth:`like`, as fast as there is for tensors of the sizes and strides of one."""
        plain = tensor.is_contiguous() and tensor.nbytes < LARGE and not self.poison
        return torch.empty_like if plain else self.like

    def zeros(self, tensor: Tensor) -> Tensor:
        """Zeros for something of the same sizes."""
        with own_threads():
            return torch.zeros(tensor.shape, dtype=self.dtype, device="cpu")

    def take(self, spare: Spares, count: int) -> Tensor:
        """A buffer that an earlier call gave back if it is large enough, else a new one.

        Unlike results it is nobody else's: the list is all that is kept of it.
        """
        try:
            buffer = spare.pop()
        except IndexError:  # or another thread took it
            buffer = None
        if buffer is None or buffer.numel() < count:
            size = count * self.dtype.itemsize
            if size >= LARGE:
                _make_room(size, spare)
            return self._filled(in_large_pages(torch.empty(count, dtype=self.dtype, device="cpu")))
        return self._filled(buffer)

    def _filled(self, tensor: Tensor) -> Tensor:
        if self.poison:
            poison(tensor)
        return tensor


def poison(tensor: Tensor) -> None:
    """Fill with NaN, also what was made in inference mode."""
    with torch.inference_mode(tensor.is_inference()), own_threads():
        tensor.fill_(float("nan"))


def full_storage(buffer: Tensor) -> Tensor:
    """The full storage of a tensor at its beginning."""
    storage = buffer.untyped_storage()
    if storage.nbytes() == buffer.nbytes:
        return buffer
    return torch.empty(0, dtype=buffer.dtype, device="cpu").set_(storage)

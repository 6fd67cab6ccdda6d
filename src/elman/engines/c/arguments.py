"""How tensors are handed to a kernel: where they lie, and how far apart their rows are."""

from __future__ import annotations

from typing import Any

from torch import Tensor

NO_ROWS: tuple[tuple[Any, ...], ...] = ((), (), ())
address = Tensor.data_ptr
contiguous = Tensor.contiguous


def address_or_null(value: Tensor | None) -> int:
    """Where a tensor lies; 0 for none."""
    return 0 if value is None else value.data_ptr()


def contiguous_or_none(value: Tensor | None) -> Tensor | None:
    """A contiguous tensor with the same numbers; none for none."""
    return None if value is None else value.contiguous()


def rows_of(x: Tensor) -> tuple[Tensor, int, int]:
    """A tensor [T, B, ...] as rows at one distance: itself if it is, else a copy; (tensor, t,
    row)."""
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
    elif t != B * b and B > 1 and T > 1:
        x = x.contiguous()
        t, b = x.stride()[:2]
    return x, t, t if B == 1 else b

"""Memory of tensors."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportAttributeAccessIssue=false
# (what is private has no types)

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from elman.torch_internals.lookup import private

__all__ = ["COUNTS_USERS", "copy_all", "count_users", "memory_of"]


_count_users: Callable[[int], int] | None = private("torch._C", "_storage_Use_Count", None)
_address: Any = private("torch.UntypedStorage", "_cdata", None)
COUNTS_USERS = _count_users is not None and _address is not None
"""Whether :func:`count_users` knows; without its names no memory is taken again."""


def count_users(storage: Any) -> int:
    """Count the C++ references to a storage; its Python object is one of them."""
    assert _count_users is not None, "COUNTS_USERS says so"
    return _count_users(storage._cdata)


def _copy_each(targets: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    for target, value in zip(targets, values, strict=True):
        target.copy_(value)


copy_all: Callable[[Sequence[Tensor], Sequence[Tensor]], Any] = private(
    "torch", "_foreach_copy_", _copy_each
)
"""Copy tensors into others; on a GPU, tensors of one type by one kernel.

Without it: one after another.
"""


def memory_of(tensor: Tensor) -> int:
    """A number of the memory that a tensor lies in."""
    return tensor.untyped_storage()._cdata

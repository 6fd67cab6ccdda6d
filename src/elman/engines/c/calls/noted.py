"""Record launches of kernels, so that they can be replayed at the same addresses."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from ctypes import c_void_p, cast
from typing import Any

from torch import Tensor


class Launch:
    """A kernel's function and an argument block of its own.

    Args:
        function: of the kernel.
        argument: the address of its block.
        team: whether several threads run it.
        results: tensors that it has written.
        owners: further owners of the addresses in the block, which must stay alive.
    """

    __slots__ = ("_owners", "argument", "function", "results", "team")

    def __init__(
        self, function: Any, argument: int, team: bool, results: Sequence[Tensor], owners: Any
    ) -> None:
        self.function = cast(function, c_void_p).value
        self.argument, self.team = argument, team
        self.results, self._owners = results, owners


class Launches:
    """Launches of a span of a program, in order.

    Attributes:
        add: called with each launch after it has run.
        may_change: whether a kernel may write to one of its argument tensors.
        complete: whether all kernels were recorded.
    """

    def __init__(self, add: Callable[[Launch], None], may_change: Callable[[Tensor], bool]) -> None:
        self.add, self.may_change, self.complete = add, may_change, True


NOTED: ContextVar[Launches | None] = ContextVar("elman_launches", default=None)


@contextmanager
def noted(launches: Launches) -> Iterator[None]:
    """Record the launches of kernels inside the block."""
    token = NOTED.set(launches)
    try:
        yield
    finally:
        NOTED.reset(token)

"""Notes the launches of kernels, so that they can be run again at the same addresses."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from torch import Tensor

from elman.engines.c.threads import oversubscription


class Launch:
    """A kernel's function and its argument block, which nobody else uses.

    Args:
        function: of the kernel.
        argument: its block, or the address of it.
        team: whether several threads run it.
        results: tensors that it has written.
        owners: what else the addresses in the block belong to.
    """

    __slots__ = ("_argument", "_function", "_owners", "_team", "results")

    def __init__(
        self, function: Any, argument: Any, team: bool, results: Sequence[Tensor], owners: Any
    ) -> None:
        self._function, self._argument, self._team = function, argument, team
        self.results, self._owners = results, owners

    def __call__(self) -> None:
        """Run it again: it reads and writes the same memory."""
        stolen = self._function(self._argument)
        if self._team:
            oversubscription.tell(stolen)


class Launches:
    """Launches of a span of a program, in order.

    Attributes:
        add: called with each, which has run.
        complete: whether all kernels were noted.
    """

    def __init__(self, add: Callable[[Launch], None]) -> None:
        self.add, self.complete = add, True


NOTED: ContextVar[Launches | None] = ContextVar("elman_launches", default=None)


@contextmanager
def noted(launches: Launches) -> Iterator[None]:
    """Note the launches of kernels inside of the block."""
    token = NOTED.set(launches)
    try:
        yield
    finally:
        NOTED.reset(token)

"""Calls that come again: from their second time on the host runs what it did, and decides nothing.

What a call of a kernel does between its launches (checks, names, views, strides) depends on the
shapes alone. It is recorded once and written as a straight-line function of torch's operations and
launches, whose kernels get addresses instead of views.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Sequence
from typing import Any, TypeVar

from torch import Tensor

from elman.engines.precision import precision
from elman.engines.triton.recording import UnrecordableError, recording
from elman.engines.triton.straight_line import StraightLine
from elman.torch_internals import SEES_OPERATIONS

_KEPT = 64  # kinds of calls of one direction of a kernel: recorded, and seen once
Found = TypeVar("Found")


class Replays:
    """One direction of a kernel: its recorded calls.

    Attributes:
        replayed: how many calls were.
    """

    def __init__(self) -> None:
        self.replayed = 0
        self._functions: dict[Hashable, StraightLine | None] = {}  # None: it cannot be recorded
        self._seen: dict[Hashable, None] = {}
        self._lock = threading.Lock()

    @property
    def texts(self) -> list[str]:
        """The functions."""
        return [made.text for made in self._functions.values() if made is not None]

    def __call__(
        self, run: Callable[[], Found], given: Sequence[Tensor | None], facts: Hashable
    ) -> Found:
        """What ``run()`` returns.

        Args:
            run: a function of the tensors given and of what the facts tell, and of nothing else.
            given: all tensors that it reads or writes to, and does not make.
            facts: what else it depends on.
        """
        if not SEES_OPERATIONS:
            return run()
        key = (
            facts,
            precision(),
            *[
                value
                if value is None
                else (value.shape, value.stride(), value.dtype, value.data_ptr() & 15)
                for value in given
            ],
        )
        found = self._functions.get(key)
        if found is not None:
            self.replayed += 1
            return found(*given)
        if key in self._functions or not self._again(key):
            return run()
        return self._recorded(key, run, given)

    def _again(self, key: Hashable) -> bool:
        """Whether a call of this kind has been seen before."""
        with self._lock:
            if key in self._seen:
                del self._seen[key]
                return True
            _put(self._seen, key, None)
            return False

    def _recorded(
        self, key: Hashable, run: Callable[[], Found], given: Sequence[Tensor | None]
    ) -> Found:
        """Run it, and keep what it did."""
        arguments = [value for value in given if value is not None]
        if len({id(value) for value in arguments}) < len(arguments):
            return run()  # whose argument it is cannot be known
        with recording(arguments) as notes:
            found = run()
        try:
            made = StraightLine(notes, found, [value is not None for value in given])
        except UnrecordableError:
            made = None
        with self._lock:
            _put(self._functions, key, made)
        return found


def _put(kept: dict[Hashable, Any], key: Hashable, value: Any) -> None:
    """Keep one more; the oldest gives way."""
    if len(kept) >= _KEPT:
        del kept[next(iter(kept))]
    kept[key] = value

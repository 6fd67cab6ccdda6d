"""Replay of repeated calls: recorded at the second call, then run without host decisions.

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
ResultT = TypeVar("ResultT")


class Replays:
    """Recorded calls of one direction of a kernel.

    Attributes:
        replayed: how many calls were.
    """

    def __init__(self) -> None:
        self.replayed = 0
        self._functions: dict[Hashable, StraightLine | None] = {}  # None: it cannot be recorded
        self._first_calls: dict[Hashable, None] = {}
        self._lock = threading.Lock()

    @property
    def texts(self) -> list[str]:
        """The functions."""
        return [function.text for function in self._functions.values() if function is not None]

    def __call__(
        self, run: Callable[[], ResultT], tensors: Sequence[Tensor | None], facts: Hashable
    ) -> ResultT:
        """What ``run()`` returns.

        Args:
            run: a function of the tensors given and of what the facts tell, and of nothing else.
            tensors: all tensors that it reads or writes to, and does not make.
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
                for value in tensors
            ],
        )
        function = self._functions.get(key)
        if function is not None:
            self.replayed += 1
            return function(*tensors)
        if key in self._functions or not self._again(key):
            return run()
        return self._recorded(key, run, tensors)

    def _again(self, key: Hashable) -> bool:
        """Whether a call of this kind has been seen before."""
        with self._lock:
            if key in self._first_calls:
                del self._first_calls[key]
                return True
            _put(self._first_calls, key, None)
            return False

    def _recorded(
        self, key: Hashable, run: Callable[[], ResultT], tensors: Sequence[Tensor | None]
    ) -> ResultT:
        """Run and record a call."""
        arguments = [value for value in tensors if value is not None]
        if len({id(value) for value in arguments}) < len(arguments):
            return run()  # whose argument it is cannot be known
        with recording(arguments) as notes:
            result = run()
        try:
            function = StraightLine(notes, result, [value is not None for value in tensors])
        except UnrecordableError:
            function = None
        with self._lock:
            _put(self._functions, key, function)
        return result


def _put(cache: dict[Hashable, Any], key: Hashable, value: Any) -> None:
    """Add an entry, evicting the oldest."""
    if len(cache) >= _KEPT:
        del cache[next(iter(cache))]
    cache[key] = value

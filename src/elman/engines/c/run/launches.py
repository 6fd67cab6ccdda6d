"""Concurrent calls of several kernels: layers staggered by a chunk of time, or directions."""

from __future__ import annotations

import ctypes
from collections import deque
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from elman.engines.c.calls.context import AWAITS, DONE, Frame
from elman.engines.c.process.threads import oversubscription


@dataclass(frozen=True)
class Entry:
    """One function of a kernel: for a call alone, and its two parts for concurrent launches."""

    alone: Any
    prepare: int
    run: int
    together: Any

    @staticmethod
    def of(library: Any, name: str) -> Entry:
        """``forward``, ``backward`` or ``direct`` of a compiled kernel."""

        def address(suffix: str) -> int:
            function = getattr(library, f"elman_{name}_{suffix}")
            return ctypes.cast(function, ctypes.c_void_p).value or 0

        alone, together = getattr(library, f"elman_{name}"), library.elman_launch_tasks
        alone.restype, alone.argtypes = ctypes.c_long, [ctypes.c_void_p]
        together.restype = ctypes.c_long
        together.argtypes = [ctypes.c_void_p, ctypes.c_long, ctypes.c_long]
        return Entry(alone, address("prepare"), address("run"), together)


class ConcurrentLaunches:
    """Collects calls, then runs them concurrently on teams of threads.

    Every call has the same number of workers: a team. Results are valid only after :meth:`run`.

    Args:
        chained: whether each call reads the output of the previous one, chunk by chunk, as soon as
            it is written.
        threads: number of threads of all teams together.
    """

    def __init__(self, chained: bool, threads: int) -> None:
        self._chained, self._threads = chained, threads
        self._tasks: list[int] = []
        self._references: list[Any] = []
        self._back: list[tuple[deque[Tensor], Tensor]] = []
        self._before = 0
        self._together: Any = None

    def add(self, frame: Frame, entry: Entry, numbers: tuple[int, ...], references: Any) -> None:
        """Add a call: its numbers (:meth:`Frame.call`) and objects to keep alive until it has
        run."""
        block = frame.filled(*numbers)
        address = ctypes.addressof(block)
        if self._chained:
            block[AWAITS] = self._before
            self._before = address + 8 * DONE
        self._tasks += (entry.prepare, entry.run, address)
        self._references.append((block, references))
        self._together = entry.together

    def hand_back(self, spare: deque[Tensor], buffer: Tensor) -> None:
        """Add a buffer that may be reused after the run."""
        self._back.append((spare, buffer))

    def run(self) -> None:
        """Run all calls; return when all have ended."""
        if self._tasks:
            tasks = (ctypes.c_int64 * len(self._tasks))(*self._tasks)
            stolen = self._together(tasks, len(self._tasks) // 3, self._threads)
            if self._threads > 1:
                oversubscription.tell(stolen)
        for spare, buffer in self._back:
            spare.append(buffer)

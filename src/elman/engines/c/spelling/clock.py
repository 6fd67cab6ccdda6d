"""Timing code in kernels: seconds of each phase of a call. The code is absent unless asked for."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import Any

from elman.engines.base import WAITING

_TEXT = """\
__attribute__((visibility("default"))) long elman_spent[{count}];
static __thread long clock_since;
INLINE void spent(int phase) {{ /* what has passed since the last one, by all workers together */
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    long now = t.tv_sec * 1000000000L + t.tv_nsec;
    if (phase >= 0) __atomic_fetch_add(&elman_spent[phase], now - clock_since, __ATOMIC_RELAXED);
    clock_since = now;
}}
#define barrier(w) do {{ barrier(w); spent({waiting}); }} while (0)"""


class Clock:
    """Writes the timing code of one translation unit.

    Args:
        on: whether there is any.
    """

    def __init__(self, on: bool) -> None:
        self.on = on
        self.phases: dict[str, int] = {}

    def start(self) -> list[str]:
        """C lines that start a worker's clock."""
        return ["spent(-1);"] if self.on else []

    def mark(self, phase: str) -> list[str]:
        """C lines that add the time since the last mark to a phase."""
        if not self.on:
            return []
        return [f"spent({self.phases.setdefault(phase, len(self.phases))}); /* {phase} */"]

    def head(self) -> list[str]:
        """C lines before all marks; call it after the last :meth:`mark`."""
        if not self.on:
            return []
        waiting = self.phases.setdefault(WAITING, len(self.phases))
        return [_TEXT.format(count=len(self.phases), waiting=waiting)]

    def read_seconds(self, library: Any) -> Mapping[str, float]:
        """Seconds of each phase since the last call of this method, in order of the text."""
        counts = (ctypes.c_long * len(self.phases)).in_dll(library, "elman_spent")
        seconds = {phase: counts[index] * 1e-9 for phase, index in self.phases.items()}
        ctypes.memset(counts, 0, ctypes.sizeof(counts))
        return seconds

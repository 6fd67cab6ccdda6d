"""The process's OpenMP pool: torch's, found at run time and passed to every kernel.

Kernels are never linked against an OpenMP library: a second pool beside torch's would make both
slow.
"""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch

from elman.engines import forks

_NAMES = ("libgomp", "libiomp5", "libomp")


@dataclass(frozen=True)
class Pool:
    """Entry points of an OpenMP library, as addresses (0: none was found)."""

    library: str
    parallel: int = 0
    number: int = 0
    count: int = 0


def _loaded() -> list[str]:
    """OpenMP libraries in this process, torch's first."""
    try:
        lines = os.fsdecode(Path("/proc/self/maps").read_bytes()).split("\n")
        paths = [line.split(maxsplit=5)[-1] for line in lines if "/" in line]
    except OSError:
        folder = Path(torch.__file__).parent / "lib"
        paths = [str(path) for name in _NAMES for path in folder.glob(f"{name}*")]
    libraries = [p for p in dict.fromkeys(paths) if Path(p).name.startswith(_NAMES)]
    return sorted(libraries, key=lambda path: "torch" not in path)


@cache
def pool() -> Pool:
    """The pool that torch uses; one without entry points if there is none."""
    for path in _loaded():
        try:
            library = ctypes.CDLL(path)
            addresses = [
                ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0
                for name in ("GOMP_parallel", "omp_get_thread_num", "omp_get_num_threads")
            ]
        except (OSError, AttributeError):
            continue
        return Pool(path, *addresses)
    return Pool("")


class Oversubscription:
    """Detects oversubscription of the cores by other processes.

    A worker that waits for one that is not running waits for a scheduler's tick, at every barrier.
    When workers have been without a core for more than an eighth of their time, until it is enough
    to tell, kernels run on the calling thread alone: results are the same, and nobody waits. All
    threads are tried again after a while, and after a longer one each time they fail.

    A few calls are not enough to tell: a thread that has slept wakes up on the caller's core, and
    takes some milliseconds to find a core of its own.
    """

    _ENOUGH = 25_000  # (us)
    _SHORTEST, _LONGEST = 0.25, 8.0  # (s)

    def __init__(self) -> None:
        self.alone_until = 0.0
        self._pause = self._SHORTEST
        self._lost = 0
        self._ignored = 0

    @contextmanager
    def ignored(self) -> Iterator[None]:
        """Context in which kernels use all threads and the detector is off."""
        self._ignored += 1
        try:
            yield
        finally:
            self._ignored -= 1

    def tell(self, stolen: int) -> None:
        """Record the time that a call's workers were without a core, less an eighth of the call
        (us)."""
        if self._ignored:
            return
        self._lost = max(0, self._lost + stolen)
        if stolen < 0 and self._pause > self._SHORTEST:
            if time.monotonic() > self.alone_until + self._pause:
                self._pause = self._SHORTEST  # it went well for as long as it had gone badly
        if self._lost >= self._ENOUGH:
            self._lost = 0
            self.alone_until = time.monotonic() + self._pause
            self._pause = min(2 * self._pause, self._LONGEST)

    def alone(self) -> bool:
        """Whether kernels should run on one thread now."""
        if not self.alone_until or self._ignored:
            return False
        return time.monotonic() < self.alone_until


oversubscription = Oversubscription()


def on_pool(library: Any) -> None:
    """Let a library of ours run on torch's pool; BuildError if it lacks what takes it."""
    shared = pool()
    library.elman_threads.argtypes = [ctypes.c_void_p] * 3
    library.elman_threads.restype = None
    library.elman_threads(shared.parallel, shared.number, shared.count)


def threads() -> int:
    """How many threads kernels share on a quiet machine: torch's number; one after a fork, or
    without a pool."""
    return 1 if forks.forked or not pool().parallel else torch.get_num_threads()


def workers() -> int:
    """How many threads a kernel may use now: one while other processes want the cores."""
    return 1 if oversubscription.alone() else threads()

"""Work in forked processes, each for some items: one that ends its process, or hangs, takes no
others with it."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection, wait
from typing import Any, NamedTuple

FORKED = multiprocessing.get_context("fork")


class Ended(NamedTuple):
    """End of a process by the item that it worked on.

    Attributes:
        status: of the process; below 0 it is a signal's number.
        hung: whether the process had to be ended, since the item took too long.
    """

    status: int
    hung: bool

    def __str__(self) -> str:
        by = f" by {signal.Signals(-self.status).name}" if self.status < 0 else ""
        return "hung" if self.hung else f"ended{by} (status {self.status})"


class _Process:
    """A process for some items, which sends the result of each."""

    def __init__(self, items: Sequence[Any], do: Callable[[Any], Any]) -> None:
        self.items, self.hung, self.since = list(items), False, time.monotonic()
        self.results, far = FORKED.Pipe(duplex=False)
        self.process = FORKED.Process(target=_work, args=(items, do, far))
        self.process.start()
        far.close()

    def result(self) -> tuple[Any, Any] | None:
        """The next item with its result; None if all are done."""
        try:
            result = self.results.recv()
        except EOFError:
            self.process.join()
            result = Ended(self.process.exitcode or 0, self.hung)
        self.since = time.monotonic()
        return (self.items.pop(0), result) if self.items else None

    def check(self, limit_s: Callable[[Any], float]) -> None:
        """End the process, and those of its session, if its item takes too long."""
        late = self.items and time.monotonic() - self.since > limit_s(self.items[0])
        if late and not self.results.poll():  # else whoever reads results is late
            self.hung = True
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid or 0, signal.SIGKILL)


def _work(items: Sequence[Any], do: Callable[[Any], Any], far: Connection) -> None:
    """Work on items in a forked process, without a terminal."""
    os.setsid()
    for item in items:
        far.send(do(item))
    os._exit(0)


def forked(
    items: Sequence[Any],
    do: Callable[[Any], Any],
    *,
    batch: int = 1,
    workers: int = 1,
    limit_s: Callable[[Any], float],
) -> Iterator[tuple[Any, Any]]:
    """Do something with each item, in any order, in processes of ``batch`` items each; yield it
    with its result, or :class:`Ended` if it ended its process.

    Args:
        do: gives what is sent back; should it raise, its process ends.
        workers: processes at once.
        limit_s: how long an item may take.
    """
    waiting = [items[k : k + batch] for k in range(0, len(items), batch)][::-1]
    running: dict[Any, _Process] = {}
    while waiting or running:
        while waiting and len(running) < workers:
            process = _Process(waiting.pop(), do)
            running[process.results] = process
        for ready in wait([*running], 0.05):
            process = running[ready]
            output = process.result()
            if output is not None:
                yield output
            if output is None or isinstance(output[1], Ended):
                del running[ready]
                waiting += [process.items] if process.items else []
        for process in running.values():
            process.check(limit_s)

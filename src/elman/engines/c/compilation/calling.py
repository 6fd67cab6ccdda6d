"""Run a compiler as a process: isolated from signals, with limits on time and output.

The compiler has a session of its own, so a Ctrl-C or a kill of elman's process group reaches elman
alone. If the call is interrupted or takes too long, elman kills the compiler and all its children.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
import threading
from collections.abc import Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import IO

_OUTPUT = 1 << 16  # (bytes) of a compiler's output that are kept
_LOOK_S = 0.05  # (s) between checks for signals
_QUOTED = 200  # characters of the output in an error message
_REQUESTS = ("SIGINT", "SIGTERM", "SIGHUP")  # requests to stop, no verdict on the text
_SHELL = 128  # a shell's status for a command that a signal ended is 128 + the signal


@dataclass(frozen=True)
class Called:
    """Result of a process.

    Attributes:
        status: of the process; negative: the signal that ended it.
        out, err: the beginning of its output, printable.
    """

    status: int
    out: str
    err: str

    @property
    def signal(self) -> str:
        """The signal that ended it, or a command of its shell, as ``SIGKILL``; empty if none."""
        numbers = {int(number): number.name for number in signal.Signals}
        if self.status < 0:
            return numbers.get(-self.status, f"signal {-self.status}")
        return numbers.get(self.status - _SHELL, "")

    @property
    def interrupted(self) -> bool:
        """Whether it was asked to stop: its status then says nothing about the text."""
        return self.signal in _REQUESTS

    @property
    def why(self) -> str:
        """One line: how it ended, and the first line of output that mentions an error."""
        how = f"ended by {self.signal}" if self.signal else f"exit status {self.status}"
        killed = self.signal == "SIGKILL" or "Killed" in self.err  # a driver reports its child
        how += ", perhaps for want of memory" if killed else ""
        lines = [line.strip() for line in (self.err or self.out).splitlines() if line.strip()]
        telling = [line for line in lines if "error" in line.lower()] or lines
        return f"{how}: {telling[0][:_QUOTED]}" if telling else how


def printable(text: str) -> str:
    """A text without control characters."""
    characters = (c if c.isprintable() or c in "\n\t" else "?" for c in text)
    return "".join(characters).replace("\ufffd", "?")


def call(command: Sequence[str], limit_s: float) -> Called:
    """Run a compiler; once more if it was interrupted and this process was not.

    Raises:
        OSError: there is no such program.
        TimeoutExpired: it took longer than ``limit_s``.
    """
    return call_all([command], limit_s, 1)[0]


def call_all(commands: Sequence[Sequence[str]], limit_s: float, at_once: int) -> list[Called]:
    """Run several commands, ``at_once`` at a time; see :func:`call`.

    If one cannot be run, or the caller is interrupted, all running ones are killed.
    """
    processes = _Processes(limit_s)
    with ThreadPoolExecutor(at_once) as pool:  # no signal handler raises on its threads
        try:
            calls = [pool.submit(processes.run, command) for command in commands]
            running = set(calls)
            while running:  # Python handles signals in this thread, hence only when it wakes up
                ended, running = wait(running, _LOOK_S, FIRST_EXCEPTION)
                for finished in ended:
                    finished.result()
        except BaseException:
            processes.kill()
            raise
    return [finished.result() for finished in calls]


class _Processes:
    """Processes that end together."""

    def __init__(self, limit_s: float) -> None:
        self._limit_s, self._killed, self._lock = limit_s, False, threading.Lock()
        self._running: set[subprocess.Popen[bytes]] = set()

    def run(self, command: Sequence[str]) -> Called:
        """Run a command to its end, a second time if it was asked to stop. Raises OSError,
        TimeoutExpired."""
        called = self._run(command)
        return self._run(command) if called.interrupted and not self._killed else called

    def _run(self, command: Sequence[str]) -> Called:
        # files, not pipes: a child that outlives the compiler may keep a pipe open
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            with self._lock:
                if self._killed:
                    raise OSError(0, "not started")
                process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=err,
                    # English, as the answers are searched for words
                    env=os.environ | {"LC_ALL": "C"},
                    start_new_session=True,
                )
                self._running.add(process)
            try:
                status = process.wait(self._limit_s)
            except subprocess.TimeoutExpired:
                _kill(process)
                raise
            finally:
                self._running.discard(process)
            return Called(status, _beginning(out), _beginning(err))

    def kill(self) -> None:
        """Kill all processes and their children; start no more."""
        with self._lock:
            self._killed = True
            for process in tuple(self._running):
                _kill(process)


def _kill(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(OSError):
        if hasattr(os, "killpg"):
            os.killpg(process.pid, signal.SIGKILL)
    process.kill()
    process.wait()


def _beginning(file: IO[bytes]) -> str:
    """The beginning of an output, printable."""
    file.seek(0)
    return printable(file.read(_OUTPUT).decode("utf-8", "replace")).strip()

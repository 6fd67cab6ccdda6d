"""Run a compiler as a process: isolated from signals, with limits on time and output.

It has a session of its own, so a Ctrl-C or a kill of elman's process group reaches elman alone,
which decides what becomes of the compiler: if the call is interrupted or takes too long, the
compiler and all that it started end with it.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

_HEARD = 1 << 16  # (bytes) of what a compiler says that are kept; the rest is read and dropped
_QUOTED = 200  # characters of them in one line of ours
_LAST_WORDS = 1.0  # (s) for the rest of its words once it has ended
_LOOK = 0.05  # (s) between looks whether it has ended while others hold its pipe
_REQUESTS = ("SIGINT", "SIGTERM", "SIGHUP")  # ask to stop: nothing is wrong with what was compiled
_SHELL = 128  # a shell's status for a command that a signal ended: this and the signal
_DRIVERS = (  # how a driver tells that a signal ended the compiler behind it
    re.compile(r"(?P<name>[A-Z][A-Za-z ]+) signal terminated program"),  # gcc
    re.compile(r"unable to execute command: (?P<name>[A-Z][A-Za-z ]+)"),  # clang
)


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
        """The signal that ended the compiler or one behind it, as ``SIGKILL``; empty if none."""
        numbers = {int(number): number.name for number in signal.Signals}
        if self.status < 0:
            return numbers.get(-self.status, f"signal {-self.status}")
        by_words = {_in_words(number): name for number, name in numbers.items()}
        for driver in _DRIVERS:
            match = driver.search(self.err) if self.status else None
            if match is not None and match["name"].strip() in by_words:
                return by_words[match["name"].strip()]
        return numbers.get(self.status - _SHELL, "")

    @property
    def interrupted(self) -> bool:
        """Whether it was asked to stop: the call says nothing about what was to be compiled."""
        return self.signal in _REQUESTS

    @property
    def why(self) -> str:
        """One line: how it ended, and the first line of output that mentions an error."""
        how = f"ended by {self.signal}" if self.signal else f"exit status {self.status}"
        how += ", perhaps for want of memory" if self.signal == "SIGKILL" else ""
        lines = [line.strip() for line in (self.err or self.out).splitlines() if line.strip()]
        telling = [line for line in lines if "error" in line.lower()] or lines
        return f"{how}: {telling[0][:_QUOTED]}" if telling else how


def printable(text: str) -> str:
    """A text without control characters."""
    characters = (c if c.isprintable() or c in "\n\t" else "?" for c in text)
    return "".join(characters).replace("\ufffd", "?")


def _in_words(number: int) -> str:
    return (signal.strsignal(number) or "").partition(":")[0]  # macOS: "Killed: 9"


def call(command: Sequence[str], limit_s: float) -> Called:
    """Run a compiler; once more if it was interrupted and this process was not.

    Raises:
        OSError: there is no such program.
        TimeoutExpired: it took longer than ``limit_s``.
    """
    return call_all([command], limit_s, 1)[0]


def call_all(commands: Sequence[Sequence[str]], limit_s: float, at_once: int) -> list[Called]:
    """Run several commands in order, ``at_once`` at a time; see :func:`call`.

    If one cannot be run, or the caller is interrupted, all running ones are killed.
    """
    waiting = deque(enumerate(commands))
    running: dict[int, _Running] = {}
    results: dict[int, Called] = {}
    again: set[int] = set()
    spoken = threading.Event()
    try:
        while waiting or running:
            while waiting and len(running) < at_once:
                index, command = waiting.popleft()
                running[index] = _Running(command, limit_s, spoken)  # known before it can fail
                running[index].begin()
            spoken.wait(_LOOK)
            spoken.clear()
            for index in [index for index, process in running.items() if process.ended()]:
                called = running[index].called()
                del running[index]
                if called.interrupted and index not in again:
                    again.add(index)
                    waiting.appendleft((index, commands[index]))
                else:
                    results[index] = called
    except BaseException:
        for process in running.values():
            process.undo()
        raise
    return [results[index] for index in range(len(commands))]


class _Start(threading.Thread):
    """Starts a process and reads its pipes; ``spoken`` is set when a pipe is closed.

    On a thread, so that no signal handler can raise before the process and its pipes are known.
    """

    def __init__(self, command: Sequence[str], spoken: threading.Event) -> None:
        super().__init__(daemon=True)
        self._command, self._spoken = command, spoken
        self.ears: list[_Ear] = []
        self._outcome: subprocess.Popen[bytes] | OSError | None = None

    def run(self) -> None:
        """Start it, or keep the reason why not."""
        try:
            self._outcome = process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=os.environ | {"LC_ALL": "C"},  # its words are read: see _DRIVERS
                start_new_session=True,
            )
        except OSError as error:
            self._outcome = error
            return
        self.ears = [_Ear(pipe, self._spoken) for pipe in (process.stdout, process.stderr)]

    def process(self) -> subprocess.Popen[bytes]:
        """What was started. Raises OSError if it was not."""
        if isinstance(self._outcome, subprocess.Popen):
            return self._outcome
        raise self._outcome or OSError("not started")

    def undo(self) -> None:
        """Kill the process and its children."""
        if self.ident is None:
            return
        self.join()
        process = self._outcome
        if not isinstance(process, subprocess.Popen):
            return
        with contextlib.suppress(OSError):
            if hasattr(os, "killpg"):
                os.killpg(process.pid, signal.SIGKILL)
        process.kill()
        process.wait()


class _Ear(threading.Thread):
    """Reads a pipe to its end, so that the writer never blocks; keeps the beginning."""

    def __init__(self, pipe: object, ended: threading.Event) -> None:
        super().__init__(daemon=True)
        self._pipe, self._heard, self._ended = pipe, b"", ended
        self.start()

    def run(self) -> None:
        """Read until all writers are gone, and say so."""
        with self._pipe as pipe:  # type: ignore[attr-defined]
            while part := pipe.read1(_HEARD):
                self._heard += part[: _HEARD - len(self._heard)]
        self._ended.set()

    def heard(self) -> str:
        """The beginning of the output, printable."""
        return printable(self._heard.decode("utf-8", "replace")).strip()


class _Running:
    """A running compiler and its output."""

    def __init__(self, command: Sequence[str], limit_s: float, spoken: threading.Event) -> None:
        self._command, self._limit_s = command, limit_s
        self._end = time.monotonic() + limit_s
        self._start = _Start(command, spoken)

    def begin(self) -> None:
        """Start it. Raises OSError."""
        self._start.start()
        self._start.join()
        self._start.process()

    def ended(self) -> bool:
        """Whether the compiler has ended; its children may keep the pipes open for longer.

        Raises TimeoutExpired after the time limit.
        """
        process = self._start.process()
        if process.poll() is not None:
            return True
        if time.monotonic() > self._end:
            raise subprocess.TimeoutExpired(self._command, self._limit_s)
        if not any(ear.is_alive() for ear in self._start.ears):  # it is about to
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_LOOK)
        return process.poll() is not None

    def called(self) -> Called:
        """Its result, with the last of its output."""
        late = time.monotonic() + _LAST_WORDS
        for ear in self._start.ears:
            ear.join(max(0.0, late - time.monotonic()))
        return Called(self._start.process().returncode, *(ear.heard() for ear in self._start.ears))

    def undo(self) -> None:
        """Kill it and its children."""
        self._start.undo()

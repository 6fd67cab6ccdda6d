"""Python processes that begin with torch imported: forked from one that has done it, which is most
of the processor time of a short one.

elman itself each imports anew. What torch reads from the environment while it is imported, and what
signals do meanwhile, takes a process of its own (``workers.begin``).
"""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Any

IMPORTED = ("torch", "torch._dynamo", "lightning_fabric", "matplotlib.figure", "jinja2", "typer")


class Forked:
    """A process as ``subprocess.Popen`` has it: its output goes to files until it is asked for."""

    def __init__(self, words: tuple[str, ...], env: dict[str, str]) -> None:
        """Start `python words`; words are `-m module …`, or `-c text …` or `file …` with
        `-W ignore` before them."""
        self.returncode: int | None = None
        self._said: list[str] = []
        self._files = [tempfile.TemporaryFile("w+") for _ in range(2)]  # noqa: SIM115
        self._there = socket.socket(socket.AF_UNIX)
        with _lock:
            self._there.connect(str(origin()))
        socket.send_fds(self._there, [b"."], [file.fileno() for file in self._files])
        self._there.sendall(json.dumps([words, env, os.getcwd()]).encode())
        self._there.shutdown(socket.SHUT_WR)
        self._lines = self._there.makefile()
        self.pid = int(self._lines.readline())

    def poll(self) -> int | None:
        """Its status; None while it runs."""
        if self.returncode is None and select.select([self._there], [], [], 0)[0]:
            self.wait()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Its status, when it has ended."""
        if self.returncode is None:
            if not select.select([self._there], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired("python", timeout or 0.0)
            self.returncode = int(self._lines.readline())
            self._lines.close()
            self._there.close()
        return self.returncode

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """What it has written to its output and its errors, when it has ended."""
        self.wait(timeout)
        if self._files:
            self._said = [file.seek(0) or file.read() for file in self._files]
            while self._files:
                self._files.pop().close()
        return self._said[0], self._said[1]

    def send_signal(self, number: int) -> None:
        """To it and the processes that it has forked. By SIGABRT, they end and say where they
        were."""
        if self.poll() is None:
            os.killpg(self.pid, number)

    def kill(self) -> None:
        """End it, and close what it wrote to."""
        self.send_signal(signal.SIGKILL)
        self.communicate()


@cache
def origin() -> Path:
    """Where the process listens that others are forked from; it ends with this one."""
    folder = Path(tempfile.mkdtemp(prefix="elman-tests-"))
    stdin, stdout = subprocess.PIPE, subprocess.PIPE
    begun = subprocess.Popen([sys.executable, __file__, folder / "s"], stdin=stdin, stdout=stdout)
    assert begun.stdout is not None
    assert begun.stdout.readline() == b"ready\n"
    atexit.register(_end, begun)
    return folder / "s"


def _end(process: subprocess.Popen[bytes]) -> None:
    """Let it see that this one is gone, before Python warns of a process that still runs."""
    for pipe in filter(None, (process.stdin, process.stdout)):
        pipe.close()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(10)


_lock = threading.Lock()


def serve(where: str) -> tuple[list[str], dict[str, str], str]:
    """Fork for everybody who asks, until the process is gone that has started this one.

    Returns:
        What a forked process is asked for, in that process.
    """
    for name in IMPORTED:
        __import__(name)
    sys.modules["matplotlib.figure"].Figure.savefig = undrawn
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(where)
    listening.listen()
    os.write(1, b"ready\n")
    while True:
        ready, _, _ = select.select([listening, sys.stdin], [], [])
        if listening not in ready:
            os.unlink(where)
            os.rmdir(os.path.dirname(where))
            sys.exit()
        asking, _ = listening.accept()
        if not os.fork():
            return answer(asking)
        asking.close()
        while select.select([listening, sys.stdin], [], [], 0.05) == ([], [], []):
            try:
                os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break


def undrawn(figure: Any, buffer: Any, **options: Any) -> None:
    """Charts of reports, which take as long as a short training, are left blank."""
    buffer.write("<svg></svg>")


def answer(asking: socket.socket) -> tuple[list[str], dict[str, str], str]:
    """Fork once more, and tell who has asked the process and, in the end, its status."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    _, fds, _, _ = socket.recv_fds(asking, 1, 2)
    with asking.makefile() as told:
        asked = json.loads(told.read())
    child = os.fork()
    if child:
        os.setpgid(child, child)
        asking.sendall(f"{child}\n".encode())
        _, status = os.waitpid(child, 0)
        asking.sendall(f"{os.waitstatus_to_exitcode(status)}\n".encode())
        os._exit(0)
    asking.close()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with ExitStack() as ours:
        ours.callback(os.close, fds[0])
        ours.callback(os.close, fds[1])
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(fds[0], 1)
        os.dup2(fds[1], 2)
    faulthandler.enable()
    return asked


def become(words: list[str], env: dict[str, str], folder: str) -> None:
    """Do what Python does with these words."""
    import runpy
    import warnings

    if words[0] == "-W":
        warnings.simplefilter(words[1])  # type: ignore[arg-type]
        words = words[2:]
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(env)
    sys.orig_argv = [sys.executable, *words]
    sys.path[1:1] = filter(None, env.get("PYTHONPATH", "").split(os.pathsep))
    if words[0] == "-m":
        sys.path[0] = folder
        sys.argv = words[:1] + words[2:]
        runpy._run_module_as_main(words[1])  # type: ignore[attr-defined]
    elif words[0] == "-c":
        sys.path[0], sys.argv = "", words[:1] + words[2:]
        exec(compile(words[1], "<string>", "exec"), sys.modules["__main__"].__dict__)
    else:
        sys.argv = words
        sys.path[0] = os.path.dirname(os.path.abspath(words[0]))
        runpy.run_path(words[0], run_name="__main__")


if __name__ == "__main__":
    become(*serve(sys.argv[1]))

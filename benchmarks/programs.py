"""Programs in fresh Python processes, apart from the settings of this one."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import elman
from elman.errors import ElmanError

ROOT = Path(__file__).parents[1]  # the checkout
SOURCES = Path(elman.__file__).parents[1]  # the folder that the package lies in
DROPPED = (
    "ELMAN_CFLAGS",
    "ELMAN_ENGINE",
    "ELMAN_FORCE_ENGINE",
    "ELMAN_POISON",
)  # they would change the engine or its speed
# NumPy's threads look for work during 2 to the power of so many cycles (20 ms) after each product:
# by default for longer than the pause before others are timed
SPINNING = {"OPENBLAS_THREAD_TIMEOUT": "26"}


class ProcessError(ElmanError):
    """A process of a measurement failed or took too long."""


@dataclass(frozen=True)
class Program:
    """A program for a fresh interpreter.

    Attributes:
        words: arguments of the interpreter.
        folders: in which Python looks for packages, besides elman's own.
        cache: ELMAN_CACHE, if it is another than here.
        threads: OMP_NUM_THREADS, if they are to be set before torch is imported.
        text: what it reads from its standard input.
    """

    words: tuple[str, ...]
    folders: tuple[Path, ...] = ()
    cache: Path | None = None
    threads: int | None = None
    text: str = ""


def run_program(program: Program, limit_s: float) -> str:
    """The last line that a fresh interpreter printed. Raises ProcessError: it failed, with its last
    words, or it took longer than the limit (s)."""
    try:
        ran = subprocess.run(
            [sys.executable, "-P", *program.words],
            input=program.text,
            capture_output=True,
            text=True,
            env=environment(program),
            timeout=limit_s,
        )
    except subprocess.TimeoutExpired as error:
        raise ProcessError(f"it took longer than {limit_s:g} s") from error
    if ran.returncode:
        words = ran.stderr.strip().splitlines()
        raise ProcessError(words[-1] if words else f"it ended with {ran.returncode}")
    lines = ran.stdout.strip().splitlines()
    if not lines:
        raise ProcessError("it printed nothing")
    return lines[-1]


def environment(program: Program) -> dict[str, str]:
    """The environment of a process: this one's, without what would falsify a measurement."""
    kept = {name: value for name, value in os.environ.items() if name not in DROPPED}
    variables = SPINNING | kept
    paths = [*map(str, (SOURCES, *program.folders)), os.environ.get("PYTHONPATH", "")]
    variables["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    if program.cache is not None:
        variables["ELMAN_CACHE"] = str(program.cache)
    if program.threads is not None:
        variables["OMP_NUM_THREADS"] = str(program.threads)
    return variables


def program(module: str, *words: str, **settings: Any) -> Program:
    """A module of this package, by its name within it, with arguments.

    Args:
        settings: cache, threads and text, as a :class:`Program` has them.
    """
    return Program(("-m", f"{__package__}.{module}", *words), (ROOT,), **settings)


class Worker:
    """A process that answers each line of JSON with another one."""

    def __init__(self, command: list[str], env: Mapping[str, str] | None = None) -> None:
        pipe = subprocess.PIPE
        self.process: Any = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=env)

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def ask(self, question: Any, limit_s: float | None = None) -> Any:
        """One question, one answer.

        Raises:
            ProcessError: the process has ended, or was ended because it took longer (s).
        """
        with suppress(BrokenPipeError):
            self.process.stdin.write(json.dumps(question) + "\n")
            self.process.stdin.flush()
        ready, _, _ = select.select([self.process.stdout], [], [], limit_s)
        answer = self.process.stdout.readline() if ready else ""
        if answer:
            return json.loads(answer)
        self.close(10.0 if ready else 0.0)
        if ready:
            raise ProcessError(f"the process ended with {self.process.returncode}")
        raise ProcessError(f"no answer in {limit_s:.0f} s: it hung, or compiling takes too long")

    def close(self, patience_s: float = 10.0) -> None:
        """End the process, and wait until it is gone."""
        with suppress(BrokenPipeError):
            self.process.stdin.close()
        try:
            self.process.wait(patience_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()

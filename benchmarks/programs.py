"""Modules of this package as programs in fresh processes, from whichever folder they are run."""

from __future__ import annotations

import json
import select
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from elman.measuring.process import ProcessError, Program

ROOT = Path(__file__).parents[1]  # the checkout


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

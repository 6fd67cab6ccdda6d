"""Fresh Python processes for measurements, apart from the settings of this one."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from elman.errors import ElmanError

SOURCES = Path(__file__).parents[2]  # the folder that the package lies in
DROPPED = (
    "ELMAN_CFLAGS",
    "ELMAN_ENGINE",
    "ELMAN_FORCE_ENGINE",
    "ELMAN_POISON",
)  # they would change who runs, or how fast


class ProcessError(ElmanError):
    """A process of a measurement failed or took too long."""


@dataclass(frozen=True)
class Program:
    """What a process runs.

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
    """The last line that a fresh interpreter printed.

    Raises:
        ProcessError: it failed, with its last words, or it took longer than the limit (s).
    """
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
    found = {name: value for name, value in os.environ.items() if name not in DROPPED}
    paths = [*map(str, (SOURCES, *program.folders)), os.environ.get("PYTHONPATH", "")]
    found["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    if program.cache is not None:
        found["ELMAN_CACHE"] = str(program.cache)
    if program.threads is not None:
        found["OMP_NUM_THREADS"] = str(program.threads)
    return found

"""Compilers that are shell scripts, and what they are given to compile."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

from elman.engines.c.compilation.build import find_compiler, load

TINY = '__attribute__((visibility("default"))) long answer(void) { return 42; }\n'


def compiler(tmp_path: Path, monkeypatch, body: str, name: str = "cc") -> None:
    """Use a compiler that is this shell script (``--version`` answers)."""
    script = tmp_path / name
    script.parent.mkdir(exist_ok=True)
    script.write_text(
        f'#!/bin/sh\ncase "$*" in *--version*) echo fake 1.0; exit 0;; esac\n{body}\n'
    )
    script.chmod(0o755)
    monkeypatch.setenv("ELMAN_CC", str(script))


def answer(path: Path) -> int:
    """Copy a library away, so that each load is a new one, and call it."""
    copy = path.with_name(f"{path.stem}-{time.monotonic_ns()}.so")
    shutil.copy(path, copy)
    return load(copy).answer()


def leave(text: str) -> str:
    """A script's lines that find what is to be written, then do this to it ("$2")."""
    return f'while [ "$1" != -o ]; do shift; done; {text}'


def await_that(holds, patience: float = 100.0) -> None:
    """Wait until something is so."""
    end = time.monotonic() + patience
    while not holds():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.01)


def alive(group: int) -> bool:
    """Whether a process group has processes that have not ended."""
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, of = path.read_text().rpartition(")")[2].split()[:3]
        except OSError:
            continue
        if int(of) == group and state not in "ZX":
            return True
    return False


def real() -> str:
    """The shell's words for the compiler that there is."""
    found = find_compiler()
    assert not isinstance(found, str)
    return " ".join(f"'{part}'" for part in found.command)

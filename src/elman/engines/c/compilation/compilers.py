"""Find the C compiler of this machine and its version, or why there is none."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import platform
import shlex
import shutil
import sys
from dataclasses import dataclass
from functools import cache, lru_cache
from subprocess import TimeoutExpired

from elman.engines.c.compilation.calling import call, printable

_PROBE = 30.0  # (s) limit of ``--version``
_MOST = 200  # characters of the version that are kept
_HOW = 'install gcc or clang, or pip install "elman[compiler]" (ziglang); CC names another compiler'


@dataclass(frozen=True)
class Compiler:
    """A C compiler: its command, and its first line of ``--version``."""

    command: tuple[str, ...]
    version: str


def _command_from_environment(name: str) -> tuple[str, ...]:
    """The command in an environment variable: a program (its path may have spaces), or words as in
    a shell. Raises ValueError if it is neither."""
    text = os.environ.get(name, "").strip()
    if text and shutil.which(text):
        return (text,)
    try:
        return tuple(shlex.split(text))
    except ValueError as error:
        raise ValueError(f"{name}={text} is not a command: {error}") from error


def _candidates() -> list[tuple[str, ...]]:
    explicit = _command_from_environment("ELMAN_CC") or _command_from_environment("CC")
    if explicit:
        return [explicit]
    commands: list[tuple[str, ...]] = [
        (path,) for name in ("gcc", "clang", "cc") if (path := shutil.which(name))
    ]
    if importlib.util.find_spec("ziglang") is not None:
        commands.append((sys.executable, "-m", "ziglang", "cc"))
    return commands


@lru_cache(maxsize=16)
def _probe(command: tuple[str, ...]) -> Compiler | str:
    text = printable(shlex.join(command))
    try:
        result = call([*command, "--version"], _PROBE)
    except OSError as error:
        return f"{text}: {error.strerror}"
    except TimeoutExpired:
        return f"{text} --version did not end within {_PROBE:g} s"
    if result.status:
        return f"{text} --version failed ({result.why})"
    return Compiler(command, result.out.partition("\n")[0][:_MOST] or text)


def find_compiler() -> Compiler | str:
    """The C compiler to use (ELMAN_CC, CC, gcc, clang, cc, ziglang), or why there is none.

    Kernels take sizes and addresses as C's ``long``, so no compiler helps where that has 32 bits,
    as on Windows.
    """
    if ctypes.sizeof(ctypes.c_long) != ctypes.sizeof(ctypes.c_void_p):
        return f"engine c does not run on {platform.system()}: its kernels need a C long of 64 bits"
    reasons: list[str] = []
    try:
        candidates = _candidates()
    except ValueError as error:
        return f"no C compiler ({printable(str(error))}): {_HOW}"
    for command in candidates:
        probed = _probe(command)
        if isinstance(probed, Compiler):
            return probed
        reasons.append(probed)
    why = "; ".join(reasons) or "no gcc, clang or cc on the PATH"
    return f"no C compiler ({why}): {_HOW}"


@cache
def has_compiler() -> bool:
    """Return whether the machine has a C compiler; cached, for calls that take microseconds."""
    return isinstance(find_compiler(), Compiler)

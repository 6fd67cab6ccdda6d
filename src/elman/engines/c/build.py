"""C text to a loaded library: compiled once per content, kept in the user's cache, verified on
loading."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import hashlib
import importlib.util
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import warnings
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path

from filelock import FileLock, Timeout

from elman.engines.c.isa import Isa
from elman.errors import BuildError
from elman.folders import cache_folder, private_folder

FLAGS = (
    "-O2",
    "-std=gnu11",
    "-fPIC",
    "-shared",
    "-ffp-contract=fast",
    "-fno-math-errno",
    "-fvisibility=hidden",
    "-w",
)
_PATIENCE = 120.0  # (s) to wait for another process that compiles the same kernel
_PROBE = 30.0  # (s) for a compiler to say its version
_COMPILE = 600.0  # (s) for a compiler to make one kernel
_HOW = "install gcc or clang, or pip install 'elman[compiler]' (ziglang); CC names another compiler"


@dataclass(frozen=True)
class Compiler:
    """A C compiler: how it is called, and what it says it is."""

    command: tuple[str, ...]
    version: str


def _candidates() -> list[tuple[str, ...]]:
    asked = os.environ.get("ELMAN_CC") or os.environ.get("CC")
    if asked:
        return [tuple(shlex.split(asked))]
    found: list[tuple[str, ...]] = [
        (path,) for name in ("gcc", "clang", "cc") if (path := shutil.which(name))
    ]
    if importlib.util.find_spec("ziglang") is not None:
        found.append((sys.executable, "-m", "ziglang", "cc"))
    return found


@lru_cache(maxsize=16)
def _probe(command: tuple[str, ...]) -> Compiler | str:
    try:
        asked = subprocess.run(
            [*command, "--version"],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_PROBE,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{' '.join(command)}: {error}"
    if asked.returncode:
        return f"{' '.join(command)} --version failed: {asked.stderr.strip()[:200]}"
    return Compiler(command, asked.stdout.strip().partition("\n")[0])


def find_compiler() -> Compiler | str:
    """The C compiler to use (ELMAN_CC, CC, gcc, clang, cc, ziglang), or why there is none."""
    reasons: list[str] = []
    for command in _candidates():
        found = _probe(command)
        if isinstance(found, Compiler):
            return found
        reasons.append(found)
    why = "; ".join(reasons) or "no gcc, clang or cc on the PATH"
    return f"no C compiler ({why}): {_HOW}"


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _key(text: str, isa: Isa, compiler: Compiler) -> str:
    parts = [text, isa.name, *isa.flags, *FLAGS, *compiler.command, compiler.version]
    return _digest("\0".join(parts).encode())[:40]


@cache
def _own_folder() -> Path:
    """A folder of this process alone, where the cache cannot be used; gone when it ends."""
    folder, owner = Path(tempfile.mkdtemp(prefix="elman-")), os.getpid()

    def remove() -> None:
        if os.getpid() == owner:  # not the child of a fork
            shutil.rmtree(folder, ignore_errors=True)

    atexit.register(remove)
    return folder


@cache
def _warn_uncached(folder: str) -> None:
    warnings.warn(
        f"elman cannot keep compiled kernels in {folder} (not writable, or open to others):"
        " each process compiles its own. Set ELMAN_CACHE to a private folder.",
        RuntimeWarning,
        stacklevel=2,
    )


def kernel_folder() -> Path:
    """Where compiled kernels are kept; a folder of this process where the cache cannot be used."""
    try:
        folder = cache_folder() / "kernels"
        usable = private_folder(folder) and os.access(folder, os.W_OK | os.X_OK)
    except RuntimeError:
        folder, usable = Path("~/.cache/elman/kernels"), False
    if usable:
        return folder
    _warn_uncached(str(folder))
    return _own_folder()


def _stored(path: Path) -> bytes | None:
    """A library from the cache if it is whole: its last 32 bytes are the hash of the rest."""
    try:
        data = path.read_bytes()
    except OSError:
        return None
    if len(data) < 64 or hashlib.sha256(data[:-32]).digest() != data[-32:]:
        return None
    return data


def _compile(text: str, isa: Isa, compiler: Compiler, folder: Path) -> bytes:
    with tempfile.TemporaryDirectory(dir=folder, prefix="build-") as work:
        source, target = Path(work) / "kernel.c", Path(work) / "kernel.so"
        try:
            source.write_text(text)
            made = subprocess.run(
                [*compiler.command, *FLAGS, *isa.flags, str(source), "-o", str(target), "-lm"],
                capture_output=True,
                text=True,
                errors="replace",
                timeout=_COMPILE,
                check=False,
            )
            if made.returncode or not target.exists():
                raise BuildError(
                    f"{compiler.version} refused a generated kernel:\n{made.stderr.strip()[:2000]}"
                )
            return target.read_bytes()
        except (OSError, subprocess.TimeoutExpired) as error:
            raise BuildError(f"cannot compile a kernel in {folder}: {error}") from error


def _store(path: Path, data: bytes) -> None:
    """Write a library with its hash behind it, whole or not at all."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=".new-")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data + hashlib.sha256(data).digest())
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, path)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise


@contextlib.contextmanager
def _alone(path: Path):
    """Let one process compile a kernel; where locks do not work, or take too long, go on
    without."""
    lock = FileLock(str(path.with_suffix(".lock")))
    try:
        lock.acquire(timeout=_PATIENCE)
    except (Timeout, OSError, NotImplementedError):
        yield
        return
    try:
        yield
    finally:
        lock.release()


def build(text: str, isa: Isa) -> Path:
    """The path of the compiled text: from the cache if it is there and whole, else compiled now.

    Raises:
        BuildError: there is no compiler, it refused the text, or the disk is full.
    """
    compiler = find_compiler()
    if isinstance(compiler, str):
        raise BuildError(compiler)
    folder = kernel_folder()
    path = folder / f"{_key(text, isa, compiler)}.so"
    if _stored(path) is not None:
        return path
    with _alone(path):
        if _stored(path) is not None:
            return path
        try:
            _store(path, _compile(text, isa, compiler, folder))
        except OSError as error:
            raise BuildError(f"cannot keep a kernel in {folder}: {error}") from error
    return path


def fingerprint(path: Path) -> str:
    """The hash of a library that ``build`` made, as it stands behind it."""
    with path.open("rb") as file:
        file.seek(-32, os.SEEK_END)
        return file.read().hex()


def load(path: Path) -> ctypes.CDLL:
    """Load a library that ``build`` made. Raises BuildError if the system refuses it; then it is
    not kept."""
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        path.unlink(missing_ok=True)
        raise BuildError(f"cannot load {path}: {error}") from error

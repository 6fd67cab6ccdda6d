"""C text to a loaded library: compiled once per content, kept in the user's cache, verified on
loading."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import hashlib
import os
import shutil
import struct
import tempfile
import time
import warnings
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from subprocess import TimeoutExpired
from typing import Any

from filelock import FileLock, Timeout

from elman.engines.c.calling import call
from elman.engines.c.compilers import Compiler, find_compiler
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
_COMPILE = 600.0  # (s) for a compiler to make one kernel
_LEFT = 2 * _COMPILE + _PATIENCE  # (s) after which nobody works in a folder of a build any more
_SEGMENT = 56  # (bytes) of a segment's entry in a 64-bit ELF file
_BUILD = "build-"  # how the name of such a folder begins
_hung: dict[Compiler, str] = {}  # compilers that this process does not wait for again, and why


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _key(text: str, isa: Isa, compiler: Compiler) -> str:
    parts = [text, isa.name, *isa.flags, *FLAGS, *compiler.command, compiler.version]
    return _digest("\0".join(parts).encode(errors="surrogateescape"))[:40]


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
    _remove_leftovers(folder)
    with tempfile.TemporaryDirectory(dir=folder, prefix=_BUILD) as work:
        source, target = Path(work) / "kernel.c", Path(work) / "kernel.so"
        source.write_text(text, encoding="utf-8")
        _called(compiler, [*isa.flags, str(source), "-o", str(target), "-lm"])
        if not target.is_file():
            raise BuildError(f"{compiler.version} says it compiled a kernel, and wrote nothing")
        data = target.read_bytes()
    if _cut_short(data):
        raise BuildError(f"{compiler.version} says it compiled a kernel, and wrote a part of one")
    return data


def _called(compiler: Compiler, arguments: Sequence[str]) -> None:
    """Call the compiler; raise BuildError with its reason if it fails."""
    name = compiler.version
    if compiler in _hung:
        raise BuildError(_hung[compiler])
    try:
        made = call([*compiler.command, *FLAGS, *arguments], _COMPILE)
    except OSError as error:
        raise BuildError(f"{name} cannot be called: {error.strerror}") from error
    except TimeoutExpired as error:
        _hung[compiler] = f"{name} did not compile a kernel within {_COMPILE:g} s"
        raise BuildError(_hung[compiler]) from error
    if made.status:
        verb = "broke down at" if made.signal else "refused"
        failed = BuildError(f"{name} {verb} a generated kernel: {made.why}")
        failed.add_note(made.err or made.out)  # all of its words, for a traceback only
        raise failed


def _cut_short(data: bytes) -> bool:
    """Whether a 64-bit ELF library ends before its own table of segments says: systems load such a
    one, and end the process when they read what is not there."""
    if data[:5] != b"\x7fELF\x02" or len(data) < 64:
        return False
    order = "<" if data[5] == 1 else ">"
    (table,) = struct.unpack_from(f"{order}Q", data, 32)
    size, count = struct.unpack_from(f"{order}HH", data, 54)
    if size != _SEGMENT or table + size * count > len(data):
        return True
    for at in range(table, table + size * count, size):
        offset, length = struct.unpack_from(f"{order}8xQ16xQ", data, at)
        if offset + length > len(data):
            return True
    return False


def _remove_leftovers(folder: Path) -> None:
    """Remove what killed processes left of their builds."""
    for path in folder.glob(f"{_BUILD}*"):
        with contextlib.suppress(OSError):
            if time.time() - path.stat().st_mtime > _LEFT:
                shutil.rmtree(path, ignore_errors=True)


def _store(path: Path, data: bytes) -> None:
    """Write a library with its hash behind it, whole or not at all."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=".new-")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data + hashlib.sha256(data).digest())
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, path)
    except BaseException:
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


class _Library(ctypes.CDLL):
    """A library of ours: what it lacks is the compiler's fault."""

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError as error:
            if name.startswith("__"):
                raise
            raise _not_kept(Path(self._name), f"it has no {name}") from error


def load(path: Path) -> ctypes.CDLL:
    """Load a library that ``build`` made.

    Raises:
        BuildError: the system refuses it, or (from what is returned) a function that it should have
            is missing; then it is not kept.
    """
    try:
        return _Library(str(path))
    except OSError as error:
        raise _not_kept(path, str(error)) from error


def _not_kept(path: Path, why: str) -> BuildError:
    """Remove a library that is none, so that a mended compiler is asked again."""
    with contextlib.suppress(OSError):
        path.unlink()
    made = find_compiler()
    by = made.version if isinstance(made, Compiler) else "the compiler"
    return BuildError(f"{by} made no library for a kernel: cannot load {path}: {why}")

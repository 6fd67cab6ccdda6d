"""Compile C text to a shared library: once per content, cached per user, verified when loaded."""

from __future__ import annotations

import _ctypes
import contextlib
import ctypes
import hashlib
import os
import shlex
import struct
import tempfile
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from subprocess import TimeoutExpired
from typing import Any
from weakref import finalize

from elman.engines.c.compilation.calling import call_all
from elman.engines.c.compilation.compilers import Compiler, find_compiler
from elman.engines.c.compilation.eviction import limit_bytes, make_room, note_use
from elman.engines.c.compilation.isa import Isa
from elman.engines.c.compilation.kernel_cache import (
    BUILD,
    HASH,
    alone,
    check_room,
    fingerprint,
    folder_instead,
    kernel_folder,
    remove_leftovers,
    store,
    stored,
)
from elman.engines.c.process.threads import threads
from elman.errors import BuildError

FLAGS = (  # -O1 makes kernels 10 % slower; fast contraction allows multiply-adds
    "-O2",
    "-std=gnu11",
    "-fPIC",
    "-shared",
    "-ffp-contract=fast",
    "-fno-math-errno",
    "-fvisibility=hidden",
)
_COMPILE = 600.0  # (s) limit for one kernel
_SEGMENT = 56  # (bytes) of a segment's entry in a 64-bit ELF file
_TRIES = 3  # attempts to load a library that other processes remove
_instead: dict[Path, Path] = {}  # a folder that cannot be written -> this process's own
_hung: dict[Compiler, str] = {}  # compilers that timed out, with the message: never called again


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _extra_flags() -> tuple[str, ...]:
    """The words of ELMAN_CFLAGS: extra flags for kernels, not for shared units."""
    flags = os.environ.get("ELMAN_CFLAGS", "")
    try:
        return tuple(shlex.split(flags))
    except ValueError as error:
        raise BuildError(f"ELMAN_CFLAGS={flags} are not compiler flags: {error}") from error


def _key(isa: Isa, compiler: Compiler, *texts: str) -> str:
    ingredients = [*texts, isa.name, *isa.flags, *FLAGS, *compiler.command, compiler.version]
    return _digest("\0".join(ingredients).encode(errors="surrogateescape"))[:40]


@dataclass(frozen=True)
class _Work:
    """Settings of a build: cache folder, instruction set, compiler and extra flags."""

    folder: Path
    isa: Isa
    compiler: Compiler
    extra_flags: tuple[str, ...]

    def cache_path(self, suffix: str, *texts: str) -> Path:
        """The cache file of the library, or object file, of these texts."""
        return self.folder / f"{_key(self.isa, self.compiler, *texts)}{suffix}"


def _compile(work: _Work, text: str, units: Sequence[str]) -> tuple[bytes, dict[Path, bytes]]:
    """Compile a library and its units that are not cached, by cache path. Raises OSError, whatever
    the compiler reports, if the folder cannot be written to."""
    remove_leftovers(work.folder)
    with tempfile.TemporaryDirectory(dir=work.folder, prefix=BUILD) as name:
        try:
            return _compile_in(Path(name), work, text, units)
        except BuildError:  # a full disk, not the text, may be the cause
            check_room(Path(name))
            raise


def _compile_in(
    here: Path, work: _Work, text: str, units: Sequence[str]
) -> tuple[bytes, dict[Path, bytes]]:
    """:func:`_compile` with all of the compiler's files in an empty folder."""
    kernel, target = here / "kernel.c", here / "kernel.so"
    missing: dict[Path, Path] = {}
    inputs, sources = [str(kernel), *work.extra_flags], {kernel: text}
    for number, part in enumerate(units):
        cached, object_file = work.cache_path(".o", part), here / f"part{number}.o"
        data_in_cache = stored(cached)
        if data_in_cache is not None:
            object_file.write_bytes(data_in_cache[:-HASH])
        else:
            missing[cached], sources[object_file.with_suffix(".c")] = object_file, part
        inputs.append(str(object_file))
    for path, source in sources.items():
        path.write_text(source, encoding="utf-8")
    if missing:  # compile them and the text in parallel
        inputs[0] = str(kernel.with_suffix(".o"))
        calls = [["-c", str(path), "-o", str(path.with_suffix(".o"))] for path in sources]
        calls[0] += work.extra_flags
        _call_compiler(work, calls)
    _call_compiler(work, [[*inputs, "-o", str(target), "-lm"]])
    data = _library(work.compiler.version, target)
    return data, {cached: object_file.read_bytes() for cached, object_file in missing.items()}


def _library(compiler: str, path: Path) -> bytes:
    """The bytes of a compiled library. Raises BuildError: it is missing or truncated."""
    if not path.is_file():
        raise BuildError(f"{compiler} reported success, but wrote no file")
    data = path.read_bytes()
    if _cut_short(data):
        raise BuildError(f"{compiler} reported success, but wrote only part of a file")
    return data


def _call_compiler(work: _Work, calls: Sequence[Sequence[str]]) -> None:
    """Run compiler calls in parallel. Raises BuildError with the compiler's message."""
    compiler, name = work.compiler, work.compiler.version
    if compiler in _hung:
        raise BuildError(_hung[compiler])
    try:
        every = [[*compiler.command, *FLAGS, *work.isa.flags, *arguments] for arguments in calls]
        results = call_all(every, _COMPILE, threads())
    except OSError as error:
        raise BuildError(f"{name} cannot be called: {error.strerror}") from error
    except TimeoutExpired as error:
        _hung[compiler] = f"{name} did not compile a kernel within {_COMPILE:g} s"
        raise BuildError(_hung[compiler]) from error
    for result in results:
        if result.status:
            verb = "broke down at" if result.signal else "refused"
            failed = BuildError(f"{name} {verb} a generated kernel: {result.why}")
            failed.add_note(result.err or result.out)  # all output, in tracebacks only
            raise failed


def _cut_short(data: bytes) -> bool:
    """Whether a 64-bit ELF library is shorter than its table of segments says: systems load such a
    library, and kill the process when it reads beyond the end."""
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


def build(text: str, isa: Isa, units: Sequence[str] = ()) -> Path:
    """The path of a compiled text: from the cache if it is there and intact, else compiled now.

    Args:
        text: C text of the library.
        isa: target instruction set.
        units: C texts that it is linked with; their object files are cached for other texts.

    Raises:
        BuildError: there is no compiler, it refused the text, no disk takes the library, or
            ELMAN_CFLAGS are not flags.
        EngineError: ELMAN_CACHE_SIZE is not a size.
    """
    compiler = find_compiler()
    if isinstance(compiler, str):
        raise BuildError(compiler)
    limit, work = limit_bytes(), _Work(kernel_folder(), isa, compiler, _extra_flags())
    if stored(path := work.cache_path(".so", text, *units, *work.extra_flags)) is None:
        work = replace(work, folder=_instead.get(work.folder, work.folder))
    try:
        path = _compile_once(work, text, units)
    except OSError as error:
        instead = _instead[work.folder] = folder_instead(work.folder, error)
        work = replace(work, folder=instead)
        try:
            path = _compile_once(work, text, units)
        except OSError as error:
            raise BuildError(f"cannot keep a kernel in {instead}: {error}") from error
    make_room(work.folder, limit)
    return path


def _compile_once(work: _Work, text: str, units: Sequence[str]) -> Path:
    """The path of a compiled text in a folder. Raises OSError if the folder cannot be written."""
    path = work.cache_path(".so", text, *units, *work.extra_flags)
    note_use(path, *(work.cache_path(".o", content) for content in units))
    if stored(path) is not None:
        return path
    with alone(path), _lock_parts(work, units):
        if stored(path) is not None:  # another process compiled it while this one waited
            return path
        data, objects = _compile(work, text, units)
        for target, content in {**objects, path: data}.items():
            store(target, content)
    return path


def _lock_parts(work: _Work, units: Sequence[str]) -> AbstractContextManager[None]:
    """Let one process at a time compile units; no lock if all of them are cached."""
    if all(stored(work.cache_path(".o", part)) is not None for part in units):
        return contextlib.nullcontext()
    return alone(work.folder / "parts.o")


class _GoneError(BuildError):
    """Another process evicted a library before it was loaded."""


def built(text: str, isa: Isa, units: Sequence[str] = ()) -> tuple[ctypes.CDLL, str]:
    """A compiled text as a loaded library, and its fingerprint; for arguments see :func:`build`.

    Raises:
        BuildError: see :func:`build` and :func:`load`.
        EngineError: see :func:`build`.
    """
    for _ in range(_TRIES - 1):
        path = build(text, isa, units)
        with contextlib.suppress(_GoneError, FileNotFoundError):
            return load(path), fingerprint(path)
    path = build(text, isa, units)
    return load(path), fingerprint(path)


class _Library(ctypes.CDLL):
    """A compiled kernel; a missing function is a BuildError."""

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError as error:
            if name.startswith("__"):
                raise
            raise _discard(Path(self._name), f"it has no {name}") from error


def load(path: Path) -> ctypes.CDLL:
    """Load a library that ``build`` made; it is unloaded with its last reference.

    Raises:
        BuildError: the system refuses it, or (on attribute access) a function is missing; the file
            is then removed.
    """
    try:
        library = _Library(str(path))
    except OSError as error:
        if not path.exists():
            raise _GoneError(
                f"a compiled kernel was removed before it was loaded: {path}"
            ) from error
        raise _discard(path, str(error)) from error
    finalize(library, _ctypes.dlclose, library._handle).atexit = False
    return library


def _discard(path: Path, why: str) -> BuildError:
    """Remove an invalid library, so that it is compiled again once the compiler works."""
    with contextlib.suppress(OSError):
        path.unlink()
    compiler = find_compiler()
    by = compiler.version if isinstance(compiler, Compiler) else "the compiler"
    return BuildError(f"{by} made no library for a kernel: cannot load {path}: {why}")

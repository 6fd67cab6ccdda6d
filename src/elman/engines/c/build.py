"""C text to a loaded library: compiled once per content, kept in the user's cache, verified on
loading."""

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

from elman.engines.c.calling import call_all
from elman.engines.c.compilers import Compiler, find_compiler
from elman.engines.c.eviction import limit_bytes, make_room, note_use
from elman.engines.c.isa import Isa
from elman.engines.c.kernel_cache import (
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
from elman.engines.c.threads import threads
from elman.errors import BuildError

FLAGS = (
    "-O2",
    "-std=gnu11",
    "-fPIC",
    "-shared",
    "-ffp-contract=fast",
    "-fno-math-errno",
    "-fvisibility=hidden",
)
_COMPILE = 600.0  # (s) for a compiler to make one kernel
_SEGMENT = 56  # (bytes) of a segment's entry in a 64-bit ELF file
_TRIES = 3  # to load a library that other processes remove
_instead: dict[Path, Path] = {}  # of folders that took no kernel: what this process has instead
_hung: dict[Compiler, str] = {}  # compilers that this process does not wait for again, and why


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _further() -> tuple[str, ...]:
    """The words of ELMAN_CFLAGS: flags after ours, for texts and not for parts that they share."""
    flags = os.environ.get("ELMAN_CFLAGS", "")
    try:
        return tuple(shlex.split(flags))
    except ValueError as error:
        raise BuildError(f"ELMAN_CFLAGS={flags} are not compiler flags: {error}") from error


def _key(isa: Isa, compiler: Compiler, *texts: str) -> str:
    parts = [*texts, isa.name, *isa.flags, *FLAGS, *compiler.command, compiler.version]
    return _digest("\0".join(parts).encode(errors="surrogateescape"))[:40]


@dataclass(frozen=True)
class _Work:
    """What is to be built: where things are kept, who compiles, and with which further flags."""

    folder: Path
    isa: Isa
    compiler: Compiler
    further: tuple[str, ...]

    def kept(self, suffix: str, *texts: str) -> Path:
        """Where what is made of these texts is kept."""
        return self.folder / f"{_key(self.isa, self.compiler, *texts)}{suffix}"


def _compile(work: _Work, text: str, parts: Sequence[str]) -> tuple[bytes, dict[Path, bytes]]:
    """A library; and the parts that were compiled for it, by where they are to be kept. Raises
    OSError, whatever the compiler says, if the folder takes no files."""
    remove_leftovers(work.folder)
    with tempfile.TemporaryDirectory(dir=work.folder, prefix=BUILD) as name:
        try:
            return _compile_in(Path(name), work, text, parts)
        except BuildError:
            check_room(Path(name))
            raise


def _compile_in(
    here: Path, work: _Work, text: str, parts: Sequence[str]
) -> tuple[bytes, dict[Path, bytes]]:
    """The same, with all files of the compiler in an empty folder."""
    kernel, target = here / "kernel.c", here / "kernel.so"
    missing: dict[Path, Path] = {}
    inputs, sources = [str(kernel), *work.further], {kernel: text}
    for number, part in enumerate(parts):
        kept, made = work.kept(".o", part), here / f"part{number}.o"
        found = stored(kept)
        if found is not None:
            made.write_bytes(found[:-HASH])
        else:
            missing[kept], sources[made.with_suffix(".c")] = made, part
        inputs.append(str(made))
    for path, source in sources.items():
        path.write_text(source, encoding="utf-8")
    if missing:  # at once, and the text with them
        inputs[0] = str(kernel.with_suffix(".o"))
        calls = [["-c", str(path), "-o", str(path.with_suffix(".o"))] for path in sources]
        calls[0] += work.further
        _called(work, calls)
    _called(work, [[*inputs, "-o", str(target), "-lm"]])
    data = _library(work.compiler.version, target)
    return data, {kept: made.read_bytes() for kept, made in missing.items()}


def _library(compiler: str, path: Path) -> bytes:
    """What a compiler made, if it is whole."""
    if not path.is_file():
        raise BuildError(f"{compiler} reported success, but wrote no file")
    data = path.read_bytes()
    if _cut_short(data):
        raise BuildError(f"{compiler} reported success, but wrote only part of a file")
    return data


def _compile_anew(work: _Work, text: str, parts: Sequence[str]) -> tuple[bytes, dict[Path, bytes]]:
    """The same; once more without the parts that are kept, if it fails with them: a compiler that
    was broken may have made them."""
    kept = [path for part in parts if (path := work.kept(".o", part)).exists()]
    try:
        return _compile(work, text, parts)
    except BuildError:
        if not kept or work.compiler in _hung:
            raise
    for path in kept:
        path.unlink(missing_ok=True)
    return _compile(work, text, parts)


def _called(work: _Work, calls: Sequence[Sequence[str]]) -> None:
    """Call the compiler, as often at once as there are threads; raise BuildError with its reason if
    it fails."""
    compiler, name = work.compiler, work.compiler.version
    if compiler in _hung:
        raise BuildError(_hung[compiler])
    try:
        every = [[*compiler.command, *FLAGS, *work.isa.flags, *given] for given in calls]
        done = call_all(every, _COMPILE, threads())
    except OSError as error:
        raise BuildError(f"{name} cannot be called: {error.strerror}") from error
    except TimeoutExpired as error:
        _hung[compiler] = f"{name} did not compile a kernel within {_COMPILE:g} s"
        raise BuildError(_hung[compiler]) from error
    for made in done:
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


def build(text: str, isa: Isa, parts: Sequence[str] = ()) -> Path:
    """The path of a compiled text: from the cache if it is there and whole, else compiled now.

    Args:
        text: C, made into a library.
        isa: what it is compiled for.
        parts: C that it is linked with; what they are compiled to is kept for other texts.

    Raises:
        BuildError: there is no compiler, it refused the text, no disk takes the library, or
            ELMAN_CFLAGS are not flags.
        EngineError: ELMAN_CACHE_SIZE is not a size.
    """
    compiler = find_compiler()
    if isinstance(compiler, str):
        raise BuildError(compiler)
    limit, work = limit_bytes(), _Work(kernel_folder(), isa, compiler, _further())
    if stored(path := work.kept(".so", text, *parts, *work.further)) is None:
        work = replace(work, folder=_instead.get(work.folder, work.folder))
    try:
        path = _kept(work, text, parts)
    except OSError as error:
        instead = _instead[work.folder] = folder_instead(work.folder, error)
        work = replace(work, folder=instead)
        try:
            path = _kept(work, text, parts)
        except OSError as error:
            raise BuildError(f"cannot keep a kernel in {instead}: {error}") from error
    make_room(work.folder, limit)
    return path


def _kept(work: _Work, text: str, parts: Sequence[str]) -> Path:
    """The path of a compiled text in a folder. Raises OSError if the folder does not take it."""
    path = work.kept(".so", text, *parts, *work.further)
    note_use(path, *(work.kept(".o", part) for part in parts))
    if stored(path) is not None:
        return path
    with alone(path), _alone_with_parts(work, parts):
        if stored(path) is not None:
            return path
        data, made = _compile_anew(work, text, parts)
        for kept, part in {**made, path: data}.items():
            store(kept, part)
    return path


def _alone_with_parts(work: _Work, parts: Sequence[str]) -> AbstractContextManager[None]:
    """Let one process compile parts; who has all of them goes on."""
    if all(stored(work.kept(".o", part)) is not None for part in parts):
        return contextlib.nullcontext()
    return alone(work.folder / "parts.o")


class _GoneError(BuildError):
    """Another process made room, and removed a library before it was loaded."""


def built(text: str, isa: Isa, parts: Sequence[str] = ()) -> tuple[ctypes.CDLL, str]:
    """A compiled text as a loaded library, and its fingerprint; arguments as of :func:`build`.

    Raises:
        BuildError: as :func:`build` and :func:`load`.
        EngineError: as :func:`build`.
    """
    for _ in range(_TRIES - 1):
        path = build(text, isa, parts)
        with contextlib.suppress(_GoneError, FileNotFoundError):
            return load(path), fingerprint(path)
    path = build(text, isa, parts)
    return load(path), fingerprint(path)


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
    """Load a library that ``build`` made; unload it when nothing refers to it any more.

    Raises:
        BuildError: the system refuses it, or (from what is returned) a function that it should have
            is missing; then it is not kept.
    """
    try:
        library = _Library(str(path))
    except OSError as error:
        if not path.exists():
            raise _GoneError(
                f"a compiled kernel was removed before it was loaded: {path}"
            ) from error
        raise _not_kept(path, str(error)) from error
    finalize(library, _ctypes.dlclose, library._handle).atexit = False
    return library


def _not_kept(path: Path, why: str) -> BuildError:
    """Remove a library that is none, so that a mended compiler is asked again."""
    with contextlib.suppress(OSError):
        path.unlink()
    made = find_compiler()
    by = made.version if isinstance(made, Compiler) else "the compiler"
    return BuildError(f"{by} made no library for a kernel: cannot load {path}: {why}")

"""What files are damaged with: other forms, numbers, and places of JSON values."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

NUMBERS = (0, -1, 2.5, 1e308, -1e308, 1e-320, 10**30, 10**400, float("nan"), float("inf"))


def replace_content(content: bytes) -> Callable[[Path], object]:
    return lambda path: path.write_bytes(content)


def instead(make: Callable[[Path], object]) -> Callable[[Path], object]:
    return lambda path: (path.unlink(), make(path))


def listening(path: Path) -> None:
    folder = os.getcwd()
    os.chdir(path.parent)  # the name of a socket is short
    with contextlib.closing(socket.socket(socket.AF_UNIX)) as server:
        server.bind(path.name)
    os.chdir(folder)


def twice(path: Path) -> None:
    again = '{"cell": 7, "step": -1, "tokens": 3, "digest": [],'
    path.write_text(path.read_text().replace("{", again, 1))


def to_pipe(path: Path) -> None:
    os.mkfifo(path.with_suffix(".p"))
    path.symlink_to(path.with_suffix(".p"))


FORMS: dict[str, Callable[[Path], object]] = {
    "emptied": replace_content(b""),
    "cut": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "no text": replace_content(b"\xff\xfe\x00\x81" * 999),
    "deep": replace_content(b'{"a":' * 200_000),
    "deep lists": replace_content(b"[" * 200_000 + b"]" * 200_000),
    "digits": replace_content(b'{"steps": ' + b"9" * 100_000 + b"}"),
    "a list": replace_content(b"[1, 2]"),
    "null": replace_content(b"null"),
    "nan": replace_content(b"NaN"),
    "a mark": lambda path: path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes()),
    "twice": twice,
    "huge": lambda path: os.truncate(path, 1 << 42),
    "gone": Path.unlink,
    "a pipe": instead(os.mkfifo),
    "a socket": instead(listening),
    "a folder": instead(Path.mkdir),
    "zeros": instead(lambda path: path.symlink_to("/dev/zero")),
    "a terminal": instead(lambda path: path.symlink_to("/dev/tty")),
    "a link to nothing": instead(lambda path: path.symlink_to(path.with_name("nothing"))),
    "a link to itself": instead(lambda path: path.symlink_to(path)),
    "a link to a pipe": instead(to_pipe),
}


def places(content: Any, outer: tuple = ()) -> Iterator[tuple]:
    """Walk through the places of a JSON value."""
    if outer:
        yield outer
    numbered = enumerate(content) if isinstance(content, list) else ()
    for key, part in content.items() if isinstance(content, dict) else numbered:
        yield from places(part, (*outer, key))

"""Files are written whole or not at all, whoever else writes there."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import pytest

from elman import files
from elman.files import write_atomically, write_folder

both = pytest.mark.parametrize("durable", [False, True])


@both
def test_a_full_disk_leaves_what_was(tmp_path, monkeypatch, durable):
    """The old content, and nothing beside it."""

    def fail(path, data):
        with open(path, "wb") as file:
            file.write(data[: len(data) // 2])
        raise OSError(errno.ENOSPC, "No space left on device")

    path = tmp_path / "config.json"
    write_atomically(path, b"old", durable)
    assert path.read_bytes() == b"old"
    monkeypatch.setattr(files, "write_through", fail)
    monkeypatch.setattr(Path, "write_bytes", fail)
    with pytest.raises(OSError, match="No space left"):
        write_atomically(path, b"new", durable)
    monkeypatch.undo()

    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["config.json"]


def write_one(path: Path, data: bytes) -> None:
    """Write a file."""
    write_atomically(path, data, durable=True)


def write_two(path: Path, data: bytes) -> None:
    """Write a folder of two files."""
    write_folder(path, {"a": data, "b": data})


@pytest.mark.parametrize("write", [write_one, write_two])
def test_hosts_that_share_a_folder(tmp_path, monkeypatch, write):
    """Processes of one number, on two machines, write at once: the last one stays, whole."""
    plain, others = files.write_through, [b"theirs"]

    def interrupted(path, data):
        plain(path, data)
        if others:
            write(tmp_path / "one", others.pop())

    monkeypatch.setattr(files, "write_through", interrupted)
    write(tmp_path / "one", b"ours")
    assert os.listdir(tmp_path) == ["one"]
    found = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert {path.read_bytes() for path in found} == {b"ours"}


@both
@pytest.mark.skipif(os.name == "nt", reason="modes of files are POSIX'")
def test_others_may_read_what_they_could(tmp_path, durable):
    """A file has the mode that the process gives its files, or is private."""
    before = os.umask(0o027)
    try:
        write_atomically(tmp_path / "report.html", b"<html>", durable)
        write_atomically(tmp_path / "kernel.so", b"", durable, private=True)
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "report.html").stat().st_mode) == 0o640
    assert stat.S_IMODE((tmp_path / "kernel.so").stat().st_mode) == 0o600

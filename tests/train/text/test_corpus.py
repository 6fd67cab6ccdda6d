"""Reading and splitting texts, good and bad ones."""

from __future__ import annotations

import sysconfig
from pathlib import Path

import pytest

from elman.errors import RunError
from elman.train.tasks.text import corpus
from elman.train.tasks.text.corpus import load, split


def test_standard_library_without_tests_and_packages():
    """The text is this Python's sources; no test, no installed package, no generated table."""
    root = Path(sysconfig.get_path("stdlib"))
    names = corpus.files_below(root, skip=corpus.NOT_LIBRARY)

    assert {"argparse.py", "json/decoder.py"} <= set(names)
    assert not [name for name in names if corpus.NOT_LIBRARY & set(name.split("/")[:-1])]


def test_standard_library_is_enough_to_train_on():
    """Megabytes, nine tenths of it for training, in many files."""
    found = load(None)

    assert len(found.train) + len(found.valid) > 2_000_000
    assert 0.08 < len(found.valid) / (len(found.train) + len(found.valid)) < 0.2
    assert found.train_files > found.valid_files > 5


def test_split_is_by_file_and_ignores_order():
    """Whole files on either side, the same ones for any order of the listing."""
    documents = {f"{n}.txt": f"<{n}>" * 50 for n in range(40)}
    ours, theirs = split(documents, "x"), split(dict(reversed(documents.items())), "x")

    valid = {name for name, text in documents.items() if text in ours.valid}
    train = {name for name, text in documents.items() if text in ours.train}
    assert valid | train == {*documents}
    assert not valid & train
    assert ours.valid == theirs.valid
    del documents["0.txt"]
    assert ours.digest != split(documents, "x").digest


@pytest.mark.parametrize("count", [2, 3])
def test_few_files_leave_something_on_both_sides(count):
    """Neither side is ever empty."""
    found = split({f"{n}": "text" for n in range(count)}, "x")

    assert found.train
    assert found.valid


def test_one_file_is_cut(tmp_path):
    """The last tenth of a single file validates; line ends become newlines."""
    path = tmp_path / "one.txt"
    path.write_bytes("\ufeffäb\r\n".encode() * 1 + b"cd\r\n" * 99)
    found = load(str(path))

    assert found.train + found.valid == "äb\n" + "cd\n" * 99
    assert len(found.valid) == 30


def test_folder_skips_what_is_no_text(tmp_path):
    """Binary and empty files are left out; hidden ones are not looked at."""
    (tmp_path / "a.txt").write_text("hello " * 10)
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "b.txt").write_text("world " * 10)
    (tmp_path / "c.bin").write_bytes(b"\x00\x01")
    (tmp_path / "d.txt").write_text("")
    (tmp_path / ".hidden").write_text("secret")
    found = load(str(tmp_path))

    assert "secret" not in found.train + found.valid
    assert (found.train_files, found.valid_files) == (1, 1)


BAD = {
    "missing": (None, "the data file or folder does not exist"),
    "empty": (b"", "the data file is empty"),
    "blank": (b" \n\n ", "the data file is empty"),
    "zeros": (b"text\0text", "not UTF-8 text\n.*\n.*a zero byte at offset 4"),
    "latin1": ("café".encode("latin1"), "not UTF-8 text\n.*\n.*at offset 3"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_file(name, tmp_path):
    """Each bad file is told with its path."""
    content, message = BAD[name]
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)

    with pytest.raises(RunError, match=message) as caught:
        load(str(path))
    assert str(path) in str(caught.value)


def test_bad_folder(tmp_path):
    """A folder without text is told, with the reason."""
    (tmp_path / "a.bin").write_bytes(b"\0")
    told = r"no text file in the folder(.|\n)*a.bin: the data file is not UTF-8 text"
    with pytest.raises(RunError, match=told):
        load(str(tmp_path))

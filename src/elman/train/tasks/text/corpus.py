"""Where the text comes from: the standard library's sources, one file, a folder, parts, or a name.

Files whose names say that they are the parts of one data set (`ptb.train.txt`, `ptb.valid.txt`,
`ptb.test.txt`) are these. Other files are split into training and validation by the hash of their
relative names, so the split depends on neither the order of a directory listing nor on a seed.
"""

from __future__ import annotations

import hashlib
import os
import re
import sysconfig
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from elman.errors import RunError, diagnostic
from elman.files import read_file
from elman.train.tasks.sequences.finding import fetched, package

WIKITEXT = ("Salesforce/wikitext", "wikitext-2-v1")  # on the Hugging Face hub


def wikitext() -> tuple[str, str, int, int, tuple[str, ...], str]:
    """Fetch WikiText-2, words as they are tokenized there; datasets keeps it for the next time.
    Raises MissingPackageError: datasets is not installed; RunError: there is no network."""
    whole = fetched("wikitext-2", package("datasets").load_dataset, *WIKITEXT)
    train, valid, test = (lines_of(whole[part]) for part in ("train", "validation", "test"))
    return train, valid, 0, 0, (), test


def lines_of(part: Any) -> str:
    """Join the lines of a part; each ends in one newline."""
    return "".join(line.removesuffix("\n") + "\n" for line in part["text"])


def treebank() -> Any:
    """Say what is wanted of the Penn Treebank: its text may not be passed on."""
    text = "the Penn Treebank is not to be had by name"
    raise RunError(
        text,
        "elman train text --preset small --data FOLDER",
        wanted="a folder of ptb.train.txt, ptb.valid.txt and ptb.test.txt",
    )


# By name: what a corpus has behind its source.
NAMED: dict[str, Callable[[], Any]] = {"wikitext-2": wikitext, "ptb": treebank}


VALIDATION_SHARE = 0.1
VALIDATION_NAMES = ("valid", "validation", "val", "dev")
# Tests and installed packages are not the library; encodings are generated tables, alike in
# dozens of files, so that validation files would be known from training.
NOT_LIBRARY = {"test", "tests", "idle_test", "site-packages", "dist-packages", "encodings"}


@dataclass(frozen=True)
class Document:
    """One file's text under its name relative to the corpus."""

    name: str
    text: str


@dataclass(frozen=True)
class Corpus:
    """A text split into training and validation.

    Attributes:
        source: where it came from, for people.
        train, valid: the two texts; files are joined by a blank line.
        train_files, valid_files: number of files in each; 0 and 0 where one file was cut, and
            where each is a file of its own.
        skipped: names of files that are not text, with the reason.
        test: a third text, to be predicted once, at the end; "" if there is none.
    """

    source: str
    train: str
    valid: str
    train_files: int
    valid_files: int
    skipped: tuple[str, ...] = ()
    test: str = ""

    @property
    def digest(self) -> str:
        """Hash of all texts: a resumed run must see what it saw before."""
        parts = f"{len(self.train)}\n{self.train}{self.valid}"
        if self.test:
            parts = f"{len(self.valid)}\n{parts}{self.test}"
        return hashlib.sha256(parts.encode("utf-8", "surrogatepass")).hexdigest()


def load(data: str | None) -> Corpus:
    """Read the text to train on: the standard library, a file, or all text files of a folder.

    Args:
        data: path of a file or folder, or a name of `download.NAMED`; None for the running
            Python's standard library.

    Raises:
        RunError: if the path is missing, or holds no text.
    """
    if data is None:
        return standard_library()
    path = Path(data).expanduser()
    if data in NAMED and not path.exists():
        return Corpus(data, *NAMED[data]())
    if parts := parts_of(path):
        train, valid, *test = map(read_text, parts)
        return Corpus(str(path), train, valid, 0, 0, test="".join(test))
    if path.is_dir():
        return split(*read_folder(path), source=str(path))
    if path.exists():
        return split([Document(path.name, read_text(path))], [], source=str(path))
    raise RunError("the data file or folder does not exist", path=path)


def parts_of(path: Path) -> tuple[Path, ...]:
    """Find the files of a data set that comes in parts: to train, to validate, and maybe to test.

    Args:
        path: the training file, beside which the others lie, or the folder of them all.

    Returns:
        Nothing if names do not tell, or tell of several data sets.
    """
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    found = [parts for file in files if (parts := parts_beside(file))]
    return found[0] if len(found) == 1 else ()


def parts_beside(file: Path) -> tuple[Path, ...]:
    """Find the files that are named as a training file is, but for the part."""
    if "train" not in re.split(r"[^a-z]+", file.name.lower()) or not file.is_file():
        return ()

    def part(name: str) -> Path:
        return file.with_name(re.sub(r"train(?![a-z])", name, file.name))

    valid = next((part(name) for name in VALIDATION_NAMES if part(name).is_file()), None)
    if valid is None or valid == file:
        return ()
    return (file, valid, part("test")) if part("test").is_file() else (file, valid)


def standard_library() -> Corpus:
    """Read the .py sources of the running Python's standard library."""
    root = Path(sysconfig.get_path("stdlib"))
    names = [name for name in files_below(root, skip=NOT_LIBRARY) if name.endswith(".py")]
    documents, skipped = read_all(root, (name for name in names if "_sysconfigdata" not in name))
    if not documents:
        raise RunError(
            "this Python comes without the sources of its standard library",
            "elman train --data FILE_OR_FOLDER",
            path=root,
        )
    return split(documents, skipped, source="the standard library of this Python")


def read_folder(root: Path) -> tuple[list[Document], list[str]]:
    """Read every text file below a folder; hidden and binary files are left out."""
    documents, skipped = read_all(root, files_below(root, skip=set()))
    if not documents:
        details = [("path", str(root)), *(("not", line) for line in skipped[:3])]
        raise RunError(diagnostic("no text file in the folder", details))
    return documents, skipped


def files_below(root: Path, skip: set[str]) -> list[str]:
    """List files below a folder, sorted, relative, without hidden ones and skipped folders."""
    names = []
    for folder, folders, files in os.walk(root):
        folders[:] = [name for name in folders if name not in skip and name[0] not in "._"]
        base = Path(folder).relative_to(root)
        names += [(base / name).as_posix() for name in files if not name.startswith(".")]
    return sorted(names)


def read_all(root: Path, names: Iterable[str]) -> tuple[list[Document], list[str]]:
    """Read files; the second list tells what is not text and why."""
    documents, skipped = [], []
    for name in names:
        try:
            documents.append(Document(name, read_text(root / name)))
        except RunError as error:
            skipped.append(f"{name}: {str(error).splitlines()[0]}")
    return documents, skipped


def read_text(path: Path) -> str:
    """Read one UTF-8 file with line ends as newlines. Raises RunError: it cannot be read, is empty,
    or is no UTF-8 text."""
    try:
        raw = read_file(path)
    except OSError as error:
        raise RunError("the data file cannot be read", path=path, error=error.strerror) from error
    if not raw.strip():
        raise RunError("the data file is empty", path=path)
    if (zero := raw.find(b"\0")) >= 0:
        raise RunError(binary(path, f"a zero byte at offset {zero}"))
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise RunError(binary(path, f"{error.reason} at offset {error.start}")) from error
    return text.replace("\r\n", "\n").replace("\r", "\n")


def binary(path: Path, found: str) -> str:
    """Build the message for a file that is no UTF-8 text."""
    hint = "iconv -f latin1 -t utf-8 OLD > NEW turns an older encoding into UTF-8"
    return diagnostic(
        "the data file is not UTF-8 text", [("path", str(path)), ("found", found)], hint
    )


def split(documents: list[Document], skipped: list[str], source: str) -> Corpus:
    """Split into training and validation: by file, or one file into front and back.

    Files go to validation in the order of their names' hashes until a tenth of all characters
    is there; the last file always stays in training.
    """
    if len(documents) == 1:
        text = documents[0].text
        cut = len(text) - max(1, round(VALIDATION_SHARE * len(text)))
        return Corpus(source, text[:cut], text[cut:], 0, 0, tuple(skipped))
    wanted = VALIDATION_SHARE * sum(len(document.text) for document in documents)
    ordered = sorted(documents, key=lambda document: name_hash(document.name))
    count, taken = 0, 0
    while taken < wanted and count < len(ordered) - 1:
        taken += len(ordered[count].text)
        count += 1
    valid, train = ordered[:count], ordered[count:]
    front, back = ("\n\n".join(document.text for document in part) for part in (train, valid))
    return Corpus(source, front, back, len(train), len(valid), tuple(skipped))


def name_hash(name: str) -> bytes:
    """Hash a relative file name."""
    return hashlib.sha256(name.encode("utf-8", "surrogateescape")).digest()

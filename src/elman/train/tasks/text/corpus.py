"""Sources of text: the standard library's sources, one file, a folder, parts of a data set, a name.

Files whose names say that they are the parts of one data set (`ptb.train.txt`, `ptb.valid.txt`,
`ptb.test.txt`) are these. Other files are split into training and validation by the hash of their
relative names, so the split depends on neither the order of a directory listing nor on a seed.
"""

from __future__ import annotations

import hashlib
import os
import re
import sysconfig
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from elman.errors import RunError, diagnostic
from elman.files import read_file
from elman.train.tasks.sequences.source import fetch, package

WIKITEXT = ("Salesforce/wikitext", "wikitext-2-v1")  # on the Hugging Face hub
VALIDATION_SHARE = 0.1
VALIDATION_NAMES = ("valid", "validation", "val", "dev")
# Tests and installed packages are not the library; encodings are generated tables, alike in
# dozens of files, so that validation files would be known from training.
NOT_LIBRARY = {"test", "tests", "idle_test", "site-packages", "dist-packages", "encodings"}


Documents = Mapping[str, str]  # the text of each file, by its name relative to the corpus


@dataclass(frozen=True)
class Corpus:
    """A text split into training and validation.

    Attributes:
        source: where it came from, for people.
        train, valid: the two texts; files are joined by a blank line.
        train_files, valid_files: number of files in each; 0 and 0 where one file was cut, and
            where each is a file of its own.
        test: a third text, to be predicted once, at the end; "" if there is none.
    """

    source: str
    train: str
    valid: str
    train_files: int
    valid_files: int
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
        data: path of a file or folder, or wikitext-2; None for the running Python's standard
            library.

    Raises:
        RunError: if the path is missing, or holds no text.
        MissingPackageError: wikitext-2 is named, and datasets is not installed.
    """
    if data is None:
        return standard_library()
    path = Path(data).expanduser()
    if data == "wikitext-2" and not path.exists():
        return wikitext()
    if parts := parts_of(path):
        train, valid, *test = map(read_text, parts)
        return Corpus(str(path), train, valid, 0, 0, test="".join(test))
    if path.is_dir():
        return split(read_all(path, files_below(path, skip=set())), source=str(path))
    if path.exists():
        return split({path.name: read_text(path)}, source=str(path))
    raise RunError("the data file or folder does not exist", path=path)


def wikitext() -> Corpus:
    """Fetch WikiText-2, words as they are tokenized there; datasets keeps it for the next time.
    Raises MissingPackageError: datasets is not installed; RunError: there is no network."""
    dataset = fetch("wikitext-2", package("datasets").load_dataset, *WIKITEXT)
    train, valid, test = (
        "".join(line.removesuffix("\n") + "\n" for line in dataset[part]["text"])
        for part in ("train", "validation", "test")
    )
    return Corpus("wikitext-2", train, valid, 0, 0, test=test)


def parts_of(path: Path) -> tuple[Path, ...]:
    """Find the files of a data set that comes in parts: to train, to validate, and maybe to test.

    Args:
        path: the training file, beside which the others lie, or the folder of them all.

    Returns:
        Nothing if names do not tell, or tell of several data sets.
    """
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    matches = [parts for file in files if (parts := parts_beside(file))]
    return matches[0] if len(matches) == 1 else ()


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
    """Read the .py sources of the running Python's standard library. Raises RunError: this Python
    comes without them."""
    root = Path(sysconfig.get_path("stdlib"))
    names = [name for name in files_below(root, skip=NOT_LIBRARY) if name.endswith(".py")]
    documents = read_all(root, (name for name in names if "_sysconfigdata" not in name))
    return split(documents, source="the standard library of this Python")


def files_below(root: Path, skip: set[str]) -> list[str]:
    """List files below a folder, sorted, relative, without hidden ones and skipped folders."""
    names = []
    for folder, folders, files in os.walk(root):
        folders[:] = [name for name in folders if name not in skip and name[0] not in "._"]
        base = Path(folder).relative_to(root)
        names += [(base / name).as_posix() for name in files if not name.startswith(".")]
    return sorted(names)


def read_all(root: Path, names: Iterable[str]) -> Documents:
    """Read files below a folder; those that are not text are left out. Raises RunError: all are."""
    documents, skipped = {}, []
    for name in names:
        try:
            documents[name] = read_text(root / name)
        except RunError as error:
            skipped.append(f"{name}: {str(error).splitlines()[0]}")
    if not documents:
        details = [("path", str(root)), *(("not", line) for line in skipped[:3])]
        raise RunError(diagnostic("no text file in the folder", details))
    return documents


def read_text(path: Path) -> str:
    """Read one UTF-8 file with line ends as newlines. Raises RunError: it cannot be read, is empty,
    or is no UTF-8 text."""
    try:
        raw = read_file(path)
    except OSError as error:
        raise RunError("the data file cannot be read", path=path, error=error.strerror) from error
    if not raw.strip():
        raise RunError("the data file is empty", path=path)
    try:
        text = raw.decode("utf-8-sig")
        if (zero := raw.find(b"\0")) >= 0:
            raise UnicodeDecodeError("utf-8", raw, zero, zero + 1, "a zero byte")
    except UnicodeDecodeError as error:
        hint = "iconv -f latin1 -t utf-8 OLD > NEW turns an older encoding into UTF-8"
        place = f"{error.reason} at offset {error.start}"
        raise RunError("the data file is not UTF-8 text", hint, path=path, found=place) from error
    return text.replace("\r\n", "\n").replace("\r", "\n")


def split(documents: Documents, source: str) -> Corpus:
    """Split into training and validation: by file, or one file into front and back.

    Files go to validation in the order of their names' hashes until a tenth of all characters
    is there; the last file always stays in training.
    """
    if len(documents) == 1:
        (text,) = documents.values()
        cut = len(text) - max(1, round(VALIDATION_SHARE * len(text)))
        return Corpus(source, text[:cut], text[cut:], 0, 0)
    target = VALIDATION_SHARE * sum(map(len, documents.values()))
    texts = [documents[name] for name in sorted(documents, key=name_hash)]
    count, size = 0, 0
    while size < target and count < len(texts) - 1:
        size += len(texts[count])
        count += 1
    front, back = ("\n\n".join(part) for part in (texts[count:], texts[:count]))
    return Corpus(source, front, back, len(texts) - count, count)


def name_hash(name: str) -> bytes:
    """Hash a relative file name."""
    return hashlib.sha256(name.encode("utf-8", "surrogateescape")).digest()

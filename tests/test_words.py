"""The field's words: what has a name in compilers, torch or numerics is called by it.

A retired word fails with its place and the word to use; docs/glossary.md has the words that are
used in a sense of our own, and where each of them lives.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
SRC = "src/elman/*"
ENGINES = "src/elman/engines/*"
TRITON = "src/elman/engines/triton/*"
PROSE = ("src/elman/*", "README.md", "CONTRIBUTING.md", "CHANGELOG.md", "docs/*", "benchmarks/*.md")
CHOICES = (
    "src/elman/nn/*",
    "src/elman/tuning/*",
    "src/elman/cli/tune.py",
    "src/elman/explaining/*",
)
GLOSSARY = "docs/glossary.md"
PAGES = ("*.md", "docs/*.md")


class Retired(NamedTuple):
    """One word that is not said any more.

    Attributes:
        word: a part of identifiers (``atom`` finds ``Atom``, ``_atoms``, ``atom_size``, and the
            word in prose), or a regular expression of prose if it has a space in it.
        instead: what to write.
        where: files in which it is looked for: a word may mean something else in another room.
        but: lines that match are let through.
    """

    word: str
    instead: str
    where: tuple[str, ...] = PROSE
    but: str = ""


RETIRED = (
    Retired("anew", "again; new", PAGES),
    Retired("beside", "compared with; next to; in addition to", PAGES, but="besides"),
    Retired("mend", "fix", PAGES),
    Retired("atom", "gate block", but=r"_ATOM\b"),  # how tightly a term binds, in ir/printer
    Retired("home", "buffer", ("src/elman/plan/*", ENGINES)),
    Retired("redo", "rematerialise, recompute"),
    Retired("redone", "rematerialised"),
    Retired("sealed", "loop-invariant"),
    Retired("meeting", "barrier"),
    Retired("met", "seen; past a barrier", (ENGINES,)),
    Retired("programs that meet", "programs that synchronise"),
    Retired("workers (that )?meet", "workers synchronise, wait at a barrier"),
    Retired(
        "in turn",
        "sequentially; interleaved (timing); one after another",
        but=r'"(steps )?in turn"',
    ),
    Retired("in_turn", "sequentially, sequential"),
    Retired("turned", "time_reversed, transposed", (ENGINES,)),
    Retired("stretch", "time chunk; span"),
    Retired("wave", "wavefront", (ENGINES,)),
    Retired("octave", "size bucket"),
    Retired("size class(es)?", "size bucket"),
    Retired("hopeless", "pruned"),
    Retired("crowd", "oversubscription"),
    Retired("crew", "concurrent launches"),
    Retired("seat", "task"),
    Retired("lane", "stream", (TRITON, "src/elman/engines/together.py")),
    Retired(
        "room", "occupancy, capacity, resident programs", ("src/elman/engines/triton/occupancy.py",)
    ),
    Retired(r"\(K\d\)", "nothing: it referred to a plan that is gone", (SRC,)),
    Retired("measured now", "benchmarked now", CHOICES),
    Retired(r"errors import .*\brows\b", "diagnostic", (SRC,)),
)


def _pattern(retired: Retired) -> re.Pattern[str]:
    word = retired.word
    if re.search(r"[ \\(]", word):  # prose: at any case, over the ends of lines and comments
        return re.compile(rf"(?i)(?<!\w){word}(?!\w)".replace(" ", r"\s+(?:#\s+)?"))
    plural = rf"{word}(?:e?s)?"
    return re.compile(
        rf"(?<![A-Za-z0-9]){plural}(?![a-z0-9])|(?<![A-Z])(?:{plural.capitalize()})(?![a-z0-9])"
        rf"|(?<![A-Za-z0-9]){word.upper()}S?(?![A-Za-z0-9])"
    )


PATTERNS = {retired: _pattern(retired) for retired in RETIRED}
LITERALS = {  # a part of every match, small: what does not have it is not searched
    retired: max(
        re.findall(r"[a-z_]+", re.sub(r"\(.*?\)\??|\\.", " ", retired.word)), key=len, default=""
    )
    for retired in RETIRED
}


def complaints(text: str, path: str) -> Iterator[str]:
    """A line for each retired word in a file."""
    small = text.lower()
    for retired, pattern in PATTERNS.items():
        if LITERALS[retired] in small and any(fnmatch(path, glob) for glob in retired.where):
            for match in pattern.finditer(text):
                start = text.rfind("\n", 0, match.start()) + 1
                line = text[start : text.find("\n", match.end())]
                if not retired.but or not re.search(retired.but, line):
                    number = text.count("\n", 0, match.start()) + 1
                    said = " ".join(match[0].split())
                    yield f"{path}:{number}: {said!r}; say {retired.instead!r}"


def _files() -> Iterator[Path]:
    for folder, suffixes in (("src", (".py", ".h", ".html")), ("docs", (".md",)), (".", (".md",))):
        paths = (ROOT / folder).glob("*" if folder == "." else "**/*")
        yield from (
            path
            for path in paths
            if path.suffix in suffixes and path.is_file() and "_built" not in path.parts
        )


def test_no_retired_words():
    """Neither in identifiers, nor in comments, docstrings, messages, helps and documents."""
    said = [
        complaint
        for path in _files()
        if path.relative_to(ROOT).as_posix() != GLOSSARY
        for complaint in complaints(path.read_text("utf-8"), path.relative_to(ROOT).as_posix())
    ]
    assert not said, "\n".join(said)


def test_words_are_found():
    """In every form in which identifiers and prose have them; within another word it is another."""
    lines = ["self._atoms = []", "class Atom: pass", "x = leafAtom", "# they run in\n# turn"]
    lines += ['"""Values that are Sealed."""', "OCTAVES = 3", 'help="One size class."']
    for line in lines:
        assert len(list(complaints(f"{line}\n", "src/elman/x.py"))) == 1, line
    for line in ("atomic = 1", "_ATOM = 2", "anatomy", "the metal sheet", "redouble"):
        assert not list(complaints(f"{line}\n", "src/elman/ir/printer.py")), line


def test_glossary_names_files_that_exist():
    """Whoever looks a term up can open the file."""
    text = (ROOT / GLOSSARY).read_text("utf-8")
    places = re.findall(r"`([\w/]+\.(?:py|h))`", text)
    assert len(places) > 30
    roots = (ROOT, ROOT / "src" / "elman")
    missing = [place for place in places if not any((root / place).exists() for root in roots)]
    assert not missing

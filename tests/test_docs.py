"""Documents say what the code is now: files and names that exist, prints that it prints."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from types import ModuleType

import pytest

from helpers import need_engine
from scripts import module_of

ROOT = Path(__file__).parents[1]
TOUR = ROOT / "docs" / "tour.md"
WRITTEN = ROOT / "docs" / "_built"  # by `make docs`, maybe long ago
PAGES = sorted(
    page
    for page in (*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"))
    if WRITTEN not in page.parents
)
FILES = [
    path.relative_to(ROOT).as_posix()
    for folder in ("src", "tests", "docs", "benchmarks", "examples")
    for path in (ROOT / folder).rglob("*.*")
]
STOP = re.compile(r"^## \d+\. `([\w/]+\.py)`(.*?)(?=^## )", re.MULTILINE | re.DOTALL)
STOPS = STOP.findall(TOUR.read_text("utf-8"))


@pytest.fixture(scope="module")
def tour() -> ModuleType:
    """docs/tour.py, which makes the prints."""
    return module_of(TOUR.with_suffix(".py"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_named_files_exist(page):
    """A path, or the end of one; ``cells/<name>.py`` is none."""
    named = set(re.findall(r"`([\w./]+\.(?:py|h|c|md))`", page.read_text("utf-8")))
    missing = [name for name in named if not any(f"/{path}".endswith(f"/{name}") for path in FILES)]
    assert not [name for name in missing if not (ROOT / name).exists()]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(page):
    """Links between pages; what the site's build writes is looked up by test_site.py."""
    links = re.findall(r"\]\((?!_built/)([^)#:]+\.md)\)", page.read_text("utf-8"))
    assert not [link for link in links if not (page.parent / link).exists()]


def _defined(path: Path) -> set[str]:
    """What a file defines: functions, classes, and the methods of those."""
    names: set[str] = set()
    for node in ast.parse(path.read_text("utf-8")).body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            names.add(node.name)
            inside = node.body if isinstance(node, ast.ClassDef) else []
            names |= {f"{node.name}.{e.name}" for e in inside if isinstance(e, ast.FunctionDef)}
    return names


def test_the_tour_has_eleven_stops():
    """No more than a newcomer reads in one go."""
    assert 5 < len(STOPS) <= 11


@pytest.mark.parametrize("file, text", STOPS, ids=[file for file, _ in STOPS])
def test_names_to_look_at(file, text):
    """Each stop names two to four definitions of its file, and they are there."""
    look = text.partition("- **Look at**:")[2].partition("\n\n")[0]
    names = [name for name in re.findall(r"`([\w.]+)`", look) if not name.endswith((".py", ".c"))]
    assert 2 <= len(names) <= 4
    assert set(names) <= _defined(ROOT / "src" / "elman" / file)


def test_the_prints_are_the_codes_own(tour):
    """If the change is meant: python docs/tour.py, and read the diff."""
    need_engine("c")
    page = TOUR.read_text("utf-8")
    assert page == tour.filled(page, tour.prints())


def test_a_print_has_its_place(tour):
    """Neither a print without a place on the page, nor a place without a print."""
    page = "<!-- print: graph -->\n```text\nold\n```\n"
    assert "new" in tour.filled(page, {"graph": "new"})
    for made in ({}, {"graph": "new", "step": "more"}):
        with pytest.raises(ValueError, match="places for"):
            tour.filled(page, made)

"""What pages show of measurements is what the committed results give."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

from elman.bench.readme import END, names_in, rewritten, section
from elman.bench.suites import SUITES
from elman.errors import InputError

ROOT = Path(__file__).parents[1]


def load() -> Any:
    """benchmarks/readme.py as a module."""
    spec = importlib.util.spec_from_file_location("pages", ROOT / "benchmarks" / "readme.py")
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    sys.modules["pages"] = script
    spec.loader.exec_module(script)
    return script


SCRIPT = load()
PLACES = [
    (page, name)
    for page in SCRIPT.PAGES
    for name in names_in((ROOT / page).read_text(encoding="utf-8"))
]


@pytest.mark.parametrize("page, name", PLACES)
def test_pages_show_the_committed_results(page, name):
    """If it differs: python benchmarks/readme.py."""
    text = (ROOT / page).read_text(encoding="utf-8")
    place = section(text, name)
    assert place is not None
    assert text[slice(*place)].strip() == SCRIPT.content(name)


def test_every_figure_has_its_place():
    """Once each; README has tables of suites."""
    names = [name for _, name in PLACES]
    assert len(names) == len(set(names))
    assert {*names} >= SCRIPT.FIGURES.keys()
    assert {*names} - SCRIPT.FIGURES.keys() >= {"foundation"}
    assert not SCRIPT.FIGURES.keys() & SUITES.keys()


def test_pages_are_written_anew(tmp_path, monkeypatch):
    """Whatever stands between the markers, in a sentence or on lines of its own."""
    figure = next(iter(SCRIPT.FIGURES))
    (tmp_path / "page.md").write_text(f"a <!-- bench:{figure} -->9{END} b\n")
    monkeypatch.setattr(SCRIPT, "ROOT", tmp_path)
    monkeypatch.setattr(SCRIPT, "PAGES", ("page.md",))
    monkeypatch.setitem(SCRIPT.FIGURES, figure, lambda: "12")
    SCRIPT.main()
    assert (tmp_path / "page.md").read_text() == f"a <!-- bench:{figure} -->12{END} b\n"
    lines = f"<!-- bench:x -->\nold\n{END}"
    assert rewritten(lines, "x", "new") == f"<!-- bench:x -->\nnew\n{END}"
    with pytest.raises(InputError, match="neither a suite nor a figure"):
        SCRIPT.content("none")

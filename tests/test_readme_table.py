"""What pages show of measurements is what the committed results give."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import readme
from benchmarks.pages import END, names_in, rewritten, section
from benchmarks.suites import SUITES
from elman.errors import InputError

ROOT = Path(__file__).parents[1]
PLACES = [
    (page, name)
    for page in readme.PAGES
    for name in names_in((ROOT / page).read_text(encoding="utf-8"))
]


@pytest.mark.parametrize("page, name", PLACES)
def test_pages_show_the_committed_results(page, name):
    """If it differs: python -m benchmarks.readme."""
    text = (ROOT / page).read_text(encoding="utf-8")
    place = section(text, name)
    assert place is not None
    assert text[slice(*place)].strip() == readme.content(name)


def test_every_figure_has_its_place():
    """Once each; README has tables of suites."""
    names = [name for _, name in PLACES]
    assert len(names) == len(set(names))
    assert {*names} >= readme.FIGURES.keys()
    assert {*names} - readme.FIGURES.keys() >= {"foundation"}
    assert not readme.FIGURES.keys() & SUITES.keys()


def test_pages_are_written_anew(tmp_path, monkeypatch):
    """Whatever stands between the markers, in a sentence or on lines of its own."""
    figure = next(iter(readme.FIGURES))
    (tmp_path / "page.md").write_text(f"a <!-- bench:{figure} -->9{END} b\n")
    monkeypatch.setattr(readme, "ROOT", tmp_path)
    monkeypatch.setattr(readme, "PAGES", ("page.md",))
    monkeypatch.setitem(readme.FIGURES, figure, lambda: "12")
    readme.main()
    assert (tmp_path / "page.md").read_text() == f"a <!-- bench:{figure} -->12{END} b\n"
    lines = f"<!-- bench:x -->\nold\n{END}"
    assert rewritten(lines, "x", "new") == f"<!-- bench:x -->\nnew\n{END}"
    with pytest.raises(InputError, match="neither a suite nor a figure"):
        readme.content("none")

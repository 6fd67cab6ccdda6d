"""Figures of pages: what was measured stands between markers, written from committed rows.

A figure elsewhere in prose has "by hand" in its paragraph, or is none of ours: a limit of the
code, a size, a paper's.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
WHOLE = "docs/steps_measured.md"  # a script writes all of it
DOCS = (str(p.relative_to(ROOT)) for p in (ROOT / "docs").glob("*.md"))
PAGES = ["README.md", "paper/paper.md", *sorted(DOCS)]
PAGES.remove(WHOLE)
GENERATED = re.compile(r"<!-- bench:.*?<!-- /bench -->", re.DOTALL)
CODE = re.compile(r"```.*?```|`[^`]*`", re.DOTALL)
UNITS = r"x\b|times\b|µs|ns\b|ms\b|s\b(?! =)|GFLOP/s|MiB|% of"
FIGURE = re.compile(rf"(?<![\w.])\d[\d.,]*(?: to \d[\d.,]*)?\s?(?:{UNITS})")
OTHERS = {  # by page: limits, sizes, figures of papers and of arithmetic
    "docs/cells.md": {"0 times"},
    "docs/classification.md": {"32 x"},
    "docs/gpus.md": {"30 times", "0.5 µs"},
    "docs/how_elman_chooses.md": {"1.6 times", "20 ms", "0.2 s"},
    "docs/language_models.md": {"2 x"},
    "docs/precision.md": {"16 MiB", "8 MiB"},
    "docs/results.md": {"3x"},
    "docs/when_it_helps.md": {"80 % of", "1.25 times"},
    "docs/workers.md": {"5 µs"},
}


def figures(text: str) -> list[str]:
    """Figures with a unit of time, speed or memory that nothing says to be measured by hand."""
    text = CODE.sub("", GENERATED.sub("", text))
    paragraphs = re.split(r"\n\s*\n|\n(?=- )", text)
    return [
        match[0] for part in paragraphs if "by hand" not in part for match in FIGURE.finditer(part)
    ]


@pytest.mark.parametrize("page", PAGES)
def test_figures_are_of_rows(page: str) -> None:
    """Every figure is generated, or its source is said."""
    found = figures((ROOT / page).read_text(encoding="utf-8"))
    assert set(found) == OTHERS.get(page, set())


def test_what_is_a_figure() -> None:
    """Between markers, in code and beside "by hand" there is none to be found."""
    text = "a step is 1.5 to 2.5x as fast, <!-- bench:gain -->3x<!-- /bench -->, `4 ms`\n\n"
    text += "and took 5 ms (by hand)\n- or 6 s"
    assert figures(text) == ["1.5 to 2.5x", "6 s"]

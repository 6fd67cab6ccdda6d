"""The README's measured table is the one that the committed results give."""

from __future__ import annotations

from pathlib import Path

import pytest

from elman.bench.readme import markdown, section, start_of
from elman.bench.results import read_rows
from elman.bench.suites import SUITES

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("suite", SUITES.values(), ids=lambda suite: suite.name)
def test_readme_shows_the_committed_results(suite):
    """If it differs: python benchmarks/readme.py."""
    readme = ROOT / "README.md"
    text = readme.read_text(encoding="utf-8") if readme.exists() else ""
    place = section(text, suite)
    if place is None:
        pytest.skip(f"README.md has no markers {start_of(suite)}")
    results = ROOT / "benchmarks" / "results" / f"{suite.name}.jsonl"
    if "|" not in text[slice(*place)] and not results.exists():
        pytest.skip(f"no results of {suite.name} are committed and README.md shows none")
    rows = read_rows(results)
    assert text[slice(*place)].strip() == markdown(suite, rows)

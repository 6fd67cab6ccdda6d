"""The page of results: a bar for each comparison, missed targets marked, columns explained."""

from __future__ import annotations

import re
from pathlib import Path
from types import ModuleType

import pytest

from benchmarks.cases import OURS
from benchmarks.rows import read_rows
from benchmarks.suites import SUITES
from benchmarks.table import COLUMNS, reached

ROOT = Path(__file__).parents[1]


@pytest.fixture
def page(monkeypatch) -> ModuleType:
    """docs/results_page.py."""
    monkeypatch.syspath_prepend(ROOT / "docs")
    return pytest.importorskip("results_page")


@pytest.mark.parametrize("name", ["foundation", "users"])
def test_bars_of_a_suite(page, name):
    """One for each case that is compared; those that miss their target say so."""
    rows = [*read_rows(page.RESULTS / f"{name}.jsonl").values()]
    text = "\n".join(page.bars(SUITES[name], rows))
    assert text.count('class="track') == sum(OURS in row.get("ratio", {}) for row in rows)
    missed = [row for row in rows if reached(row) is False and row["asked"]["ratio"]]
    assert text.count('class="missed"') == len(missed)
    assert all(0 <= float(width) <= 100 for width in re.findall(r"width: ([\d.]+)%", text))


def test_targets_are_counted(page):
    assert re.match(r"\d+ of \d+ targets are met\. Missed: .*torchrl gru", page.targets())


def test_columns_are_explained_under_their_names():
    """As the tables call them."""
    text = (ROOT / "docs" / "results.md").read_text("utf-8")
    explained = set(re.findall(r"^\| ([^|]+?) \|", text, re.MULTILINE))
    shown = ("case", "baseline", OURS, "ratio", "first", "target", "c", "error", "speed", "others")
    assert {COLUMNS[name][0] for name in shown} <= explained

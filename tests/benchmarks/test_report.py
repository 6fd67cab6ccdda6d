"""A suite's page: self-contained, whole with little data, safe with any text."""

from __future__ import annotations

import re

from benchmarks.report import BenchPage, write_report
from benchmarks.rows import curve


def bench_page(**changes) -> BenchPage:
    """A page of two cases, one of them short of its aim."""
    ratio = {"q1": 1.0, "median": 2.0, "q3": 3.0}
    fields = {
        "name": "benchmarks small",
        "question": "How fast <is> it?",
        "machines": ["A processor"],
        "headers": ["case", "times as fast"],
        "lines": [["gru", "2.0x"], ["lstm", "2.0x"]],
        "ratios": {"gru": ratio, "lstm": ratio},
        "aims": {"gru": 5.0},
        "shares": {"gru": 0.5},
        "plots": [curve("a <study>", "T", "n", "xy", {"newton": [(1, 3), (10, None)]})],
        "absent": {"lstm: jax": "jax is not installed"},
    }
    return BenchPage(**{**fields, **changes})


def test_a_suite_as_a_page(tmp_path):
    """Table, both plots, who was absent; texts are escaped; nothing is fetched."""
    text = write_report(tmp_path / "rows.html", "small", [bench_page()]).read_text()
    assert text.count("<svg") == 3
    assert "a &lt;study&gt;" in text
    for output in ("How fast &lt;is&gt; it?", "A processor", "jax is not installed", "2.0x"):
        assert output in text
    assert not re.search(r'(src|href)="http', text)


def test_a_suite_without_ratios(tmp_path):
    """Starts alone: no plots, but a page."""
    empty = bench_page(ratios={}, aims={}, shares={}, plots=[], absent={})
    text = write_report(tmp_path / "rows.html", "small", [empty]).read_text()
    assert "<svg" not in text
    assert "Not measured" not in text

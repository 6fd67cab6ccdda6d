"""A suite's page: self-contained, complete with little data, safe with any text; and as a browser
shows it: no error, no figure missing, nothing wider than the window."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmarks.report import BenchPage, write_report
from benchmarks.rows import curve
from browser import DARK, needs_browser, seen

# Clicks every header, then tells what a reader would miss.
PROBE = """() => {
  const table = [...document.querySelectorAll("table.sorts")].at(-1), column = at =>
    [...table.rows].slice(1).map(row => row.cells[at].textContent.trim());
  const sorted = {};
  for (const at of [1, 0]) {
    table.rows[0].cells[at].click(); const down = column(at);
    table.rows[0].cells[at].click(); sorted[at] = [down, column(at)];
  }
  const flat = [...document.querySelectorAll("svg")].filter(
    svg => svg.getBoundingClientRect().height < 50).length;
  return {
    flat, sorted, figures: document.querySelectorAll("svg").length,
    hints: [...document.querySelectorAll(".hint title")].map(title => title.textContent),
    wide: document.documentElement.scrollWidth > innerWidth,
    ground: getComputedStyle(document.body).backgroundColor };
}"""


def page(name: str = "small", **changes) -> BenchPage:
    """A suite with every part a page can have; one of its cases is short of its aim."""
    ratio = {"q1": 1.0, "median": 2.0, "q3": 3.0}
    long = "a case whose name is rather longer than a telephone is wide, and longer still " * 2
    fields = {
        "name": name,
        "question": "How fast <is> it?",
        "machines": ["A processor"],
        "headers": ["case", "time"] + [f"column {k}" for k in range(9)],
        "lines": [
            ["b", "2 ms", *["2.0x"] * 9],
            [long, "900 µs", *["3.0x"] * 9],
            ["c", "–", *["–"] * 9],
            ["d", "1.5 s", *["10.0x"] * 9],
        ],
        "ratios": {"b": ratio, "d": {"q1": 30.0, "median": 40.0, "q3": 50.0}},
        "aims": {"b": 5.0},
        "shares": {"b": 0.5},
        "plots": [curve("a <study>", "T", "n", "xy", {"newton": [(1, 3), (10, None), (100, 4)]})],
        "absent": {"b: jax": "jax is not installed"},
        "source": "A paper",
        "claims": [("1", "it is fast", "3x", "2x", "does not hold", "it is not")],
    }
    return BenchPage(**{**fields, **changes})


def test_a_suite_as_a_page(tmp_path):
    """Table, all plots, who was absent; texts are escaped; nothing is fetched. Of starts alone no
    plots, but a page."""
    text = write_report(tmp_path / "rows.html", "small", [page()]).read_text()
    assert text.count("<svg") == 3
    assert "a &lt;study&gt;" in text
    for output in ("How fast &lt;is&gt; it?", "A processor", "jax is not installed", "2.0x"):
        assert output in text
    assert not re.search(r'(src|href)="http', text)
    empty = page(ratios={}, aims={}, shares={}, plots=[], absent={})
    text = write_report(tmp_path / "rows.html", "small", [empty]).read_text()
    assert "<svg" not in text
    assert "Not measured" not in text


@pytest.fixture(scope="module")
def report(tmp_path_factory) -> Path:
    """A report of two suites."""
    folder = tmp_path_factory.mktemp("pages")
    return write_report(folder / "report.html", "every suite", [page("one"), page("two")])


@pytest.mark.slow
@needs_browser
def test_in_a_browser(report):
    """On a telephone and on a desk nothing is missing or cut off, as light or dark as the reader's
    system; points say their values, and tables sort: units count, what has no value is last."""
    light = seen(report.parent, [report.name], (400, 1400), PROBE)
    for (_, width), result in light.items():
        assert result["width"] == width
        assert result["errors"] == []
        assert (result["figures"], result["flat"], result["wide"]) == (6, 0, False)
        assert {"newton: 1, 3", "newton: 100, 4", "b: 2.00x", "b: 50%"} <= set(result["hints"])
        down, up = result["sorted"]["1"]
        assert (down, up) == (["1.5 s", "2 ms", "900 µs", "–"], ["900 µs", "2 ms", "1.5 s", "–"])
    dark = seen(report.parent, [report.name], [1400], PROBE, DARK)
    assert dark[report.name, 1400]["ground"] != light[report.name, 1400]["ground"]


@pytest.mark.slow
@needs_browser
def test_a_page_runs_its_own_script_alone(report):
    """Should a name of somebody else's stand in it as it is, the policy forbids what it does."""
    text = report.read_text("utf-8")
    evil = (
        "<script>document.title = 'evil'</script><img src=x>"
        "<a href='javascript:document.title = 1'>x</a><base href='https://example.org/'>"
    )
    path = report.with_name("evil.html")
    text = text.replace("<h1>", f"{evil}<h1>", 1)
    # The probe's clicks on headers bubble up to this handler: an image's onerror may come too late.
    text = text.replace("<body", "<body onclick='document.title = 1'", 1)
    path.write_text(text, "utf-8")
    output = seen(path.parent, [path.name], [1000], PROBE)[path.name, 1000]
    forbidden = {error.partition(" ")[0] for error in output["errors"]}
    assert {"script-src-elem", "script-src-attr", "img-src", "base-uri"} <= forbidden
    assert output["sorted"]["1"][0] == ["1.5 s", "2 ms", "900 µs", "–"]

"""Pages as a browser shows them: no error, no figure missing, nothing wider than the window."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.report import BenchPage, write_report
from benchmarks.rows import curve
from browser import DARK, needs_browser, seen

pytestmark = [pytest.mark.slow, needs_browser]

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


def look(path: Path, width: int, *options: str) -> dict:
    """What a browser of so many pixels makes of a page."""
    return seen(path.parent, [path.name], [width], PROBE, *options)[path.name, width]


def page(name: str) -> BenchPage:
    """A suite with every part a page can have."""
    ratio = {"q1": 1.0, "median": 2.0, "q3": 3.0}
    long = "a case whose name is rather longer than a telephone is wide, and longer still " * 2
    return BenchPage(
        name=name,
        question="How fast is it?",
        machines=["A processor"],
        headers=["case", "time"] + [f"column {k}" for k in range(9)],
        lines=[
            ["b", "2 ms", *["2.0x"] * 9],
            [long, "900 µs", *["3.0x"] * 9],
            ["c", "–", *["–"] * 9],
            ["d", "1.5 s", *["10.0x"] * 9],
        ],
        ratios={"b": ratio, "d": {"q1": 30.0, "median": 40.0, "q3": 50.0}},
        aims={"b": 5.0},
        shares={"b": 0.5},
        plots=[curve("a study", "T", "n", "xy", {"newton": [(1, 3), (10, None), (100, 4)]})],
        absent={"b: jax": "jax is not installed"},
        source="A paper",
        claims=[("1", "it is fast", "3x", "2x", "does not hold", "it is not")],
    )


@pytest.fixture(scope="module")
def report(tmp_path_factory) -> Path:
    """A report of two suites."""
    folder = tmp_path_factory.mktemp("pages")
    return write_report(folder / "report.html", "every suite", [page("one"), page("two")])


@pytest.fixture(scope="module")
def light(report) -> dict[int, dict]:
    """What a browser makes of it, by the width of its window."""
    result = seen(report.parent, [report.name], (400, 1000, 1400), PROBE)
    return {width: output for (_, width), output in result.items()}


@pytest.mark.parametrize("width", [400, 1400])
def test_nothing_is_missing_or_cut_off(light, width):
    """On a telephone and on a desk."""
    result = light[width]
    assert result["width"] == width
    assert result["errors"] == []
    assert result["figures"] == 6
    assert result["flat"] == 0
    assert not result["wide"]


def test_points_say_their_values_and_tables_sort(tmp_path):
    """Units count; what has no value comes last, whichever way."""
    (tmp_path / "one").mkdir()
    result = look(write_report(tmp_path / "one" / "page.html", "one", [page("one")]), 1000)
    assert {"newton: 1, 3", "newton: 100, 4", "b: 2.00x", "b: 50%"} <= set(result["hints"])
    down, up = result["sorted"]["1"]
    assert (down, up) == (["1.5 s", "2 ms", "900 µs", "–"], ["900 µs", "2 ms", "1.5 s", "–"])


def test_light_and_dark(report, light):
    """As the reader's system has it."""
    assert look(report, 1000, DARK)["ground"] != light[1000]["ground"]


def test_a_page_runs_its_own_script_alone(report):
    """Should a name of somebody else's stand in it as it is, the policy forbids what it does."""
    text = report.read_text("utf-8")
    evil = (
        "<script>document.title = 'evil'</script><img src=x>"
        "<a href='javascript:document.title = 1'>x</a><base href='https://example.org/'>"
    )
    page = report.with_name("evil.html")
    text = text.replace("<h1>", f"{evil}<h1>", 1)
    # The probe's clicks on headers bubble up to this handler: an image's onerror may come too late.
    text = text.replace("<body", "<body onclick='document.title = 1'", 1)
    page.write_text(text, "utf-8")
    output = look(page, 1000)
    forbidden = {error.partition(" ")[0] for error in output["errors"]}
    assert {"script-src-elem", "script-src-attr", "img-src", "base-uri"} <= forbidden
    assert output["sorted"]["1"] == look(report, 1000)["sorted"]["1"]

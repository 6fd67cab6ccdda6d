"""The report: self-contained, whole with little data, safe with any text."""

from __future__ import annotations

import html
import math
import re
from html.parser import HTMLParser

import pytest

from elman.errors import RunError
from elman.report import Level, Pairs, RunPage, Scale, write_report

CURVES = {
    "step": [1, 2, 3],
    "items": [10, 20, 30],
    "train_loss": [6.0, 4.0, 3.0],
    "grad_norm": [1.0, 0.5, 0.7],
    "lr": [0.1, 0.2, 0.1],
    "valid_loss": [None, 4.5, 3.5],
    "valid_score": [None, 0.25, 0.5],
    "items_per_s": [100.0, 120.0, 110.0],
    "train_seconds": [0.1, 0.2, 0.3],
}
SPEEDS = {
    "elman": {"q1": 90.0, "median": 100.0, "q3": 120.0},
    "torch": {"q1": 40.0, "median": 50.0, "q3": 60.0},
}


def made(**changes) -> RunPage:
    """Make a page with everything on it."""
    values = {
        "name": "a run",
        "headlines": (("2.345", "bits per character"),),
        "notes": ("gru 2 x 256",),
        "curves": CURVES,
        "baseline": Level("trigram", 3.456, 0.125),
        "items": "characters",
        "loss": Scale("Loss", "bits per character", ".3f"),
        "score": Scale("Accuracy", "share predicted right", ".1%", (0, 1)),
        "speeds": SPEEDS,
        "sample": "def sample():\n    <b>&</b>",
        "tables": {"Settings": {"lr": "0.004"}},
        "folded": {"Settings": {"seed": "0"}},
        "engine_headers": ("layer", "engine"),
        "engines": (("l0", "c"),),
        "next_steps": ("elman sample runs/a",),
    }
    return RunPage(**(values | changes))


class Tags(HTMLParser):
    """Collects opened and closed tags and what they refer to."""

    def __init__(self):
        super().__init__()
        self.open, self.seen, self.refers = [], [], []

    def handle_starttag(self, tag, attributes):
        self.seen.append(tag)
        self.refers += [v for k, v in attributes if k in ("src", "href", "xlink:href") and v]
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_page_is_whole_and_needs_no_network(tmp_path):
    """All plots are inside; every tag closes; nothing refers outside the page; bytes are stable, so
    two reports can be compared."""
    text, again = (write_report(tmp_path / name, made()).read_text("utf-8") for name in "ab")
    assert text == again
    tags = Tags()
    tags.feed(text)

    assert tags.open == []
    assert tags.seen.count("svg") == 6
    assert all(target.startswith("#") for target in tags.refers)
    assert not re.search(r"@import|url\((?!#)|<script[^>]*src|<link", text)
    for word in (
        "2.345",
        "trigram 3.456",
        "trigram 12.5%",
        "gru 2 x 256",
        "0.004",
        "1 with default values",
        "elman sample runs/a",
        "&lt;b&gt;&amp;&lt;/b&gt;",
    ):
        assert word in text


def test_logarithmic_axes_have_plain_numbers(tmp_path):
    """Between powers of ten too; a loss of more than one of them is drawn so."""
    page = made(curves=CURVES | {"train_loss": [9000.0, 500.0, 400.0]})
    text = write_report(tmp_path / "report.html", page).read_text(encoding="utf-8")
    loss, norm = (text[text.index(f">{title}<") :] for title in ("Loss", "Norm of the gradient"))
    assert ">10</text>" in loss[: loss.index("</svg>")]
    assert ">0.6</text>" in norm[: norm.index("</svg>")]
    assert "mathdefault" not in text


def test_page_without_data(tmp_path):
    """A run that has just begun has a page too."""
    empty = made(
        curves={}, speeds={}, baseline=None, sample="", engines=(), next_steps=(), headlines=()
    )
    text = write_report(tmp_path / "report.html", empty).read_text(encoding="utf-8")

    assert "No metrics yet." in text
    assert "<svg" not in text


EXTREMES = [0, -1e300, 1.7e308, math.nan, math.inf]
NAMES = [("train_loss", "grad_norm", "lr"), ("valid_loss",)]


@pytest.mark.slow
@pytest.mark.parametrize(
    "value, everywhere, names", [(v, i % 2, NAMES[i // 2 % 2]) for i, v in enumerate(EXTREMES)]
)
def test_plots_of_any_number(tmp_path, value, everywhere, names):
    """In one place or everywhere, of curves in plots of their own, and of a line beside them: no
    error, no warning, and a label that fits on the page."""
    odd = {name: [value] * 3 if everywhere else [*CURVES[name][:-1], value] for name in names}
    page = made(curves=CURVES | odd, baseline=Level("trigram", value, None))
    text = write_report(tmp_path / "report.html", page).read_text()
    assert text.count("<svg") == 6
    assert "0" * 20 not in text


@pytest.mark.parametrize("name", ["$x^{\\", "\ud800caf\udce9中文", "a\x1b[2J<b>", ""])
def test_plots_of_any_name(tmp_path, name):
    """No formula, nothing that a font would have to have."""
    page = made(baseline=Level(name, 3.456, 0.125), name=name)
    shown = name.encode("unicode_escape").decode()
    text = write_report(tmp_path / "report.html", page).read_text(encoding="utf-8")
    assert f"{html.escape(shown)} 3.456" in text


def test_predictions_beside_their_targets(tmp_path):
    """Curves and points are drawn inside the page; titles are escaped."""
    shown = (Pairs("a <turn>", [1, 2], [1, 3], True), Pairs("points", [1], [2], False))
    text = write_report(tmp_path / "report.html", made(shown=shown)).read_text(encoding="utf-8")
    tags = Tags()
    tags.feed(text)

    assert tags.open == []
    assert tags.seen.count("svg") == 8
    assert "a &lt;turn&gt;" in text
    assert all(target.startswith("#") for target in tags.refers)


@pytest.mark.parametrize("over_time", [True, False])
@pytest.mark.parametrize("value", EXTREMES)
def test_predictions_of_any_number(tmp_path, value, over_time):
    """A model that diverged has a page too."""
    rows = [1.0, value, 2.0], [value] * 3
    shown = tuple(Pairs("p", [0.0, 1.0, 2.0], values, over_time) for values in rows)
    page = made(curves={}, speeds={}, shown=shown)
    assert write_report(tmp_path / "report.html", page).read_text().count("<svg") == 2


def test_page_that_cannot_be_written(tmp_path, monkeypatch):
    """A missing folder is told with the path."""
    monkeypatch.setattr("elman.report.page.draw_charts", lambda *_: [])
    with pytest.raises(RunError, match="the report cannot be written"):
        write_report(tmp_path / "none" / "report.html", made())

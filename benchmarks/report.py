"""A suite's measurements as one HTML page."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from jinja2 import ChoiceLoader, FileSystemLoader
from matplotlib.axes import Axes

from elman.report.charts import BEYOND, BLUE, GREY, RED, Chart, Quartiles, drawn, hints, logarithmic
from elman.report.page import PAGES, write_page

_TEMPLATES = FileSystemLoader(Path(__file__).with_name("templates"))
_PAGES = PAGES.overlay(loader=ChoiceLoader([_TEMPLATES, *filter(None, [PAGES.loader])]))

_ROW = 0.24  # height of a bar's row (inches)
_FEW = 60  # points that are marked
VERDICT = 4  # column of a claim's line that says whether it holds


@dataclass(frozen=True)
class Plot:
    """Curves of a study.

    Attributes:
        title, x, y: of the plot, of its axes.
        log: the names of the axes that are logarithmic, as "xy".
        lines: by name, places and values; a value that is not known is None.
    """

    title: str
    x: str
    y: str
    log: str
    lines: Mapping[str, tuple[Sequence[float], Sequence[float | None]]]


@dataclass(frozen=True)
class BenchPage:
    """What the page of a suite tells.

    Attributes:
        name: of the suite, the title.
        question: what it answers.
        machines: a line per machine that measured.
        headers, lines: the table, as text.
        ratios: by case, times as fast as the baseline.
        asked: by case, what the suite asks for.
        shares: by case, share of the peak in [0, 1].
        plots: curves of studies.
        absent: who was not measured where, and why.
        source: the paper or report whose claims are judged.
        claim_headers, claims: the table of them, as text.
    """

    name: str
    question: str
    machines: Sequence[str]
    headers: Sequence[str]
    lines: Sequence[Sequence[str]]
    ratios: Mapping[str, Quartiles]
    asked: Mapping[str, float]
    shares: Mapping[str, float]
    plots: Sequence[Plot]
    absent: Mapping[str, str]
    source: str = ""
    claim_headers: Sequence[str] = ()
    claims: Sequence[Sequence[str]] = ()


def write_benchmark(path: Path, page: BenchPage) -> Path:
    """Write the page of a suite.

    Raises:
        RunError: if the disk does not take it.
    """
    return write_page(path, _PAGES.get_template("bench.html"), page=page, charts=_charts(page))


def write_benchmarks(path: Path, title: str, pages: Sequence[BenchPage]) -> Path:
    """Write one page of several suites: what holds of their sources' claims, then each suite.

    Raises:
        RunError: if the disk does not take it.
    """
    suites = [(page, _charts(page)) for page in pages]
    page = {"name": title}
    template = _PAGES.get_template("benches.html")
    return write_page(path, template, page=page, suites=suites, counts=_counts(pages))


def _counts(pages: Sequence[BenchPage]) -> dict[str, dict[str, int]]:
    """By suite, how many claims of its source hold, do not, and were not measured."""
    return {
        page.name: Counter(line[VERDICT] for line in page.claims) for page in pages if page.claims
    }


def _charts(page: BenchPage) -> list[Chart]:
    charts: list[Chart] = []
    if page.ratios:
        height = 1.2 + _ROW * len(page.ratios)
        draw = drawn(lambda axes: _draw_ratios(axes, page), height)
        charts.append(Chart("Times as fast (median, quartiles; red: asked for)", draw))
    if page.shares:
        height = 1.2 + _ROW * len(page.shares)
        draw = drawn(lambda axes: _draw_shares(axes, page), height)
        charts.append(Chart("Share of the processor's peak", draw))
    charts += [Chart(plot.title, drawn(partial(_draw_plot, plot=plot))) for plot in page.plots]
    return charts


def _draw_ratios(axes: Axes, page: BenchPage) -> None:
    """One bar per case on a logarithmic scale, a red tick where the suite's aim is."""
    for place, (name, ratio) in enumerate(page.ratios.items()):
        spread = [[ratio["median"] - ratio["q1"]], [ratio["q3"] - ratio["median"]]]
        axes.barh(place, ratio["median"], xerr=spread, color=BLUE, height=0.65, capsize=2)
        if name in page.asked:
            axes.plot([page.asked[name]] * 2, [place - 0.4, place + 0.4], color=RED, lw=2)
    medians = [ratio["median"] for ratio in page.ratios.values()]
    texts = [f"{name}: {ratio['median']:.2f}x" for name, ratio in page.ratios.items()]
    hints(axes, medians, list(range(len(medians))), texts)
    axes.set_yticks(range(len(page.ratios)), list(page.ratios), fontsize=7)
    axes.axvline(1.0, color=GREY, lw=1)
    axes.set(xlabel="times as fast as the baseline", ylim=(len(page.ratios), -1))
    logarithmic(axes, "x")


def _draw_plot(axes: Axes, plot: Plot) -> None:
    """One line per name; what is not known leaves a gap, what is beyond all bounds is cut off."""
    for name, (places, values) in plot.lines.items():
        known = [math.nan if value is None or value > BEYOND else value for value in values]
        axes.plot(places, known, lw=1.2, label=name, marker="." if len(places) < _FEW else None)
        if len(places) < _FEW:
            texts = [f"{name}: {x:g}, {y:.4g}" for x, y in zip(places, known)]
            hints(axes, places, known, texts)
    axes.set(xlabel=plot.x, ylabel=plot.y)
    logarithmic(axes, plot.log)
    axes.legend(frameon=False)


def _draw_shares(axes: Axes, page: BenchPage) -> None:
    """One bar per case."""
    shares = list(page.shares.values())
    axes.barh(range(len(shares)), shares, color=BLUE, height=0.65)
    hints(axes, shares, range(len(shares)), [f"{n}: {s:.0%}" for n, s in page.shares.items()])
    axes.set_yticks(range(len(page.shares)), list(page.shares), fontsize=7)
    axes.set(xlim=(0, 1), ylim=(len(page.shares), -1))
    axes.set_xlabel("of the fp32 peak measured in the same run")

"""Measurements of suites as one HTML page."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from jinja2 import ChoiceLoader, FileSystemLoader
from matplotlib.axes import Axes
from matplotlib.ticker import PercentFormatter

from benchmarks.claims import HEADERS, UNDECIDED, VERDICT, spread_of
from benchmarks.pictures import times
from elman.report.charts import (
    BEYOND,
    BLUE,
    GREY,
    RED,
    Chart,
    Quartiles,
    at_end,
    logarithmic,
    render_svg,
)
from elman.report.page import PAGES, write_page

_TEMPLATES = FileSystemLoader(Path(__file__).with_name("templates"))
_PAGES = PAGES.overlay(loader=ChoiceLoader([_TEMPLATES, *filter(None, [PAGES.loader])]))

_ROW = 0.3  # height of a bar's row (inches)
_FEW = 60  # points that are marked


@dataclass(frozen=True)
class BenchPage:
    """The content of a suite's page.

    Attributes:
        name: of the suite, the title.
        question: what it answers.
        machines: a line per machine that measured.
        headers, lines: the table, as text.
        ratios: by case, times as fast as the baseline.
        aims: by case, what the suite asks for.
        shares: by case, share of the peak in [0, 1].
        plots: of the suite's sweep and of studies, as ``rows.curve`` makes them.
        absent: contestants that were not measured, by case and name, and why.
        source: the paper or report whose claims are judged.
        claims: the table of them, as text.
        tiles: (number, words) of the suite, the most important first.
    """

    name: str
    question: str
    machines: Sequence[str]
    headers: Sequence[str]
    lines: Sequence[Sequence[str]]
    ratios: Mapping[str, Quartiles]
    aims: Mapping[str, float]
    shares: Mapping[str, float]
    plots: Sequence[Mapping[str, Any]]
    absent: Mapping[str, str]
    source: str = ""
    claims: Sequence[Sequence[str]] = ()
    tiles: Sequence[tuple[str, str]] = ()


def write_report(path: Path, title: str, pages: Sequence[BenchPage]) -> Path:
    """Write one page of suites: how many claims of their sources hold, then each suite.

    Raises:
        RunError: if the disk does not take it.
    """
    suites = [(page, _charts(page)) for page in pages]
    counts = {
        page.name: Counter(line[VERDICT] for line in page.claims) for page in pages if page.claims
    }
    template, page = _PAGES.get_template("report.html"), {"name": title}
    return write_page(
        path, template, page=page, suites=suites, counts=counts, claim_headers=HEADERS
    )


def _charts(page: BenchPage) -> list[Chart]:
    charts: list[Chart] = []
    if page.ratios:
        draw = _render(partial(_draw_ratios, page=page), 1.2 + _ROW * len(page.ratios))
        charts.append(Chart("Speed-up (median, quartiles; tick: the target)", draw))
    if page.shares:
        draw = _render(partial(_draw_shares, shares=page.shares), 1.2 + _ROW * len(page.shares))
        charts.append(Chart("Share of the processor's peak", draw))
    charts += [Chart(plot["title"], _render(partial(_draw_plot, plot=plot))) for plot in page.plots]
    return charts


def _draw_ratios(axes: Axes, page: BenchPage) -> None:
    """One bar per case on a logarithmic scale, a red tick where the suite's aim is."""
    for place, (name, ratio) in enumerate(page.ratios.items()):
        spread = [[ratio["median"] - ratio["q1"]], [ratio["q3"] - ratio["median"]]]
        met = spread_of(ratio).reaches(page.aims.get(name, 0))
        colour = RED if met is False else BLUE
        axes.barh(place, ratio["median"], xerr=spread, color=colour, height=0.6, capsize=2)
        text = times(ratio["median"])
        if met is not True:
            verdict = "missed" if met is False else UNDECIDED
            text += f", target {page.aims[name]:g}x {verdict}"
        at_end(axes, ratio["q3"], place, text)
        if name in page.aims:
            ends = [page.aims[name]] * 2, [place - 0.42, place + 0.42]
            axes.plot(*ends, color="white", lw=4)
            axes.plot(*ends, color="black", lw=1.6)
    medians = {name: ratio["median"] for name, ratio in page.ratios.items()}
    _label(axes, medians, [f"{name}: {median:.2f}x" for name, median in medians.items()])
    axes.axvline(1.0, color=GREY, lw=1)
    axes.set_xlabel("speed-up over the baseline")
    logarithmic(axes, "x")
    axes.margins(x=0.2)


def _draw_shares(axes: Axes, shares: Mapping[str, float]) -> None:
    """One bar per case."""
    axes.barh(range(len(shares)), list(shares.values()), color=BLUE, height=0.6)
    for place, share in enumerate(shares.values()):
        at_end(axes, share, place, f"{share:.0%}")
    _label(axes, shares, [f"{name}: {share:.0%}" for name, share in shares.items()])
    axes.set(xlim=(0, 1), xlabel="share of the fp32 peak measured in the same run")
    axes.xaxis.set_major_formatter(PercentFormatter(1.0))


_HINT = "hint:"  # prefix of a point's hover text, which matplotlib carries as its URL


def _hints(axes: Axes, x: Sequence[float], y: Sequence[float | None], texts: Sequence[str]) -> None:
    """Give points a hover text each; unknown points have none."""
    points = [
        (a, b, text) for a, b, text in zip(x, y, texts) if b is not None and not math.isnan(b)
    ]
    if points:
        across, up, labels = zip(*points)
        dots = axes.scatter(across, up, s=90, alpha=0, zorder=9)
        dots.set_urls([_HINT + text for text in labels])


def _with_hints(svg: str) -> str:
    """Turn URLs that are hover texts into titles, which browsers show."""
    pattern = rf'<a xlink:href="{_HINT}([^"]*)"[^>]*>(.*?)</a>'
    return re.sub(pattern, r'<g class="hint"><title>\1</title>\2</g>', svg, flags=re.DOTALL)


def _render(draw: Callable[[Axes], None], height: float = 3.0) -> str:
    """:func:`render_svg`, with hover texts."""
    return _with_hints(render_svg(draw, height))


def _label(axes: Axes, values: Mapping[str, float], texts: Sequence[str]) -> None:
    """Names beside bars, the first one on top, and a text over each."""
    _hints(axes, list(values.values()), list(range(len(values))), texts)
    axes.set_yticks(range(len(values)), list(values), fontsize=9)
    axes.set_ylim(len(values), -1)


def _draw_plot(axes: Axes, plot: Mapping[str, Any]) -> None:
    """One line per name; what is not known leaves a gap, what is beyond all bounds is cut off."""
    for name, (places, values) in plot["lines"].items():
        heights = [math.nan if value is None or value > BEYOND else value for value in values]
        axes.plot(places, heights, lw=1.2, label=name, marker="." if len(places) < _FEW else None)
        if len(places) < _FEW:
            texts = [f"{name}: {x:g}, {y:.4g}" for x, y in zip(places, heights)]
            _hints(axes, places, heights, texts)
    axes.set(xlabel=plot["x"], ylabel=plot["y"])
    logarithmic(axes, plot["log"])
    axes.legend(frameon=False)

"""Plots of a page as SVG text: curves of a run, predictions compared with their targets."""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.rcsetup import cycler
from matplotlib.ticker import FuncFormatter, LogFormatter, PercentFormatter

Curves = Mapping[str, Sequence[Any]]  # a column of metrics.csv by its name
Quartiles = Mapping[str, float]  # q1, median, q3

BEYOND = 1e12  # values that a plot does not show
BLUE, RED, GREY = "#1f5fa8", "#c2452d", "#8a8f98"
COLOURS = (BLUE, "#b3541e", "#2c7a4b", "#6b5ca5", "#b7862b", "#3a8a9e", "#9c3d6b", GREY)
BEGINNING = 0.05  # share of a run whose losses an axis need not hold
STYLE: dict[Any, Any] = {
    "svg.hashsalt": "elman",  # same data, same bytes
    "svg.fonttype": "none",
    "text.parse_math": False,  # a dollar is a dollar
    "font.family": "sans-serif",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.alpha": 0.25,
    "axes.prop_cycle": cycler(color=COLOURS),
}
NO_METADATA = dict.fromkeys(("Creator", "Date", "Format", "Type"))


@dataclass(frozen=True)
class Chart:
    """A title and a drawing (SVG text)."""

    title: str
    svg: str


@dataclass(frozen=True)
class Level:
    """A dashed line of a plot: its name and values, where they are known."""

    name: str
    loss: float
    score: float | None


@dataclass(frozen=True)
class Scale:
    """Labels and number format of a plot's values.

    Attributes:
        title: of the plot.
        axis: beside it.
        form: of the baseline's value.
        limits: ends of the axis; None lets the values decide.
    """

    title: str
    axis: str
    form: str
    limits: tuple[float, float] | None = None


def draw_charts(
    curves: Curves,
    baseline: Level | None,
    speeds: Mapping[str, Quartiles],
    items: str,
    loss: Scale,
    score: Scale,
) -> list[Chart]:
    """Draw all plots there are data for.

    Args:
        items: name of the counted items, for the axes.
        loss, score: labels and formats of both.
    """
    charts = []
    curves = {name: [bound(value) for value in values] for name, values in curves.items()}
    if curves.get("step"):
        charts.append(
            Chart(
                loss.title, render_svg(lambda axes: draw_loss(axes, curves, baseline, items, loss))
            )
        )
    if any(value is not None for value in curves.get("valid_score", ())):
        charts.append(
            Chart(
                score.title,
                render_svg(lambda axes: draw_score(axes, curves, baseline, items, score)),
            )
        )
    if speeds:
        charts.append(
            Chart(
                "Speed compared with torch.nn, interleaved rounds",
                render_svg(lambda axes: draw_speeds(axes, speeds, items)),
            )
        )
    if curves.get("step"):
        charts += [
            Chart(
                "Speed of training steps", render_svg(lambda axes: draw_pace(axes, curves, items))
            ),
            Chart("Learning rate", render_svg(lambda axes: draw_rate(axes, curves))),
            Chart("Norm of the gradient", render_svg(lambda axes: draw_norm(axes, curves))),
        ]
    return charts


def render_svg(draw: Callable[[Axes], None], height: float = 3.0) -> str:
    """Run a drawing function on fresh axes (height in inches) and return the SVG element."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(5.6, height), layout="constrained")
        draw(figure.subplots())
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", metadata=NO_METADATA, transparent=True)
    text = buffer.getvalue()
    return text[text.index("<svg") :]


def logarithmic(axes: Axes, names: str) -> None:
    """Make axes ("x", "y", "xy") logarithmic, their numbers written as plain text."""
    plain = FuncFormatter(lambda value, _: f"{value:g}")
    for name in names:
        axes.set(**{f"{name}scale": "log"})
        axis = getattr(axes, f"{name}axis")
        axis.set_major_formatter(plain)
        axis.set_minor_formatter(_Between())


class _Between(LogFormatter):
    """Numbers between powers of ten, as plain text, where few powers are in sight."""

    def __call__(self, x: float, pos: int | None = None) -> str:
        return f"{x:g}" if super().__call__(x, pos) else ""


def draw_loss(axes: Axes, curves: Curves, baseline: Level | None, items: str, loss: Scale) -> None:
    """Draw training and validation loss, and the baseline's; logarithmic if the training's falls
    below a tenth, as perplexities do, or its end would lie flat on the axis."""
    axes.plot(curves["items"], curves["train_loss"], color=BLUE, lw=0.8, label="training")
    if valid := points(curves, "valid_loss"):
        axes.plot(*zip(*valid, strict=True), "o-", color=RED, ms=4, label="validation")
    if baseline is not None and abs(baseline.loss) <= BEYOND:
        label = f"{in_ascii(baseline.name)} {baseline.loss:{loss.form}}"
        axes.axhline(baseline.loss, color=GREY, ls="--", label=label)
    axes.set(xlabel=f"{items} trained on", ylabel=loss.axis)
    format_counts(axes)
    losses = [value for value in curves["train_loss"] if value is not None and value == value]
    if losses and 0 < 10 * min(losses) < max(losses):
        logarithmic(axes, "y")
    elif losses:
        later = losses[int(BEGINNING * len(losses)) :]
        marks = [value for _, value in valid if value == value]
        marks += [baseline.loss] if baseline and abs(baseline.loss) <= BEYOND else []
        axes.set_ylim(*axis_limits([*later, *marks]))
    axes.legend(frameon=False)


def at_end(axes: Axes, x: float, place: float, text: str) -> None:
    """Write a value behind the end of its bar."""
    axes.annotate(
        text, (x, place), xytext=(5, 0), textcoords="offset points", va="center", fontsize=9
    )


def axis_limits(values: Sequence[float], limits: tuple[float, float] | None = None) -> list[float]:
    """Ends of an axis that holds all values with a margin, within limits."""
    low, high = min(values), max(values)
    margin = 0.08 * (high - low) or 0.05 * abs(high) or 1.0
    ends = [low - margin, high + margin]
    return [max(ends[0], limits[0]), min(ends[1], limits[1])] if limits else ends


def format_counts(axes: Axes) -> None:
    """Write the numbers of the horizontal axis as 500, 20k or 1.5M."""
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: brief(value)))


def brief(count: float) -> str:
    """A count in four characters or so."""
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(count) >= size:
            return f"{count / size:.3g}{unit}"
    return f"{count:.3g}"


def draw_score(
    axes: Axes, curves: Curves, baseline: Level | None, items: str, score: Scale
) -> None:
    """Draw the score in validation, and the baseline's."""
    valid = points(curves, "valid_score")
    axes.plot(*zip(*valid, strict=True), "o-", color=RED, ms=4, label="validation")
    if baseline is not None and baseline.score is not None and abs(baseline.score) <= BEYOND:
        label = f"{in_ascii(baseline.name)} {baseline.score:{score.form}}"
        axes.axhline(baseline.score, color=GREY, ls="--", label=label)
    axes.set(xlabel=f"{items} trained on", ylabel=score.axis)
    values = [value for _, value in valid if value == value]
    if baseline is not None and baseline.score is not None and abs(baseline.score) <= BEYOND:
        values.append(baseline.score)
    if values:
        axes.set_ylim(*axis_limits(values, score.limits))
    if score.form.endswith("%"):
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    format_counts(axes)
    axes.legend(frameon=False)


def bound(value: float | None) -> float | None:
    """Leave a gap where a value is beyond what axes can hold; None stays None."""
    return value if value is None or abs(value) <= BEYOND else math.nan


def in_ascii(text: str) -> str:
    """Escape what matplotlib's font does not have."""
    return text.encode("unicode_escape").decode()


def points(curves: Curves, name: str) -> list[tuple[float, float]]:
    """Return the points of a column that is not filled in every row."""
    pairs = zip(curves["items"], curves[name], strict=True)
    return [(items, value) for items, value in pairs if value is not None]


def draw_pace(axes: Axes, curves: Curves, items: str) -> None:
    """Draw items per second over the run."""
    axes.plot(curves["train_seconds"], curves["items_per_s"], color=BLUE, lw=0.8)
    axes.set(xlabel="seconds of training", ylabel=f"{items}/s")
    usual = [value for value in curves["items_per_s"] if value is not None and value == value]
    if usual:  # a step in a hundred may be timed far too short
        axes.set_ylim(0, 1.25 * max(1e-9, float(np.quantile(usual, 0.95))))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: brief(value)))


def draw_rate(axes: Axes, curves: Curves) -> None:
    """Draw the learning rate over the run."""
    axes.plot(curves["step"], curves["lr"], color=BLUE)
    axes.set(xlabel="step", ylabel="learning rate", ylim=(0, None))
    format_counts(axes)


def draw_norm(axes: Axes, curves: Curves) -> None:
    """Draw the gradient's norm over the run."""
    axes.plot(curves["step"], curves["grad_norm"], color=BLUE, lw=0.8)
    axes.set(xlabel="step", ylabel="norm before clipping")
    format_counts(axes)
    if any(norm > 0 for norm in curves["grad_norm"]):
        logarithmic(axes, "y")


def draw_speeds(axes: Axes, speeds: Mapping[str, Quartiles], items: str) -> None:
    """Draw medians with quartiles, one bar per name, the first in colour."""
    for place, value in enumerate(speeds.values()):
        spread = [[value["median"] - value["q1"]], [value["q3"] - value["median"]]]
        colour = GREY if place else BLUE
        axes.barh(place, value["median"], xerr=spread, color=colour, capsize=4, height=0.6)
        at_end(axes, value["q3"], place, f"{value['median']:,.0f}")
    axes.set_yticks(range(len(speeds)), list(speeds))
    axes.invert_yaxis()
    axes.set(xlabel=f"{items}/s (median, quartiles)")
    axes.margins(x=0.18)
    axes.set_xlim(left=0)
    format_counts(axes)


@dataclass(frozen=True)
class Pairs:
    """True values and predicted ones.

    Attributes:
        title: of the plot.
        over_time: whether values follow one another, so that they are drawn as curves.
    """

    title: str
    true: Sequence[float | None]
    predicted: Sequence[float | None]
    over_time: bool


def draw_predictions(pairs: Pairs) -> Chart:
    """Draw predictions beside their targets."""
    draw = draw_curves if pairs.over_time else draw_points
    return Chart(pairs.title, render_svg(lambda axes: draw(axes, pairs)))


def drawable(values: Sequence[float | None]) -> np.ndarray:
    """Return values with gaps where axes could not hold them."""
    return np.array([bound(value) for value in values], dtype=float)


def draw_curves(axes: Axes, pairs: Pairs) -> None:
    """Draw values over the steps of a sequence."""
    axes.plot(drawable(pairs.true), color=GREY, lw=2, label="true")
    axes.plot(drawable(pairs.predicted), color=RED, lw=1, label="predicted")
    axes.set(xlabel="step", ylabel="value")
    axes.legend(frameon=False)


def draw_points(axes: Axes, pairs: Pairs) -> None:
    """Draw a point per prediction, and the line on which all of them should lie."""
    true = drawable(pairs.true)
    axes.plot(true, drawable(pairs.predicted), "o", color=BLUE, ms=3, alpha=0.6)
    axes.plot(true, true, color=GREY, lw=1)
    axes.set(xlabel="true", ylabel="predicted")

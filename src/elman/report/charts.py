"""Plots as SVG text, to stand inside a page."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

Curves = Mapping[str, Sequence[Any]]  # a column of metrics.csv by its name
Quartiles = Mapping[str, float]  # q1, median, q3

BLUE, RED, GREY = "#1f5fa8", "#c2452d", "#8a8f98"
STYLE: dict[Any, Any] = {
    "svg.hashsalt": "elman",  # same data, same bytes
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
}
NO_METADATA = dict.fromkeys(("Creator", "Date", "Format", "Type"))


@dataclass(frozen=True)
class Chart:
    """A title and a drawing (SVG text)."""

    title: str
    svg: str


def draw_charts(
    curves: Curves, baseline: tuple[str, float] | None, speeds: Mapping[str, Quartiles]
) -> list[Chart]:
    """Draw all plots there are data for."""
    charts = []
    if curves.get("step"):
        charts.append(Chart("Loss", drawn(lambda axes: draw_loss(axes, curves, baseline))))
    if speeds:
        charts.append(
            Chart("Speed, measured in turn", drawn(lambda axes: draw_speeds(axes, speeds)))
        )
    if curves.get("step"):
        charts += [
            Chart("Speed of training steps", drawn(lambda axes: draw_pace(axes, curves))),
            Chart("Learning rate", drawn(lambda axes: draw_rate(axes, curves))),
            Chart("Norm of the gradient", drawn(lambda axes: draw_norm(axes, curves))),
        ]
    return charts


def drawn(draw: Callable[[Axes], None], height: float = 3.4) -> str:
    """Run a drawing function on fresh axes (height in inches) and return the SVG element."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(6.4, height), layout="constrained")
        draw(figure.subplots())
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", metadata=NO_METADATA, transparent=True)
    text = buffer.getvalue()
    return text[text.index("<svg") :]


def draw_loss(axes: Axes, curves: Curves, baseline: tuple[str, float] | None) -> None:
    """Draw training and validation loss, and the baseline's."""
    axes.plot(curves["chars"], curves["train_bpc"], color=BLUE, lw=0.8, label="training")
    pairs = zip(curves["chars"], curves["valid_bpc"], strict=True)
    valid = [(chars, bpc) for chars, bpc in pairs if bpc is not None]
    if valid:
        axes.plot(*zip(*valid, strict=True), "o-", color=RED, ms=4, label="validation")
    if baseline is not None:
        name, bpc = baseline
        axes.axhline(bpc, color=GREY, ls="--", label=f"{name} {bpc:.3f}")
    axes.set(xlabel="characters trained on", ylabel="bits per character")
    axes.legend(frameon=False)


def draw_pace(axes: Axes, curves: Curves) -> None:
    """Draw characters per second over the run."""
    axes.plot(curves["train_seconds"], curves["chars_per_s"], color=BLUE, lw=0.8)
    axes.set(xlabel="seconds of training", ylabel="characters/s", ylim=(0, None))


def draw_rate(axes: Axes, curves: Curves) -> None:
    """Draw the learning rate over the run."""
    axes.plot(curves["step"], curves["lr"], color=BLUE)
    axes.set(xlabel="step", ylabel="learning rate", ylim=(0, None))


def draw_norm(axes: Axes, curves: Curves) -> None:
    """Draw the gradient's norm over the run."""
    axes.plot(curves["step"], curves["grad_norm"], color=BLUE, lw=0.8)
    axes.set(xlabel="step", ylabel="norm before clipping", yscale="log")


def draw_speeds(axes: Axes, speeds: Mapping[str, Quartiles]) -> None:
    """Draw medians with quartiles, one bar per name, the first in colour."""
    for place, value in enumerate(speeds.values()):
        spread = [[value["median"] - value["q1"]], [value["q3"] - value["median"]]]
        colour = GREY if place else BLUE
        axes.barh(place, value["median"], xerr=spread, color=colour, capsize=4, height=0.6)
    axes.set_yticks(range(len(speeds)), list(speeds))
    axes.invert_yaxis()
    axes.set(xlabel="characters/s (median, quartiles)")

"""Predictions beside their targets: values as a plot, images as rows of pictures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes

from elman.report.charts import BLUE, GREY, RED, Chart, bounded, drawn

GAP = 2  # pixels between images


@dataclass(frozen=True)
class Pairs:
    """True values and predicted ones.

    Attributes:
        title: of the plot.
        over_time: whether values follow one another, so that they are drawn as curves.
    """

    title: str
    true: Sequence[float]
    predicted: Sequence[float]
    over_time: bool


@dataclass(frozen=True)
class Pictures:
    """True images and predicted ones.

    Attributes:
        title: of the plot.
        height, width: of each image.
        true, predicted: grey values of all images, a byte each.
    """

    title: str
    height: int
    width: int
    true: bytes
    predicted: bytes


def draw_shown(shown: Pairs | Pictures) -> Chart:
    """Draw predictions beside their targets."""
    if isinstance(shown, Pictures):
        rows = [row_of_images(shown, pixels) for pixels in (shown.true, shown.predicted)]
        height = 0.6 + 6.4 * 2 * rows[0].shape[0] / rows[0].shape[1]
        return Chart(shown.title, drawn(lambda axes: draw_images(axes, rows), min(height, 12.0)))
    draw = draw_curves if shown.over_time else draw_points
    return Chart(shown.title, drawn(lambda axes: draw(axes, shown)))


def row_of_images(shown: Pictures, pixels: bytes) -> np.ndarray:
    """Put images side by side, uint8 [height + GAP, N·(width + GAP)]; gaps are white."""
    images = np.frombuffer(pixels, np.uint8).reshape(-1, shown.height, shown.width)
    framed = np.pad(images, ((0, 0), (0, GAP), (0, GAP)), constant_values=255)
    return np.concatenate(list(framed), axis=1)


def draw_images(axes: Axes, rows: list[np.ndarray]) -> None:
    """Draw a row of true images above one of the predicted."""
    whole = np.concatenate(rows)
    axes.imshow(whole, cmap="gray", vmin=0, vmax=255, interpolation="none")
    middle = (len(rows[0]) - GAP) / 2
    axes.set_yticks([middle, middle + len(rows[0])], ["true", "predicted"])
    axes.set_xticks([])
    axes.grid(False)
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)


def drawable(values: Sequence[float]) -> np.ndarray:
    """Return values with gaps where axes could not hold them."""
    return np.array([bounded(value) for value in values], dtype=float)


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

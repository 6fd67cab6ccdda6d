"""Predictions beside their targets, as a run's result keeps them for its report."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import Annotated

from elman.train.stored import Range

Size = Annotated[int, Range(1, 1 << 16)]


@dataclass(frozen=True)
class Traces:
    """One output of a held-out sequence over its steps.

    Attributes:
        name: which output of which sequence.
        true_steps, predicted_steps: a value per step.
    """

    name: str
    true_steps: list[float]
    predicted_steps: list[float]

    def __post_init__(self) -> None:
        of_one_length(self.true_steps, self.predicted_steps)


@dataclass(frozen=True)
class Points:
    """One output of several held-out sequences.

    Attributes:
        name: which output.
        true, predicted: a value per sequence.
    """

    name: str
    true: list[float]
    predicted: list[float]

    def __post_init__(self) -> None:
        of_one_length(self.true, self.predicted)


@dataclass(frozen=True)
class Frames:
    """Images over the steps of a held-out sequence.

    Attributes:
        name: which sequence.
        height, width: of each image.
        true_pixels, predicted_pixels: grey values, a byte each, of all images; base64.
    """

    name: str
    height: Size
    width: Size
    true_pixels: str
    predicted_pixels: str

    def __post_init__(self) -> None:
        sizes = [len(unpacked(text)) for text in (self.true_pixels, self.predicted_pixels)]
        if sizes[0] != sizes[1] or not sizes[0] or sizes[0] % (self.height * self.width):
            raise ValueError(f"{sizes} pixels are not images of {self.height} x {self.width}")


def of_one_length(true: list[float], predicted: list[float]) -> None:
    """Raise ValueError unless there are as many predictions as targets, one or more."""
    if len(true) != len(predicted) or not true:
        raise ValueError(f"{len(predicted)} predictions of {len(true)} targets")


def packed(pixels: bytes) -> str:
    """Write bytes as JSON can hold them."""
    return base64.b64encode(pixels).decode("ascii")


def unpacked(text: str) -> bytes:
    """Read what `packed` wrote.

    Raises:
        ValueError: if it is something else.
    """
    return base64.b64decode(text, validate=True)

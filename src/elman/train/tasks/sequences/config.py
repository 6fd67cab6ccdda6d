"""The configurations of the tasks that classify sequences."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from elman.train.loop.config import COUNT, NOT_NEGATIVE, override, setting
from elman.train.tasks.epochs import EpochConfig


@dataclass(frozen=True)
class SequenceConfig(EpochConfig):
    """A classifier's run."""

    layers: int = override("layers", 1)
    hidden: int = override("hidden", 64)
    dropout: float = override("dropout", 0.1)
    patch: int = setting(1, "Values of each channel that are read in one step.", COUNT)
    heads: int = setting(1, "Groups of units that do not see each other's past.", COUNT)
    strides: int = setting(
        1, "Groups of units that read their state of 1, 2, 4 … steps before, so many.", COUNT
    )
    bidirectional: bool = setting(
        False, "Read each sequence from both ends, by half of the units each."
    )
    residual: bool = setting(False, "Normalise each layer's input and add it to the output.")
    noise: float = setting(
        0.0, "Standard deviation of noise added to the input in training.", NOT_NEGATIVE
    )


@dataclass(frozen=True)
class SeriesConfig(SequenceConfig):
    """A classifier of time series or raw audio."""

    TASK: ClassVar[str] = "series"

    data: str | None = setting(
        None,
        "A folder or file: .tsv, .csv, .ts or .npz; or a name of the UCR/UEA archive.",
    )


@dataclass(frozen=True)
class ImagesConfig(SequenceConfig):
    """A classifier of images, read pixel by pixel."""

    TASK: ClassVar[str] = "images"

    data: str | None = setting(
        None, "An .npz, or a folder with one; or the name of a Hugging Face data set."
    )
    layers: int = override("layers", 2)
    hidden: int = override("hidden", 48)
    dropout: float = override("dropout", 0.0)
    batch: int = override("batch", 100)
    lr: float = override("lr", 5e-3)
    residual: bool = setting(True, "Normalise each layer's input and add it to the output.")
    minutes: float = override("minutes", 15.0)
    permute: bool = setting(False, "Read the pixels in one fixed random order.")

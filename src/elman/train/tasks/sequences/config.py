"""The configurations of the tasks that classify sequences."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from elman.train.loop.config import other, setting
from elman.train.tasks.walks import WalkConfig


@dataclass(frozen=True)
class SequenceConfig(WalkConfig):
    """A classifier's run."""

    layers: int = other("layers", 1)
    hidden: int = other("hidden", 64)
    dropout: float = other("dropout", 0.1)
    patch: int = setting(1, "Values of each channel that are read in one step.")
    heads: int = setting(1, "Groups of units that do not see each other's past.")
    residual: bool = setting(False, "Normalise each layer's input and add it to the output.")
    noise: float = setting(0.0, "Standard deviation of noise added to the input in training.")

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("patch", "heads"):
            self.check(name, getattr(self, name) >= 1, "must be at least 1")
        self.check("noise", self.noise >= 0, "must not be negative")


@dataclass(frozen=True)
class SeriesConfig(SequenceConfig):
    """A classifier of time series or raw audio."""

    TASK: ClassVar[str] = "series"

    data: str | None = setting(
        None, "A folder or file: UCR/UEA .tsv, .ts, or .npz; or a name of the UCR/UEA archive."
    )
    unseen: str | None = setting(None, "Hold out this group (speaker) instead of the test half.")
    by: str = setting("label", "What is classified: label, or group (speaker).")
    join: int | None = setting(
        None, "Concatenate the sequences of a class and cut them into so many steps."
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check("by", self.by in ("label", "group"), "must be label or group")
        self.check("join", self.join is None or self.join >= 1, "must be at least 1")


@dataclass(frozen=True)
class ImagesConfig(SequenceConfig):
    """A classifier of images, read pixel by pixel."""

    TASK: ClassVar[str] = "images"

    data: str | None = setting(
        None, "A folder or file: .npz or idx; or the name of a Hugging Face data set."
    )
    layers: int = other("layers", 2)
    hidden: int = other("hidden", 48)
    dropout: float = other("dropout", 0.0)
    batch: int = other("batch", 100)
    lr: float = other("lr", 5e-3)
    residual: bool = setting(True, "Normalise each layer's input and add it to the output.")
    minutes: float = other("minutes", 15.0)
    permute: bool = setting(False, "Read the pixels in one fixed random order.")

"""The configuration of the task `rotate`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from elman.train.config import other, setting
from elman.train.walks import WalkConfig


@dataclass(frozen=True)
class RotateConfig(WalkConfig):
    """A run that predicts the next image of one that is turned step by step."""

    TASK: ClassVar[str] = "rotate"

    data: str | None = setting(
        None,
        "An .npz with x_train [N, H, W(, 3)] uint8 and x_test, or the folder of CIFAR-10's python "
        "batches; else parts of a photograph.",
    )
    cell: str = other("cell", "rnn")
    layers: int = other("layers", 1)
    hidden: int = other("hidden", 1000)
    batch: int = other("batch", 1000)
    lr: float = other("lr", 3.0)
    optimizer: str = other("optimizer", "sgd")
    momentum: float = other("momentum", 0.9)
    weight_decay: float = other("weight_decay", 0.0)
    turns: int = setting(10, "Steps of a sequence, T; each turns the image once more.")
    degrees: float = setting(10.0, "Degrees of each turn, anti-clockwise.")
    pixels: int = setting(1000, "Pixels of an image that are read and predicted: the first ones.")

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("turns", "pixels"):
            self.check(name, getattr(self, name) >= 1, "must be at least 1")
        self.check("degrees", abs(self.degrees) <= 360, "must be in [-360, 360]")

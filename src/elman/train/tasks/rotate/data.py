"""The configuration of the task `rotate`; images turned step by step, cut into batches."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from elman.train.loop.config import COUNT, Rule, other, setting
from elman.train.loop.task import Baseline, Batch, Sizes
from elman.train.tasks.regression.data import predicting
from elman.train.tasks.rotate.images import find_images
from elman.train.tasks.walks import WalkConfig, Walked


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
    turns: int = setting(10, "Steps of a sequence, T; each turns the image once more.", COUNT)
    degrees: float = setting(
        10.0,
        "Degrees of each turn, anti-clockwise.",
        Rule(lambda value: abs(value) <= 360, "must be in [-360, 360]"),
    )
    pixels: int = setting(
        1000, "Pixels of an image that are read and predicted: the first ones.", COUNT
    )


@dataclass(frozen=True)
class RotateData(Walked):
    """Images ready to be turned.

    Attributes:
        fit, held [N, H, W]: grey values, uint8.
        rows [M]: which held-out images are validated on.
    """

    config: RotateConfig
    name: str
    digest: str
    fit: Tensor
    held: Tensor
    rows: Tensor

    per_step = True

    @property
    def size(self) -> str:
        """How many images there are."""
        return f"{len(self.fit)} + {len(self.held)} images"

    @property
    def height(self) -> int:
        """H, rows of an image."""
        return self.fit.shape[1]

    @property
    def width(self) -> int:
        """W, columns of an image."""
        return self.fit.shape[2]

    @property
    def inputs(self) -> int:
        """n, pixels of an image that are read and predicted."""
        return min(self.config.pixels, self.height * self.width)

    @property
    def outputs(self) -> int:
        """As many as are read."""
        return self.inputs

    def about(self) -> str:
        """Say in one line what the data are."""
        return (
            f"data: {self.name}: {len(self.fit):,} images of {self.height} x {self.width} to learn "
            f"from, {len(self.held):,} held out; {self.inputs} pixels of each, turned by "
            f"{self.config.degrees:g} degrees {self.config.turns} times"
        )

    def facts(self) -> dict[str, Any]:
        """Return what a report says about the data."""
        return {
            "source": self.name,
            "train_images": len(self.fit),
            "held_out_images": len(self.held),
            "validated": len(self.rows),
            "image": [self.height, self.width],
            "pixels": self.inputs,
            "steps": self.config.turns,
        }

    def spec(self) -> Sizes:
        """What a model of the images is built from."""
        return Sizes(self.inputs, self.outputs, self.per_step)

    def baseline(self) -> Baseline:
        """Repeat the input."""
        pairs = ((batch.inputs, batch.targets) for batch in self.all_held_out())
        return predicting("repeated input", pairs)

    def _cut(self, half: Tensor, chosen: Tensor) -> Batch:
        """Turn some images."""
        return self.cut(half[chosen])

    def cut(self, images: Tensor) -> Batch:
        """Turn images [B, H, W]: inputs x and targets y [T, B, n], y[t] = x[t + 1]."""
        frames = turned(images, self.config.turns, self.config.degrees).flatten(2)
        frames = frames[:, :, : self.inputs] * 2 - 1  # what tanh can reach
        return Batch(frames[:-1].contiguous(), frames[1:].contiguous(), begins=True)


def prepare(config: RotateConfig) -> RotateData:
    """Read the images of a run. Raises RunError: there are none."""
    found = find_images(config.data)
    fit, held = (torch.from_numpy(half) for half in (found.train, found.test))
    empty = torch.empty(0, dtype=torch.long)
    return RotateData(config, found.name, found.digest, fit, held, empty).validating(config)


def turned(images: Tensor, turns: int, degrees: float) -> Tensor:
    """Turn images anti-clockwise, again and again.

    Each turn is of the image before it, bilinear, about the middle; black comes in from outside.

    Args:
        images [B, H, W]: grey values, uint8.

    Returns:
        frames [turns + 1, B, H, W] in [0, 1], float32; the first is the image as it is.
    """
    height, width = images.shape[1:]
    sine, cosine = math.sin(math.radians(degrees)), math.cos(math.radians(degrees))
    # Where a pixel comes from, in units of half a width and half a height; y points downward.
    matrix = torch.tensor([[cosine, -sine * height / width, 0], [sine * width / height, cosine, 0]])
    grid = functional.affine_grid(matrix[None], [1, 1, height, width], align_corners=False)
    frames = [images.float() / 255]
    for _ in range(turns):
        frames.append(functional.grid_sample(frames[-1][None], grid, align_corners=False)[0])
    return torch.stack(frames)

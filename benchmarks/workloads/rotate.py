"""The next image of one that is turned step by step, as a task of the trainer (Han & Uboweja 2016).

Step t reads the image x[t], turned t times by 10 degrees anti-clockwise, and predicts x[t + 1].
Each turn is of the image before it, bilinear; black comes in from outside. The model has no biases:
h[t] = tanh(W x[t] + R h[t-1]), y[t] = tanh(V h[t]), trained by SGD with momentum.

    python -m benchmarks.workloads.rotate cifar10.npz --hidden 256 --batch 100 --minutes 1

The `.npz` has x_train and x_test, uint8 [N, H, W] or [N, H, W, 3].
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

import elman
from elman.cli.app import run_command
from elman.cli.train import command
from elman.errors import InputError
from elman.train.loop.config import COUNT, override, setting
from elman.train.loop.objective import SQUARES, evaluate
from elman.train.loop.task import Baseline, Batch, predictions
from elman.train.tasks.arrays import digest_of, load_npz, unreadable
from elman.train.tasks.epochs import EpochConfig, SequenceSet
from elman.train.tasks.registry import TASKS
from elman.train.tasks.regression.data import score_baseline
from elman.train.tasks.regression.model import Regressor
from elman.train.tasks.regression.task import REGRESSION

HINT = "an .npz needs x_train, uint8 [N, H, W] or [N, H, W, 3], and x_test"
LUMINANCE = np.array((0.299, 0.587, 0.114), np.float32)  # of red, green and blue: ITU-R BT.601


@dataclass(frozen=True)
class RotateConfig(EpochConfig):
    """A run on images that turn."""

    TASK: ClassVar[str] = "rotate"

    data: str | None = setting(None, "An .npz with x_train and x_test, uint8.")
    layers: int = override("layers", 1)
    hidden: int = override("hidden", 1000)
    batch: int = override("batch", 1000)
    lr: float = override("lr", 3.0)
    optimizer: str = override("optimizer", "sgd")
    momentum: float = override("momentum", 0.9)
    weight_decay: float = override("weight_decay", 0.0)
    turns: int = setting(10, "Steps of a sequence, T; each turns the image once more.", COUNT)
    degrees: float = setting(10.0, "Degrees of each turn, anti-clockwise.")
    pixels: int = setting(1000, "Pixels that are read and predicted: the first ones.", COUNT)


@dataclass(frozen=True)
class RotateSpec:
    """Sizes of an image model: n, pixels that are read and predicted."""

    inputs: int


class RotateData(SequenceSet):
    """Images ready to be turned: halves [N, H, W], uint8."""

    def shape(self) -> tuple[str, dict[str, Any]]:
        """Images and turns, in words and as facts by name."""
        size = " x ".join(map(str, self.fit.shape[1:]))
        return f"{self.config.turns} turns of {size} pixels", {"steps": self.config.turns}

    def baseline(self) -> Baseline:
        """Repeat the input."""
        pairs = ((batch.inputs, batch.targets) for batch in self.test_batches())
        return score_baseline("repeated input", pairs)

    def cut(self, half: Tensor, rows: Tensor) -> Batch:
        """Turn some images: inputs x and targets y [T, B, n], y[t] = x[t + 1]."""
        frames = turned(half[rows], self.config.turns, self.config.degrees).flatten(2)
        frames = frames[:, :, : self.spec.inputs] * 2 - 1  # what tanh can reach
        return Batch(frames[:-1].contiguous(), frames[1:].contiguous(), resets_state=True)


def turned(images: Tensor, turns: int, degrees: float) -> Tensor:
    """Turn images [B, H, W] anti-clockwise, again and again: [turns + 1, B, H, W] in [0, 1]."""
    height, width = images.shape[1:]
    sine, cosine = math.sin(math.radians(degrees)), math.cos(math.radians(degrees))
    # Where a pixel comes from, in units of half a width and half a height; y points downward.
    matrix = torch.tensor([[cosine, -sine * height / width, 0], [sine * width / height, cosine, 0]])
    grid = functional.affine_grid(matrix[None], [1, 1, height, width], align_corners=False)
    frames = [images.float() / 255]
    for _ in range(turns):
        frames.append(functional.grid_sample(frames[-1][None], grid, align_corners=False)[0])
    return torch.stack(frames)


def prepare(config: RotateConfig) -> RotateData:
    """Read the images of a run. Raises InputError: no file is named; RunError: it has no images."""
    if config.data is None:
        raise InputError("rotate needs data: python -m benchmarks.workloads.rotate FILE.npz")
    path = Path(config.data).expanduser()
    arrays, halves = load_npz(path, HINT), []
    for name in ("x_train", "x_test"):
        images = arrays.get(name)
        if images is None or images.dtype != np.uint8 or images.shape[3:] not in ((), (3,)):
            raise unreadable(path, f"no images in {name}", HINT)
        grey = images if images.ndim == 3 else np.rint(images @ LUMINANCE).astype(np.uint8)
        halves.append(torch.from_numpy(grey))
    spec = RotateSpec(min(config.pixels, halves[0][0].numel()))
    digest = digest_of(half.numpy() for half in halves)
    return RotateData(config, config.data, digest, spec, *halves)


def build_model(config: RotateConfig, spec: RotateSpec, *, baseline: bool = False) -> Regressor:
    """Build the report's model; with `baseline` on torch.nn's layer."""
    torch.manual_seed(config.seed)
    options: Any = {} if baseline else {"engine": config.engine}
    kind: Any = nn.RNN if baseline else elman.RNN
    layers = kind(spec.inputs, config.hidden, config.layers, bias=False, **options)
    readout = nn.Sequential(nn.Linear(config.hidden, spec.inputs, bias=False), nn.Tanh())
    return Regressor(layers, readout, config.dropout, per_step=True)


def conclude(model: nn.Module, data: RotateData, config: RotateConfig) -> dict[str, Any]:
    """Turn the whole held-out half: loss and R²."""
    score = evaluate(SQUARES, predictions(model, data.test_batches()))
    return {"valid_loss": score.loss, "valid_score": score.score}


ROTATE = replace(
    REGRESSION,
    about="The next image of one that is turned step by step.",
    config=RotateConfig,
    prepare=prepare,
    build=build_model,
    conclude=conclude,
    spec=RotateSpec,
)
TASKS[ROTATE.name] = ROTATE

if __name__ == "__main__":
    run_command(command(ROTATE, ROTATE.about), "rotate")

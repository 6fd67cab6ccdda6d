"""The task `rotate`: its model, recurrent layers and a read-out, both without biases; and what the
trainer needs to know of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from elman.train.loop.layers import recurrent
from elman.train.loop.objective import R2, SQUARES, judged
from elman.train.loop.task import Frames, Sizes, Task, Words, packed
from elman.train.tasks.regression.model import Regressor
from elman.train.tasks.regression.task import predictions
from elman.train.tasks.rotate.data import RotateConfig, RotateData, prepare


def build_model(
    config: RotateConfig, data: RotateData | Sizes, *, baseline: bool = False
) -> Regressor:
    """Build ``h[t] = tanh(W x[t] + R h[t-1])``, ``y[t] = tanh(V h[t])``.

    With another cell, h is that cell's; with `baseline`, of torch.nn's recurrent layers.
    """
    torch.manual_seed(config.seed)
    layers = recurrent(config, data.inputs, config.layers, baseline=baseline, bias=False)
    readout = nn.Sequential(nn.Linear(config.hidden, data.outputs, bias=False), nn.Tanh())
    return Regressor(layers, readout, config.dropout, data.per_step)


SHOWN = 3  # held-out images


def conclude(model: nn.Module, data: RotateData, config: RotateConfig) -> dict[str, Any]:
    """Turn the whole held-out half: loss and R², the error by step, some images beside the true."""
    errors = torch.zeros(config.turns)

    def pairs() -> Iterator[tuple[Tensor, Tensor]]:
        for outputs, targets in predictions(model, data.all_held_out()):
            errors.add_((outputs - targets).square().mean(2).sum(1))
            yield outputs, targets

    found = judged(SQUARES, pairs())
    table = {
        f"after turn {k}": f"squared error per pixel {error:.3g}"
        for k, error in enumerate((errors / len(data.held)).tolist(), 1)
    }
    return {
        "valid_loss": found.loss,
        "valid_r2": found.score,
        "table": table,
        "shown": [asdict(frames) for frames in shown(model, data)],
    }


def shown(model: nn.Module, data: RotateData) -> list[Frames]:
    """Turn some held-out images, by the model and truly."""
    count = min(SHOWN, len(data.held))
    chosen = torch.linspace(0, len(data.held) - 1, count).round().long().unique()
    ((outputs, targets),) = predictions(model, [data.cut(data.held[chosen])])
    return [
        Frames(
            f"Held-out image {k}, turned {data.config.turns} times",
            data.height,
            data.width,
            pixels_of(targets[:, row], data),
            pixels_of(outputs[:, row], data),
        )
        for row, k in enumerate(chosen.tolist())
    ]


def pixels_of(frames: Tensor, data: RotateData) -> str:
    """Write images [T, n] of values in [-1, 1] as bytes; pixels that were cut off are black."""
    cut = data.height * data.width - frames.shape[1]
    grey = (functional.pad(frames, (0, cut), value=-1.0).clamp(-1, 1) + 1) * 127.5
    return packed(grey.nan_to_num().round().to(torch.uint8).numpy().tobytes())


ROTATE = Task(
    about="The next image of one that is turned step by step; without arguments, of a photograph.",
    words=lambda config: Words(
        items="images",
        loss="squared error per pixel in [-1, 1]",
        brief="squared error",
        scale=1.0,
        headline="loss",
        score=R2,
        form=".3g",
    ),
    objective=SQUARES,
    config=RotateConfig,
    prepare=prepare,
    build=build_model,
    conclude=conclude,
    spec=Sizes,
)

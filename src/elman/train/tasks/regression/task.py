"""The task `regression`: what the trainer needs to know of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from elman.train.loop.objective import R2, SQUARES, judged
from elman.train.loop.task import Batch, Points, Task, Traces, Words
from elman.train.tasks.regression.data import RegressionConfig, RegressionData, prepare
from elman.train.tasks.regression.model import RegressionSpec, TrainedRegression, build_model

SEQUENCES, OUTPUTS = 4, 8  # at most so many are shown
STEPS, POINTS = 2000, 500  # of each


def predictions(model: nn.Module, batches: Iterable[Batch]) -> Iterator[tuple[Tensor, Tensor]]:
    """Walk through batches; outputs and targets of each, on the CPU."""
    weight = next(model.parameters())
    for batch in batches:
        outputs, _ = model(batch.inputs.to(weight.device, weight.dtype))
        yield outputs.float().cpu(), batch.targets


def conclude(model: nn.Module, data: RegressionData, config: RegressionConfig) -> dict[str, Any]:
    """Predict the whole held-out half: loss and R², the error by output, true beside predicted."""
    pairs = list(predictions(model, data.all_held_out()))
    found = judged(SQUARES, pairs)
    axis = 1 if data.per_step else 0  # of the sequences
    outputs, targets = (torch.cat(parts, axis) for parts in zip(*pairs, strict=True))
    true, predicted = data.targets_as.back(targets), data.targets_as.back(outputs)
    return {
        "valid_loss": found.loss,
        "valid_r2": found.score,
        "table": by_output(true, predicted, outputs, targets),
        "shown": [asdict(part) for part in (traces if data.per_step else points)(true, predicted)],
    }


def by_output(
    true: np.ndarray, predicted: np.ndarray, outputs: Tensor, targets: Tensor
) -> dict[str, str]:
    """Tell the error of the first outputs, in the unit of the data."""
    table = {}
    for k in range(min(OUTPUTS, true.shape[-1])):
        error = float(np.sqrt(np.mean((predicted[..., k] - true[..., k]) ** 2)))
        score = judged(SQUARES, [(outputs[..., k : k + 1], targets[..., k : k + 1])]).score
        table[f"output {k}"] = f"{R2.text(score)}, root mean squared error {error:.4g}"
    return table


def traces(true: np.ndarray, predicted: np.ndarray) -> list[Traces]:
    """Take the first output of some sequences of [T, N, O]."""
    count = true.shape[1]
    chosen = np.unique(np.linspace(0, count - 1, min(SEQUENCES, count)).round().astype(int))
    return [
        Traces(
            f"Held-out sequence {k}, output 0",
            true[:STEPS, k, 0].tolist(),
            predicted[:STEPS, k, 0].tolist(),
        )
        for k in chosen
    ]


def points(true: np.ndarray, predicted: np.ndarray) -> list[Points]:
    """Take the first outputs of some sequences of [N, O]."""
    chosen = np.unique(np.linspace(0, len(true) - 1, min(POINTS, len(true))).round().astype(int))
    return [
        Points(
            f"Held-out sequences, output {k}",
            true[chosen, k].tolist(),
            predicted[chosen, k].tolist(),
        )
        for k in range(min(SEQUENCES, true.shape[1]))
    ]


REGRESSION = Task(
    about="Numbers predicted from sequences: a target per step, or one per sequence.",
    words=lambda config: Words(
        items="sequences",
        loss="squared error (1 is the variance of the training targets)",
        brief="squared error",
        scale=1.0,
        headline="score",
        score=R2,
        form=".3g",
    ),
    objective=SQUARES,
    config=RegressionConfig,
    prepare=prepare,
    build=build_model,
    conclude=conclude,
    spec=RegressionSpec,
    trained=TrainedRegression,
    positional=("data",),
)

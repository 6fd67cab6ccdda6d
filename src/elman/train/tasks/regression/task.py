"""The task `regression`: evaluation, and its entry for the trainer."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from elman.train.loop.objective import R2, SQUARES, evaluate
from elman.train.loop.task import Labels, Pairs, Task, predictions
from elman.train.tasks.regression.data import RegressionConfig, RegressionData, prepare
from elman.train.tasks.regression.model import RegressionSpec, TrainedRegression, build_model

SEQUENCES, OUTPUTS = 4, 8  # at most so many are shown
STEPS, POINTS = 2000, 500  # of each


def conclude(model: nn.Module, data: RegressionData, config: RegressionConfig) -> dict[str, Any]:
    """Predict the whole held-out half: loss and R², the error by output, true beside predicted."""
    spec, batches = data.spec, predictions(model, data.test_batches())
    parts = [(outputs.float().cpu(), targets.cpu()) for outputs, targets in batches]
    score = evaluate(SQUARES, parts)
    axis = 1 if spec.per_step else 0  # of the sequences
    outputs, targets = (torch.cat(half, axis) for half in zip(*parts, strict=True))
    true, predicted = (spec.targets_as.back(part.numpy()) for part in (targets, outputs))
    facts = data.describe_test(score, LABELS, by_output(true, predicted, outputs, targets))
    return facts | {
        "shown": [asdict(pairs) for pairs in select_pairs(true, predicted)],
    }


def by_output(
    true: np.ndarray, predicted: np.ndarray, outputs: Tensor, targets: Tensor
) -> dict[str, str]:
    """Format the errors of the first outputs, in the unit of the data."""
    table = {}
    for k in range(min(OUTPUTS, true.shape[-1])):
        error = float(np.sqrt(np.nanmean((predicted[..., k] - true[..., k]) ** 2)))
        score = evaluate(SQUARES, [(outputs[..., k : k + 1], targets[..., k : k + 1])]).score
        table[f"output {k}"] = f"{R2.text(score)}, root mean squared error {error:.4g}"
    return table


def select_pairs(true: np.ndarray, predicted: np.ndarray) -> list[Pairs]:
    """Take the first output of some sequences of [T, N, O], or some sequences of each of the first
    outputs of [N, O]."""
    if true.ndim == 3:
        names = {k: f"Held-out sequence {k}, output 0" for k in spread(true.shape[1], SEQUENCES)}
        parts = {k: (slice(STEPS), k, 0) for k in names}
    else:
        first = range(min(SEQUENCES, true.shape[1]))
        names = {k: f"Held-out sequences, output {k}" for k in first}
        parts = {k: (spread(len(true), POINTS), k) for k in names}
    return [
        Pairs(names[k], values(true[part]), values(predicted[part]), over_time=true.ndim == 3)
        for k, part in parts.items()
    ]


def values(array: np.ndarray) -> list[float | None]:
    """Numbers as they are stored, None where there is none."""
    return [None if np.isnan(value) else value for value in array.tolist()]


def spread(count: int, most: int) -> np.ndarray:
    """Select at most so many of the numbers below `count`, evenly spaced."""
    return np.unique(np.linspace(0, count - 1, min(most, count)).round().astype(int))


LABELS = Labels(
    items="sequences",
    loss="squared error (1 is the variance of the training targets)",
    brief="squared error",
    scale=1.0,
    headline="score",
    score=R2,
    form=".3g",
)
REGRESSION = Task(
    about="Train a regression on sequences: one target per step, or one per sequence.",
    labels=lambda config: LABELS,
    objective=SQUARES,
    config=RegressionConfig,
    prepare=prepare,
    build=build_model,
    conclude=conclude,
    spec=RegressionSpec,
    trained=TrainedRegression,
    positional=("data",),
)

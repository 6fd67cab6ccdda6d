"""The tasks `series` and `images`: evaluation, and their entries for the trainer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from elman.train.loop.objective import ACCURACY, CLASSES, evaluate
from elman.train.loop.task import Labels, Task, predictions
from elman.train.tasks.sequences.config import ImagesConfig, SequenceConfig, SeriesConfig
from elman.train.tasks.sequences.data import SequenceData, prepare_images, prepare_series
from elman.train.tasks.sequences.model import ClassifierSpec, TrainedClassifier, build_model

LABELS = Labels("sequences", "nats per sequence", "nats", 1.0, "score", ACCURACY)


def conclude(model: nn.Module, data: SequenceData, config: SequenceConfig) -> dict[str, Any]:
    """Classify the whole held-out half: loss and accuracy, in all and by class."""
    outputs = [logits.double().cpu() for logits, _ in predictions(model, data.test_batches())]
    logits, y = torch.cat(outputs), data.test.y
    score, right = evaluate(CLASSES, [(logits, y)]), (logits.argmax(-1) == y).tolist()
    classes = [f"class {name}" for name in data.spec.classes]
    table = by_name(right, [classes[k] for k in y], classes)
    return data.describe_test(score, LABELS, table)


def by_name(right: Sequence[bool], names: Sequence[str], order: Sequence[str]) -> dict[str, str]:
    """Count what was predicted right, name by name."""
    counts, good = Counter(names), Counter(n for n, hit in zip(names, right) if hit)
    return {
        name: f"{good[name]} of {counts[name]} ({good[name] / counts[name]:.0%})"
        for name in order
        if counts[name]
    }


SERIES = Task(
    about="Train a classifier of time series or raw audio.",
    labels=lambda config: LABELS,
    objective=CLASSES,
    config=SeriesConfig,
    prepare=prepare_series,
    build=build_model,
    conclude=conclude,
    spec=ClassifierSpec,
    trained=TrainedClassifier,
    positional=("data",),
)
IMAGES = replace(
    SERIES,
    about="Train a classifier of images that reads them pixel by pixel.",
    config=ImagesConfig,
    prepare=prepare_images,
)

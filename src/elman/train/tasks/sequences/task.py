"""The tasks `series` and `images`: what the trainer needs to know of them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from elman.train.loop.objective import ACCURACY, CLASSES
from elman.train.loop.task import Task, Words
from elman.train.tasks.sequences.config import ImagesConfig, SequenceConfig, SeriesConfig
from elman.train.tasks.sequences.data import SequenceData, by_name, prepare_images, prepare_series
from elman.train.tasks.sequences.model import ClassifierSpec, TrainedClassifier, build_model

WORDS = Words("sequences", "nats per sequence", "nats", 1.0, "score", ACCURACY)


def conclude(model: nn.Module, data: SequenceData, config: SequenceConfig) -> dict[str, Any]:
    """Classify the whole held-out half: loss and accuracy, by class and by group."""
    weight, parts = next(model.parameters()), []
    for batch in data.all_held_out():
        logits, _ = model(tuple(_as(weight, part) for part in batch.inputs))
        parts.append(logits.double().cpu())
    logits = torch.cat(parts)
    right = (logits.argmax(-1) == data.held.y).tolist()
    classes = [f"class {name}" for name in data.classes]
    groups = [f"of {name}" for name in data.held.groups]
    table = by_name(right, [classes[k] for k in data.held.y], classes)
    if groups:
        table |= by_name(right, groups, sorted(set(groups)))
    return {
        "valid_loss": float(cross_entropy(logits, data.held.y)),
        "valid_accuracy": sum(right) / len(right),
        "table": table,
    }


def _as(weight: Tensor, part: Tensor) -> Tensor:
    """An input where a weight is, of its type; lengths stay numbers."""
    return part.to(weight) if part.is_floating_point() else part.to(weight.device)


SERIES = Task(
    about="A classifier of time series or raw audio.",
    words=lambda config: WORDS,
    objective=CLASSES,
    config=SeriesConfig,
    prepare=prepare_series,
    build=build_model,
    conclude=conclude,
    spec=ClassifierSpec,
    trained=TrainedClassifier,
    positional=("data",),
)
IMAGES = Task(
    about="A classifier of images that reads them pixel by pixel.",
    words=lambda config: WORDS,
    objective=CLASSES,
    config=ImagesConfig,
    prepare=prepare_images,
    build=build_model,
    conclude=conclude,
    spec=ClassifierSpec,
    trained=TrainedClassifier,
    positional=("data",),
)

"""The task `text`: evaluation, and its entry for the trainer."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn

from elman.train.loop.objective import CLASSES, evaluate
from elman.train.loop.task import Task, predictions
from elman.train.tasks.text.config import TextConfig
from elman.train.tasks.text.data import TextData, prepare
from elman.train.tasks.text.model import TextSpec, TrainedText, build_model


def conclude(model: nn.Module, data: TextData, config: TextConfig) -> dict[str, Any]:
    """Let a trained model write, and predict the test text if there is one."""
    trained = TrainedText(Path(), config, 0, model, data.spec)
    facts: dict[str, Any] = {"sample": trained.sample()}
    if data.corpus.test:
        score = evaluate(CLASSES, predictions(model, data.test_batches()))
        labels = config.splitting.labels
        facts["table"] = {"test": labels.describe(replace(score, loss=labels.unit(score.loss)))}
    return facts


TEXT = Task(
    about="Train a model of characters or words. Without options: characters of Python's own "
    "sources, in about two minutes.",
    labels=lambda config: config.splitting.labels,
    objective=replace(CLASSES, inside=True),
    config=TextConfig,
    prepare=prepare,
    build=build_model,
    conclude=conclude,
    spec=TextSpec,
    trained=TrainedText,
)

"""The task `text`: what the trainer needs to know of it."""

from __future__ import annotations

import math
from typing import Any

from torch import nn

from elman.train.objective import ACCURACY, CLASSES
from elman.train.task import Task, Words
from elman.train.text.config import TextConfig
from elman.train.text.data import TextData, prepare
from elman.train.text.model import build_model
from elman.train.text.sample import generate

SAMPLE_CHARS = 500


def conclude(model: nn.Module, data: TextData, config: TextConfig) -> dict[str, Any]:
    """Let a trained model write."""
    text = generate(model, data.vocabulary, SAMPLE_CHARS, config.temperature, config.seed)
    return {"sample": text}


TEXT = Task(
    about="A character model; without arguments on Python's own sources, in about two minutes.",
    words=Words("characters", "bits per character", "bits/char", 1 / math.log(2), "loss", ACCURACY),
    objective=CLASSES,
    config=TextConfig,
    prepare=prepare,
    build=build_model,
    conclude=conclude,
)

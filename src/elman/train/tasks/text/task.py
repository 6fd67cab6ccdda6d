"""The task `text`: what the trainer needs to know of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from elman.train.loop.objective import CLASSES, judged
from elman.train.loop.task import Batch, Task
from elman.train.tasks.text.config import TextConfig
from elman.train.tasks.text.data import TextData, prepare
from elman.train.tasks.text.model import SAMPLES, TextSpec, TrainedText, build_model, generate


def predictions(model: nn.Module, batches: Iterable[Batch]) -> Iterator[tuple[Tensor, Tensor]]:
    """Walk through batches with the state carried on; logits and targets of each."""
    device, state = next(model.parameters()).device, None
    for batch in batches:
        logits, state = model(batch.inputs.to(device), None if batch.begins else state)
        yield logits, batch.targets.to(device)


def conclude(model: nn.Module, data: TextData, config: TextConfig) -> dict[str, Any]:
    """Let a trained model write, and predict the test text if there is one."""
    length = SAMPLES[config.level]
    facts: dict[str, Any] = {
        "sample": generate(model, data.vocabulary, length, config.temperature, config.seed)
    }
    if data.corpus.test:
        found, words = judged(CLASSES, predictions(model, data.tested())), config.splitting.words
        loss = words.with_unit(words.unit(found.loss))
        facts["table"] = {"test": f"{loss}, {words.score.text(found.score)}"}
    return facts


TEXT = Task(
    about="A model of characters or words; without arguments of Python's own sources, in about "
    "two minutes.",
    words=lambda config: config.splitting.words,
    objective=replace(CLASSES, inside=True),
    config=TextConfig,
    prepare=prepare,
    build=build_model,
    conclude=conclude,
    spec=TextSpec,
    trained=TrainedText,
)

"""Whole sequences in epochs: a half to learn from, shuffled anew in each, and a held-out half."""

from __future__ import annotations

import math
import random
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from elman.errors import RunError
from elman.train.loop.config import COUNT, SHARE, Config, setting
from elman.train.loop.objective import Score
from elman.train.loop.task import Batch, Labels


@dataclass(frozen=True)
class EpochConfig(Config):
    """A run that trains on whole sequences, shuffled."""

    VALIDATED: ClassVar[str] = "validation_sequences"
    LEAST_VALIDATED: ClassVar[int] = 50

    epochs: int | None = setting(
        None, "Passes over the training data, instead of --minutes.", COUNT
    )
    validation_sequences: int = setting(1000, "Sequences predicted per validation.", COUNT)
    validation_share: float = setting(
        0.0,
        "Share of the training sequences that choose the best weights; the held-out half is then "
        "predicted once, at the end. Without it the held-out half chooses them.",
        SHARE,
    )


@dataclass(frozen=True)
class SequenceSet(ABC):
    """A data set of whole sequences, ready to train on.

    Attributes:
        config: of the run.
        name: where the data came from, for people.
        digest: hash of all values.
        spec: properties of the data that a model is built from; it has `inputs`.
        fit, test: both halves, whose lengths are their numbers of sequences.
        valid: a part of the training half that is not learned from, if one is asked for.
        missing: share of values that are missing (they count as their channel's mean).
    """

    config: Any
    name: str
    digest: str
    spec: Any
    fit: Any
    test: Any
    valid: Any = None
    missing: float = 0.0

    @abstractmethod
    def cut(self, half: Any, rows: Tensor) -> Batch:
        """Take some sequences of a half."""

    @abstractmethod
    def shape(self) -> tuple[str, dict[str, Any]]:
        """Steps and targets, in words and as facts by name."""

    @property
    def validation_half(self) -> Any:
        """The sequences that choose the best weights."""
        return self.test if self.valid is None else self.valid

    @property
    def size(self) -> str:
        """Numbers of sequences as text."""
        parts = [part for part in (self.fit, self.valid, self.test) if part is not None]
        return f"{' + '.join(str(len(part)) for part in parts)} sequences"

    @property
    def rows(self) -> Tensor:
        """Indices of the sequences for validation, evenly spaced, [M]."""
        count = len(self.validation_half)
        most = min(self.config.validation_sequences, count)
        return torch.linspace(0, count - 1, most).round().long()

    def about(self) -> str:
        """Describe the data in one line."""
        text = (
            f"data: {self.name}: {len(self.fit):,} sequences to learn from, "
            f"{'' if self.valid is None else f'{len(self.valid):,} to validate, '}"
            f"{len(self.test):,} held out; {self.shape()[0]}"
        )
        return f"{text}; {self.missing:.1%} of the values are missing" if self.missing else text

    def facts(self) -> dict[str, Any]:
        """Facts about the data for the report."""
        return {
            "source": self.name,
            "train_sequences": len(self.fit),
            "held_out_sequences": len(self.test),
            "validated": len(self.rows),
            "values_per_step": self.spec.inputs,
            **self.shape()[1],
            "missing_share": self.missing,
        }

    def steps(self) -> int | None:
        """Steps that the epochs make; None without epochs."""
        epochs, batch = self.config.epochs, self.config.batch
        return None if epochs is None else math.ceil(epochs * len(self.fit) / batch)

    def validating(self, config: Any) -> Self:
        """Return the same data with the validation part of another configuration."""
        return replace(self, config=config)

    def batch(self, step: int, rows: slice) -> Batch:
        """Return the given rows of a step's batch: the next ones of an endless row of shuffled
        epochs, a function of the step."""
        count, first = len(self.fit), step * self.config.batch
        places = torch.arange(first + rows.start, first + rows.stop)
        epochs, within = places // count, places % count
        sequences = torch.empty_like(places)
        for epoch in epochs.unique():
            inside = epochs == epoch
            source = torch.Generator().manual_seed(1_000_003 * self.config.seed + int(epoch))
            sequences[inside] = torch.randperm(count, generator=source)[within[inside]]
        return self.cut(self.fit, sequences)

    def held_out(self) -> Iterator[Batch]:
        """Walk through the part that is validated on."""
        return (self.cut(self.validation_half, rows) for rows in self.rows.split(self.config.batch))

    def test_batches(self) -> Iterator[Batch]:
        """Walk through the whole held-out half, in its order."""
        indices = torch.arange(len(self.test))
        return (self.cut(self.test, rows) for rows in indices.split(self.config.batch))

    def describe_test(self, score: Score, labels: Labels, table: dict[str, str]) -> dict[str, Any]:
        """Facts of a result: the score of the held-out half, and a task's table. The score takes
        the place of the validation's where that half chose the weights; else it has its own names
        and a row of the table."""
        if self.valid is None:
            return {"valid_loss": score.loss, "valid_score": score.score, "table": table}
        table = {"held out": labels.describe(score), **table}
        return {"test_loss": score.loss, "test_score": score.score, "table": table}


def split_by_class(labels: Sequence[Any], share: float) -> tuple[list[int], list[int]]:
    """Split sequences into those to learn from and those to validate with, alike in each run.

    Args:
        labels: the class of each sequence.
        share: of each class that validates, drawn at random; at least one sequence of a class that
            has two.

    Returns:
        Indices of both parts.

    Raises:
        RunError: nothing is left to learn from, or to validate with.
    """
    by_class: dict[Any, list[int]] = {}
    for index, label in enumerate(labels):
        by_class.setdefault(label, []).append(index)
    source = random.Random(0)
    chosen: set[int] = set()
    for indices in by_class.values():
        count = min(len(indices) - 1, max(1, round(share * len(indices))))
        chosen.update(source.sample(indices, count))
    left = [index for index in range(len(labels)) if index not in chosen]
    if not chosen or not left:
        text = "there are too few sequences to learn from and to validate with"
        raise RunError(text, "leave --validation-share out", sequences=len(labels))
    return left, sorted(chosen)

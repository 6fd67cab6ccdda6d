"""Walks: the order in which whole sequences are trained and validated on."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from elman.train.loop.config import COUNT, Config, setting
from elman.train.loop.task import Batch


@dataclass(frozen=True)
class WalkConfig(Config):
    """A run that trains on whole sequences, shuffled."""

    VALIDATED: ClassVar[str] = "validation_sequences"
    LEAST_VALIDATED: ClassVar[int] = 50

    epochs: int | None = setting(
        None, "Passes over the training data, instead of --minutes.", COUNT
    )
    validation_sequences: int = setting(1000, "Sequences predicted per validation.", COUNT)

    def steps_of(self, count: int) -> int | None:
        """Return the steps that the epochs make with so many sequences; None without epochs."""
        return None if self.epochs is None else math.ceil(self.epochs * count / self.batch)

    def chosen(self, count: int, step: int, mine: slice) -> Tensor:
        """Choose which of `count` sequences are rows `mine` of a step's batch, [rows].

        They are the next ones of an endless row of shuffled walks: a function of the step.
        """
        first = step * self.batch
        places = torch.arange(first + mine.start, first + mine.stop)
        walks, within = places // count, places % count
        chosen = torch.empty_like(places)
        for walk in walks.unique():
            inside = walks == walk
            source = torch.Generator().manual_seed(1_000_003 * self.seed + int(walk))
            chosen[inside] = torch.randperm(count, generator=source)[within[inside]]
        return chosen

    def validated(self, count: int) -> Tensor:
        """Choose evenly which of `count` held-out sequences are validated on, [M]."""
        return torch.linspace(0, count - 1, min(self.validation_sequences, count)).round().long()


class Walked(ABC):
    """Whole sequences, some to learn from, some held out; a dataclass has the fields.

    Attributes:
        config: of the run.
        fit, held: both halves, whose lengths are their numbers of sequences.
        rows [M]: which held-out sequences are validated on.
    """

    config: Any
    fit: Any
    held: Any
    rows: Tensor

    @abstractmethod
    def _cut(self, half: Any, chosen: Tensor) -> Batch:
        """Take some sequences of a half."""

    def steps(self) -> int | None:
        """Steps that the epochs make."""
        return self.config.steps_of(len(self.fit))

    def validating(self, config: Any) -> Self:
        """Return the same data with a part of the held-out half, evenly chosen."""
        data: Any = self
        return replace(data, config=config, rows=config.validated(len(self.held)))

    def batch(self, step: int, mine: slice) -> Batch:
        """Return a step's batch: the next rows of an endless row of shuffled walks."""
        return self._cut(self.fit, self.config.chosen(len(self.fit), step, mine))

    def held_out(self) -> Iterator[Batch]:
        """Walk through the part that is validated on."""
        return self._walked(self.rows)

    def all_held_out(self) -> Iterator[Batch]:
        """Walk through the whole held-out half, in its order."""
        return self._walked(torch.arange(len(self.held)))

    def _walked(self, places: Tensor) -> Iterator[Batch]:
        return (self._cut(self.held, chosen) for chosen in places.split(self.config.batch))

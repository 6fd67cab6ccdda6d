"""Walks: the order in which whole sequences are trained and validated on."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from elman.train.config import Config, setting


@dataclass(frozen=True)
class WalkConfig(Config):
    """A run that trains on whole sequences, shuffled."""

    VALIDATED: ClassVar[str] = "validation_sequences"
    LEAST_VALIDATED: ClassVar[int] = 50

    epochs: int | None = setting(None, "Walks through the training data, instead of --minutes.")
    validation_sequences: int = setting(1000, "Sequences predicted per validation.")

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check("validation_sequences", self.validation_sequences >= 1, "must be at least 1")
        self.check("epochs", self.epochs is None or self.epochs >= 1, "must be at least 1")

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

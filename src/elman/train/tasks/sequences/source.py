"""Labelled sequences as they were read, before anything is done to them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from elman.train.tasks.arrays import digest_of

Values = np.ndarray | Sequence[np.ndarray]


@dataclass(frozen=True)
class Half:
    """The training half or the held-out one.

    Attributes:
        values: N sequences [T, I] of any lengths, or one array [N, T, I].
        labels: N names of classes.
    """

    values: Values
    labels: Sequence[str]

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True)
class Source:
    """A data set as read.

    Attributes:
        name: where it came from, for people.
        kind: "values", "wave" (raw audio) or "pixels": how it is scaled.
    """

    name: str
    kind: str
    train: Half
    test: Half

    @property
    def digest(self) -> str:
        """Hash of all values and labels."""
        halves = (self.train, self.test)
        words = [self.kind, *(list(half.labels) for half in halves)]
        return digest_of((piece for half in halves for piece in half.values), repr(words))

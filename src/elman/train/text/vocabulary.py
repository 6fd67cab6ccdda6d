"""Tokens to numbers and back."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from elman.train.text.levels import CHARACTERS, Level


@dataclass(frozen=True)
class Vocabulary:
    """The tokens a model knows; number 0 stands for all others.

    Attributes:
        known: the k-th has number k + 1.
        level: what tokens are.
    """

    known: Sequence[str]
    level: Level = CHARACTERS

    def __len__(self) -> int:
        return len(self.known) + 1

    def encode(self, text: str) -> np.ndarray:
        """Turn a text of N tokens into numbers.

        Returns:
            ids [N]: int32 in 0 … len(self) - 1.
        """
        tokens = self.level.split(text)
        numbers = {token: number for number, token in enumerate(self.known, start=1)}
        table = np.array([numbers.get(kind, 0) for kind in tokens.kinds], dtype=np.int32)
        return table[tokens.places]

    def decode(self, ids: Iterable[int]) -> str:
        """Turn numbers into a text; unknown tokens show as their level's sign."""
        table = (self.level.unknown, *self.known)
        return self.level.join(table[number] for number in ids)


def fit_vocabulary(text: str, level: Level = CHARACTERS, most: int | None = None) -> Vocabulary:
    """Collect the tokens of a text, without rare ones, unless all are rare.

    Args:
        level: what tokens are, and which of them are rare.
        most: numbers in all; the most frequent tokens have one.
    """
    tokens = level.split(text)
    counts = np.where([kind == level.unknown for kind in tokens.kinds], 0, tokens.counts())
    kept = counts >= level.least(tokens)
    if not kept.any():
        kept = counts > 0
    if most is not None:
        kept[np.argsort(-counts, kind="stable")[most - 1 :]] = False
    return Vocabulary([k for k, keep in zip(tokens.kinds, kept, strict=True) if keep], level)

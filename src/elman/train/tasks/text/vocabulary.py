"""Tokens of a text: what they are (its level), how a run calls them, and their numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from elman.checks import shown
from elman.errors import InputError
from elman.train.loop.objective import ACCURACY
from elman.train.loop.task import Labels

RARE_SHARE = 1e-5  # of a text: characters that are rarer are not known
END = "<eos>"  # the end of a line, among words
UNKNOWN_WORD = "<unk>"
MOST_NATS = 700.0  # beyond which a perplexity is not a float


# The K kinds of tokens that occur in a text, and which of them stands where, in 0 … K - 1, [N].
Tokens = tuple[list[str], np.ndarray]


@dataclass(frozen=True)
class Level:
    """A way of splitting texts.

    Attributes:
        name: what a user types.
        split, join: from a text to its tokens, and back.
        unknown: shown for a token that is not known.
        least: how often a token of a text must occur there to be known.
        labels: how a run calls tokens and its loss.
    """

    name: str
    split: Callable[[str], Tokens]
    join: Callable[[Iterable[str]], str]
    unknown: str
    least: Callable[[Tokens], int]
    labels: Labels


def split_characters(text: str) -> Tokens:
    """Take each character; kinds are sorted."""
    codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype=np.uint32)
    present = np.bincount(codes) > 0 if len(codes) else np.zeros(0, dtype=bool)
    numbers = np.cumsum(present) - 1
    return [chr(code) for code in np.flatnonzero(present)], numbers[codes]


def split_words(text: str) -> Tokens:
    """Take what stands between white space, and `<eos>` at the end of each line."""
    numbers: dict[str, int] = {}
    words = text.replace("\n", f" {END} ").split()
    places = [numbers.setdefault(word, len(numbers)) for word in words]
    return list(numbers), np.array(places, dtype=np.int64)


def join_words(words: Iterable[str]) -> str:
    """Write words with spaces between them, and lines."""
    text = "".join("\n" if word == END else f"{word} " for word in words)
    return text.replace(" \n", "\n").rstrip(" ")


def least_characters(tokens: Tokens) -> int:
    """Leave out those rarer than one in 100 000, and those that occur once."""
    return max(2, math.ceil(RARE_SHARE * len(tokens[1])))


def least_words(tokens: Tokens) -> int:
    """Leave out words that occur once, unless rare words are `<unk>` in the text already."""
    return 1 if UNKNOWN_WORD in tokens[0] else 2


def perplexity(nats: float) -> float:
    """Return e^nats, of a mean loss."""
    return math.exp(min(nats, MOST_NATS))


CHARACTERS = Level(
    "char",
    split_characters,
    "".join,
    "\ufffd",
    least_characters,
    Labels("characters", "bits per character", "bits/char", 1 / math.log(2), "loss", ACCURACY),
)
WORDS = Level(
    "word",
    split_words,
    join_words,
    UNKNOWN_WORD,
    least_words,
    Labels("words", "perplexity", "perplexity", 1.0, "loss", ACCURACY, ".2f", perplexity),
)
LEVELS = {level.name: level for level in (CHARACTERS, WORDS)}


@dataclass(frozen=True)
class Vocabulary:
    """The tokens a model knows; number 0 stands for all others.

    Attributes:
        tokens: the k-th has number k + 1.
        level: what tokens are.
    """

    tokens: Sequence[str]
    level: Level = CHARACTERS

    def __len__(self) -> int:
        return len(self.tokens) + 1

    def encode(self, text: str) -> np.ndarray:
        """Turn a text of N tokens into numbers.

        Returns:
            ids [N]: int32 in 0 … len(self) - 1.

        Raises:
            InputError: no text.
        """
        if not isinstance(text, str):
            raise InputError(f"encode takes a text, got {shown(text)}")
        kinds, places = self.level.split(text)
        numbers = {token: number for number, token in enumerate(self.tokens, start=1)}
        table = np.array([numbers.get(kind, 0) for kind in kinds], dtype=np.int32)
        return table[places]

    def decode(self, ids: Iterable[int]) -> str:
        """Turn numbers into a text; unknown tokens show as their level's sign."""
        table = (self.level.unknown, *self.tokens)
        return self.level.join(table[number] for number in ids)


def fit_vocabulary(text: str, level: Level = CHARACTERS, most: int | None = None) -> Vocabulary:
    """Collect the tokens of a text, without rare ones, unless all are rare.

    Args:
        level: what tokens are, and which of them are rare.
        most: numbers in all; the most frequent tokens have one.
    """
    kinds, places = level.split(text)
    counts = np.bincount(places, minlength=len(kinds))
    counts[[k for k, kind in enumerate(kinds) if kind == level.unknown]] = 0
    frequent = counts >= level.least((kinds, places))
    if not frequent.any():
        frequent = counts > 0
    if most is not None:
        frequent[np.argsort(-counts, kind="stable")[most - 1 :]] = False
    return Vocabulary([k for k, keep in zip(kinds, frequent, strict=True) if keep], level)

"""Characters to numbers and back."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

UNKNOWN = "\ufffd"
RARE_SHARE = 1e-5


@dataclass(frozen=True)
class Vocabulary:
    """The characters a model knows; number 0 stands for all others.

    Attributes:
        characters: the known characters, sorted; the k-th has number k + 1.
    """

    characters: str

    def __len__(self) -> int:
        return len(self.characters) + 1

    def encode(self, text: str) -> np.ndarray:
        """Turn a text of N characters into numbers.

        Returns:
            ids [N]: int32 in 0 … len(self) - 1.
        """
        codes = codepoints(text)
        known = codepoints(self.characters)
        place = np.searchsorted(known, codes)
        place[place == len(known)] = 0
        return np.where(known[place] == codes, place + 1, 0).astype(np.int32)

    def decode(self, ids: np.ndarray) -> str:
        """Turn numbers into a text; unknown characters show as U+FFFD."""
        table = UNKNOWN + self.characters
        return "".join(table[number] for number in ids)


def codepoints(text: str) -> np.ndarray:
    """Return the code points of a text, uint32 [N]."""
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype=np.uint32)


def fit_vocabulary(text: str) -> Vocabulary:
    """Collect the characters of a text, without those rarer than one in 100 000 (or single)."""
    codes, counts = np.unique(codepoints(text), return_counts=True)
    least = max(2, math.ceil(RARE_SHARE * len(text)))
    kept = codes[counts >= least] if (counts >= least).any() else codes
    return Vocabulary("".join(chr(code) for code in kept))

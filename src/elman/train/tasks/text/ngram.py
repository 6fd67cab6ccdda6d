"""The baseline: an interpolated trigram of tokens, from the counts of the training text alone.

With u the context's tokens, v the context without its oldest one, w the next token, and kinds(u)
the number of different tokens that follow u,

    P(w | u) = (count(u w) + kinds(u) P(w | v)) / (count(u) + kinds(u))

down to the uniform distribution: the more often u was seen, and the fewer tokens follow it, the
more its own counts are trusted. Source: Witten & Bell 1991, "The zero-frequency problem", IEEE
Transactions on Information Theory 37(4), method C, in the interpolated form.
"""

from __future__ import annotations

import numpy as np

ORDER = 3
LARGEST = 2**63  # codes of runs of tokens are smaller
NAMES = ("unigram", "bigram", "trigram")


def ngram_nats(
    text: np.ndarray, ids: np.ndarray, size: int, order: int = ORDER
) -> tuple[str, np.ndarray]:
    """Predict each token of a text by the counts of another one.

    Args:
        text [M]: what is counted, tokens as numbers in 0 … size - 1.
        ids [N]: what is predicted; short contexts at its beginning.
        size: number of tokens in the vocabulary.
        order: tokens looked at, the predicted one included; fewer where the vocabulary is so large
            that runs of them have no number in 64 bits.

    Returns:
        What the model is called, and -ln P(ids[t] | the tokens before) for all t, [N].
    """
    while size**order >= LARGEST:
        order -= 1
    chances = np.full(len(ids), 1 / size)
    for n in range(1, order + 1):
        grams, counts = np.unique(encode(text, n, size), return_counts=True)
        contexts, place, kinds = np.unique(grams // size, return_inverse=True, return_counts=True)
        totals = np.bincount(place, counts, len(contexts))
        codes = encode(ids, n, size)
        count = look_up(grams, counts, codes)
        total, kind = (look_up(contexts, v, codes // size) for v in (totals, kinds))
        lower = chances[n - 1 :]
        mixed = (count + kind * lower) / np.maximum(total + kind, 1)
        chances[n - 1 :] = np.where(total > 0, mixed, lower)
    return NAMES[order - 1], -np.log(chances)


def encode(ids: np.ndarray, n: int, size: int) -> np.ndarray:
    """Number each run of n tokens: [N - n + 1] int64, the oldest token counts most."""
    runs = max(0, len(ids) - n + 1)
    total = np.zeros(runs, dtype=np.int64)
    for k in range(n):
        total = total * size + ids[k : k + runs]
    return total


def look_up(keys: np.ndarray, values: np.ndarray, codes: np.ndarray) -> np.ndarray:
    """Values [N] of codes [N] among sorted keys; 0 where a code is none of them."""
    if not len(keys):
        return np.zeros(len(codes))
    place = np.minimum(np.searchsorted(keys, codes), len(keys) - 1)
    return np.where(keys[place] == codes, values[place], 0)

"""The baseline: an interpolated n-gram model of tokens.

With u the context's tokens, v the context without its oldest one, and w the next token,

    P(w | u) = lam(u) count(u w) / count(u) + (1 - lam(u)) P(w | v)

down to the uniform distribution (Jelinek & Mercer 1980). A weight lam is shared by all contexts
that were seen about equally often (one per power of two of count(u)). Weights are fitted by EM
on a part of the training text that was not counted; then all of the text is counted.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

BUCKETS = 40
HELD_OUT = 20  # one part in
ORDER = 3
LARGEST = 2**63  # codes are smaller
BLOCK = 4096  # tokens per held-out block
EM_ROUNDS = 30


@dataclass(frozen=True)
class Counts:
    """How often each code of n tokens occurs: codes sorted, both [K]."""

    codes: np.ndarray
    counts: np.ndarray

    def of(self, codes: np.ndarray) -> np.ndarray:
        """Look up counts [N] for codes [N]; 0 where a code never occurred."""
        if not len(self.codes):
            return np.zeros(len(codes))
        place = np.searchsorted(self.codes, codes)
        place[place == len(self.codes)] = 0
        return np.where(self.codes[place] == codes, self.counts[place], 0).astype(np.float64)


@dataclass(frozen=True)
class NGram:
    """An interpolated n-gram model.

    Attributes:
        size: number of tokens in the vocabulary.
        grams: for n = 1 … order, counts of n tokens in a row.
        contexts: for n = 1 … order, counts of the n - 1 tokens before another one.
        weights: for n = 1 … order, lam by bucket, [BUCKETS].
    """

    size: int
    grams: tuple[Counts, ...]
    contexts: tuple[Counts, ...]
    weights: tuple[np.ndarray, ...]

    @property
    def order(self) -> int:
        """Tokens looked at, the predicted one included."""
        return len(self.grams)

    @property
    def name(self) -> str:
        """How it is called."""
        return {1: "unigram", 2: "bigram", 3: "trigram"}.get(self.order, f"{self.order}-gram")

    def probabilities(self, ids: np.ndarray) -> np.ndarray:
        """Return P(ids[t] | the tokens before) for all t, [N]; short contexts at the start."""
        lower = np.full(len(ids), 1 / self.size)
        for n, lam in enumerate(self.weights, start=1):
            share, seen = shares(self, ids, n)
            weight = lam[bucket(seen)]
            mixed = weight * share + (1 - weight) * lower[n - 1 :]
            lower = np.concatenate([lower[: n - 1], mixed])
        return lower

    def nats(self, ids: np.ndarray) -> np.ndarray:
        """Return -ln P(ids[t] | the tokens before) for all t, [N]."""
        return -np.log(self.probabilities(ids))


def fit_ngram(ids: np.ndarray, size: int, order: int = ORDER) -> NGram:
    """Fit an interpolated n-gram model (a trigram by default) to a text.

    Args:
        ids [N]: tokens as numbers in 0 … size - 1.
        size: number of tokens in the vocabulary.
        order: tokens looked at, the predicted one included; fewer where the vocabulary is so large
            that runs of them have no number in 64 bits.
    """
    while size**order >= LARGEST:
        order -= 1
    counted, held = parts(ids)
    partial = count(counted, size, order)
    for n in range(1, order + 1):
        lower = np.concatenate([partial.probabilities(part)[n - 1 :] for part in held])
        pairs = [shares(partial, part, n) for part in held]
        share = np.concatenate([pair[0] for pair in pairs])
        seen = np.concatenate([pair[1] for pair in pairs])
        weights = fit_weights(share, lower, bucket(seen))
        partial = NGram(size, partial.grams, partial.contexts, (*partial.weights, weights))
    full = count([ids], size, order)
    return NGram(size, full.grams, full.contexts, partial.weights)


def parts(ids: np.ndarray) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Cut a text into blocks: those to count, joined where they touch, and those held out."""
    if not len(ids):
        return [ids], [ids]
    step = min(BLOCK, max(1, len(ids) // HELD_OUT))
    counted, held = [], []
    for start in range(0, len(ids), step * HELD_OUT):
        held.append(ids[start : start + step])
        counted.append(ids[start + step : start + step * HELD_OUT])
    return counted, held


def count(texts: list[np.ndarray], size: int, order: int) -> NGram:
    """Count all runs of 1 … order tokens; no weights yet."""
    grams, contexts = [], []
    for n in range(1, order + 1):
        codes = [code(text, n, size) for text in texts]
        grams.append(Counts(*np.unique(np.concatenate(codes), return_counts=True)))
        before, place = np.unique(grams[-1].codes // size, return_inverse=True)
        totals = np.bincount(place, weights=grams[-1].counts, minlength=len(before))
        contexts.append(Counts(before, totals))
    return NGram(size, tuple(grams), tuple(contexts), ())


def code(ids: np.ndarray, n: int, size: int) -> np.ndarray:
    """Number each run of n tokens: [N - n + 1] int64, the oldest token counts most."""
    runs = max(0, len(ids) - n + 1)
    total = np.zeros(runs, dtype=np.int64)
    for k in range(n):
        total = total * size + ids[k : k + runs]
    return total


def shares(model: NGram, ids: np.ndarray, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Return count(u w) / count(u) and count(u) for each run of n tokens, [N - n + 1]."""
    codes = code(ids, n, model.size)
    seen = model.contexts[n - 1].of(codes // model.size)
    return model.grams[n - 1].of(codes) / np.maximum(seen, 1), seen


def bucket(seen: np.ndarray) -> np.ndarray:
    """Number the weight of a context by how often it was seen: 0, 1, 2-3, 4-7, …"""
    return np.minimum(np.frexp(seen)[1], BUCKETS - 1)


def fit_weights(share: np.ndarray, lower: np.ndarray, where: np.ndarray) -> np.ndarray:
    """Find the weights lam [BUCKETS] that make the held-out tokens likeliest, by EM.

    Args:
        share [M], lower [M]: the two probabilities to mix, for each held-out token.
        where [M]: the bucket of each.
    """
    total = np.bincount(where, minlength=BUCKETS)
    lam = np.full(BUCKETS, 0.5)
    for _ in range(EM_ROUNDS):
        mixed = lam[where] * share
        owed = mixed / (mixed + (1 - lam[where]) * lower)
        # One imagined token on either side keeps a weight off 0 and 1.
        lam = (np.bincount(where, owed, BUCKETS) + 0.5) / (total + 1)
    lam[0] = 0.0
    return lam

"""The trigram baseline: a true distribution, close to the best it could be."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elman.train.tasks.text.ngram import ngram_nats


def test_reaches_the_entropy_of_a_second_order_chain():
    """On text it never saw, a trigram is within 1 % of the true model; a bigram is not."""
    draw = np.random.default_rng(0)
    table, ids, nats = draw.dirichlet([0.3] * 5, size=(5, 5)), [0, 1], 0.0
    for chance in draw.random(60_000):
        row = table[ids[-2], ids[-1]]
        ids.append(min(4, int(np.searchsorted(row.cumsum(), chance))))
        nats -= np.log(row[ids[-1]])
    text, unseen = np.array(ids[:50_000]), np.array(ids[50_000:])

    assert ngram_nats(text, unseen, 5)[1].mean() < 1.01 * nats / 60_000 + 0.01
    assert ngram_nats(text, unseen, 5, order=2)[1].mean() > 1.05 * nats / 60_000


@given(st.lists(st.integers(0, 3), max_size=60), st.lists(st.integers(0, 5), max_size=3))
def test_probabilities_sum_to_one(text, context):
    """For any text and any context, also unseen ones, over all next characters."""
    ids = np.array(text, dtype=np.int32)
    nats = [ngram_nats(ids, np.array([*context, w]), 6)[1][-1] for w in range(6)]
    assert max(nats) < np.inf
    assert np.exp(-np.array(nats)).sum() == pytest.approx(1)


def test_agrees_with_the_formula_written_plainly():
    """One probability by hand: counts as in the docstring."""
    text = [0, 1, 2, 0, 1, 0, 1, 2, 2, 0, 1, 1] * 9
    want = 1 / 3
    for context in ([], [1], [0, 1]):
        runs = [text[k : k + len(context) + 1] for k in range(len(text) - len(context))]
        following = [run[-1] for run in runs if run[:-1] == context]
        kinds = len(set(following))
        want = (following.count(2) + kinds * want) / (len(following) + kinds)
    name, nats = ngram_nats(np.array(text), np.array([0, 1, 2]), 3)
    assert name == "trigram"
    assert np.exp(-nats[-1]) == pytest.approx(want)


@pytest.mark.parametrize(
    "size, name", [(10_000, "trigram"), (5_000_000, "bigram"), (2**40, "unigram")]
)
def test_runs_of_large_vocabularies_have_numbers(size, name):
    """Runs are as long as their numbers have 64 bits; no chance is negative or above 1."""
    ids = size - 1 - np.random.default_rng(0).integers(0, 4, 500)
    found, nats = ngram_nats(ids, ids, size)
    assert found == name
    assert 0 < nats[1:].min() < nats[1:].max() < np.log(size)

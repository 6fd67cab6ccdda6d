"""The trigram baseline: a true distribution, honestly fitted, close to the best it could be."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elman.train.tasks.text.ngram import bucket, fit_ngram, fit_weights


@pytest.fixture(scope="module")
def markov():
    """A second-order chain of 5 characters with known probabilities: (ids, entropy in nats)."""
    draw = np.random.default_rng(0)
    table = draw.dirichlet([0.3] * 5, size=(5, 5))
    ids = [0, 1]
    nats = 0.0
    for chance in draw.random(60_000):
        row = table[ids[-2], ids[-1]]
        ids.append(min(4, int(np.searchsorted(row.cumsum(), chance))))
        nats -= np.log(row[ids[-1]])
    return np.array(ids, dtype=np.int32), nats / 60_000


def test_reaches_the_entropy_of_a_second_order_chain(markov):
    """On text it never saw, a trigram is within 1 % of the true model; a bigram is not."""
    ids, entropy = markov
    trigram, bigram = (fit_ngram(ids[:50_000], 5, order) for order in (3, 2))
    unseen = ids[50_000:]

    assert trigram.nats(unseen).mean() < 1.01 * entropy + 0.01
    assert bigram.nats(unseen).mean() > 1.05 * entropy


@given(st.lists(st.integers(0, 3), max_size=60), st.lists(st.integers(0, 5), max_size=3))
def test_probabilities_sum_to_one(text, context):
    """For any text and any context, also unseen ones, over all next characters."""
    model = fit_ngram(np.array(text, dtype=np.int32), size=6)
    following = [model.probabilities(np.array([*context, w]))[-1] for w in range(6)]

    assert min(following) > 0
    assert sum(following) == pytest.approx(1)


def test_agrees_with_the_formula_written_plainly():
    """One probability by hand: counts and weights as in the docstring."""
    ids = np.array([0, 1, 2, 0, 1, 0, 1, 2, 2, 0, 1, 1] * 9, dtype=np.int32)
    model = fit_ngram(ids, size=3)
    text = ids.tolist()

    def share(context, w):
        n = len(context)
        runs = [text[k : k + n + 1] for k in range(len(text) - n)]
        seen = [run for run in runs if run[:-1] == context]
        lam = model.weights[n][int(bucket(np.array([float(len(seen))]))[0])]
        return lam, sum(run[-1] == w for run in seen) / max(1, len(seen))

    want = 1 / 3
    for context in ([], [1], [0, 1]):
        lam, part = share(context, 2)
        want = lam * part + (1 - lam) * want
    assert model.probabilities(np.array([0, 1, 2]))[-1] == pytest.approx(want)


def test_frequent_contexts_are_trusted_more(markov):
    """The weight of the trigram's own counts grows with how often its context was seen."""
    model = fit_ngram(markov[0], 5)
    seen = model.contexts[2].counts
    used = model.weights[2][bucket(seen)]

    assert used[seen.argmax()] > 0.9
    assert used[seen.argmax()] > used[seen.argmin()]
    assert model.weights[2][0] == 0


def test_em_finds_the_likeliest_weight():
    """The weight found is the best on a fine grid."""
    draw = np.random.default_rng(1)
    share, lower = draw.random(400) ** 2, draw.random(400)
    lam = fit_weights(share, lower, np.full(400, 3))[3]
    grid = np.linspace(0.001, 0.999, 999)
    likelihood = [np.log(g * share + (1 - g) * lower).sum() for g in grid]

    assert lam == pytest.approx(grid[int(np.argmax(likelihood))], abs=0.02)


@pytest.mark.parametrize(
    "size, order, name", [(10_000, 3, "trigram"), (5_000_000, 2, "bigram"), (2**40, 1, "unigram")]
)
def test_runs_of_large_vocabularies_have_numbers(size, order, name):
    """Runs are as long as their numbers have 64 bits, and different runs have different ones."""
    draw = np.random.default_rng(0)
    last = size - 1 - draw.integers(0, 4, 500)
    model = fit_ngram(last, size)

    assert (model.order, model.name) == (order, name)
    assert all((gram.codes >= 0).all() for gram in model.grams)
    assert len(model.grams[-1].codes) == len(
        {tuple(last[k : k + order]) for k in range(len(last) - order + 1)}
    )

"""Layout and batches: scaled, joined, padded, shuffled; the same for the same step."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from elman.errors import RunError
from elman.train.tasks.sequences.config import SeriesConfig
from elman.train.tasks.sequences.data import lay_out
from elman.train.tasks.sequences.model import PERMUTATION_SEED, permute
from elman.train.tasks.sequences.source import Half, Source


def source(kind="values", lengths=(5, 3, 4, 5), channels=2, dtype=np.float32):
    """A set of random sequences of two classes, half of it held out too."""
    draw = np.random.default_rng(0)
    values = [draw.normal(3, 5, (n, channels)).astype(dtype) for n in lengths]
    labels = ["10" if k % 2 else "9" for k in range(len(lengths))]
    return Source("random", kind, Half(values, labels), Half(values[::-1], labels[::-1]))


def test_values_are_scaled_by_channel():
    """Mean 0 and variance 1 over the training half; classes in the order of their numbers."""
    data = lay_out(source(), SeriesConfig())
    inside = torch.arange(5) < data.fit.lengths[:, None]
    values = data.fit.x[inside]

    torch.testing.assert_close(values.mean(0), torch.zeros(2), atol=1e-6, rtol=0)
    torch.testing.assert_close(values.var(0, correction=0), torch.ones(2))
    assert not data.fit.x[~inside].any()
    assert data.spec.classes == ["9", "10"]
    assert data.fit.y.tolist() == [0, 1, 0, 1]


def test_waves_are_equally_loud():
    """Each recording has root mean square 1; silence stays silent."""
    made = source("wave", channels=1, dtype=np.int16)
    made.train.values[1][:] = 0
    data = lay_out(made, SeriesConfig())
    assert data.fit.x[0].square().mean().sqrt() == pytest.approx(1)
    assert not data.fit.x[1].any()


def test_missing_values_are_the_mean():
    """NaN becomes 0 after scaling, and is told."""
    made = source()
    made.train.values[0][1, 1] = np.nan
    data = lay_out(made, SeriesConfig())
    assert data.fit.x[0, 1, 1] == 0
    assert "2.9% of the values are missing" in data.about()
    assert data.fit.x.isfinite().all()


def test_pixels_stay_bytes():
    """Images take a byte per value until they are in a batch."""
    draw = np.random.default_rng(0)
    values = draw.integers(0, 256, (6, 12, 3), dtype=np.uint8)
    half = Half(values, list("aabbcc"))
    data = lay_out(Source("images", "pixels", half, half), SeriesConfig(batch=6, patch=2))
    assert data.fit.x.dtype == torch.uint8
    (x, lengths), y = dataclasses.astuple(data.batch(0, slice(0, 6)))[:2]

    assert x.shape == (6, 6, 6)
    assert lengths.tolist() == [6] * 6
    one = next(k for k in range(6) if y[k] == 0)
    pixels = {tuple(piece.reshape(-1).tolist()) for piece in values[:2]}
    assert tuple((x[:, one].reshape(-1) * 255).round().int().tolist()) in pixels
    assert sorted(y.tolist()) == [0, 0, 1, 1, 2, 2]


@given(patch=st.integers(1, 7))
def test_patches(patch):
    """Joined steps hold the same values in the same order, zeros behind the end."""
    plain, joined = (lay_out(source(), SeriesConfig(patch=p)) for p in (1, patch))
    for k, length in enumerate(plain.fit.lengths.tolist()):
        assert joined.fit.lengths[k] == -(-length // patch)
        values = joined.fit.x[k].reshape(-1, 2)
        assert torch.equal(values[:length], plain.fit.x[k, :length])
        assert not values[length:].any()


@given(batch=st.integers(1, 9), seed=st.integers(0, 5))
def test_walks_are_permutations(batch, seed):
    """Whatever the batch, every walk through the data sees each sequence once; seeds differ."""
    data = lay_out(source(lengths=(2, 3, 4, 5, 6, 7)), SeriesConfig(batch=batch, seed=seed))
    steps = 6 * batch
    lengths = [data.batch(step, slice(0, batch)).inputs[1] for step in range(steps)]
    walks = torch.cat(lengths).reshape(-1, 6)
    assert all(sorted(walk.tolist()) == [2, 3, 4, 5, 6, 7] for walk in walks)
    assert len({tuple(walk.tolist()) for walk in walks[:batch]}) > (1 if batch > 4 else 0)


def test_rows_of_processes_make_the_whole_batch():
    """Two processes see the two halves of what one would see, cut to their own longest."""
    data = lay_out(source(), SeriesConfig(batch=4))
    whole = data.batch(3, slice(0, 4))
    parts = [data.batch(3, rows) for rows in (slice(0, 2), slice(2, 4))]
    assert torch.equal(whole.targets, torch.cat([part.targets for part in parts]))
    assert torch.equal(whole.inputs[1], torch.cat([part.inputs[1] for part in parts]))
    for part in parts:
        assert len(part.inputs[0]) == part.inputs[1].max()


def test_validation_takes_an_even_part():
    """First and last are among the chosen; the whole half is walked at the end."""
    data = lay_out(source(lengths=range(2, 12)), SeriesConfig(validation_sequences=4, batch=3))
    assert data.rows.tolist() == [0, 3, 6, 9]
    assert [len(batch.targets) for batch in data.held_out()] == [3, 1]
    assert sum(len(batch.targets) for batch in data.test_batches()) == 10
    assert data.baseline().score == 0.5


def test_a_part_of_the_training_half_validates():
    """Of each class a share, the same whatever the seed; the held-out half is left for the end,
    and values are scaled by what is learned from alone."""
    whole = source(lengths=range(2, 14))
    data = lay_out(whole, SeriesConfig(validation_share=0.25, batch=3))
    again = lay_out(whole, SeriesConfig(validation_share=0.25, batch=3, seed=5))
    assert (len(data.fit), len(data.valid), len(data.test)) == (8, 4, 12)
    assert data.valid.y.bincount().tolist() == [2, 2]
    assert torch.equal(data.valid.x, again.valid.x)
    assert sorted([*data.fit.lengths.tolist(), *data.valid.lengths.tolist()]) == [*range(2, 14)]
    assert sum(len(batch.targets) for batch in data.held_out()) == 4
    assert sum(len(batch.targets) for batch in data.test_batches()) == 12
    assert "8 sequences to learn from, 4 to validate, 12 held out" in data.about()
    learned = torch.cat([x[:n] for x, n in zip(data.fit.x, data.fit.lengths)])
    torch.testing.assert_close(learned.mean(0), torch.zeros(2), atol=1e-5, rtol=0)
    with pytest.raises(RunError, match="too few sequences to learn from and to validate with"):
        lay_out(source(lengths=(3, 4)), SeriesConfig(validation_share=0.5))


def test_permuted_pixels():
    """One order for both halves and all runs, and it is a permutation."""
    values = np.arange(24).reshape(2, 12, 1)
    order = np.random.default_rng(PERMUTATION_SEED).permutation(12)
    assert np.array_equal(permute(values), values[:, order])
    assert sorted(permute(values)[0, :, 0]) == list(range(12))


def test_halves_that_do_not_fit():
    """Held-out classes that the training half lacks, and other channels, are refused."""
    made = source()
    strange = dataclasses.replace(made.test, labels=["9", "9", "what", "10"])
    with pytest.raises(RunError, match=r"the training half lacks(.|\n)*what"):
        lay_out(dataclasses.replace(made, test=strange), SeriesConfig())
    with pytest.raises(RunError, match="differ in their channels"):
        lay_out(dataclasses.replace(made, test=source(channels=3).test), SeriesConfig())

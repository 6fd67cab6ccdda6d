"""Rows of text, segments of rows, and what is too short for them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from elman.errors import RunError
from elman.train.tasks.text.config import TextConfig
from elman.train.tasks.text.data import prepare, training_stream, validation_stream


def test_segments_walk_through_each_row():
    """Row b holds consecutive text; targets are the inputs one later; segments join."""
    stream = training_stream(np.arange(103, dtype=np.int32), batch=4, bptt=6)

    assert stream.segments == 4
    pieces = [stream.segment(k) for k in range(stream.segments)]
    inputs, targets = (torch.cat(parts) for parts in zip(*pieces, strict=True))
    assert inputs[:, 1].tolist() == list(range(25, 49))
    assert torch.equal(targets, inputs + 1)
    assert inputs.dtype == torch.int64


def test_rows_can_be_shared_out():
    """Two processes' rows are the whole batch."""
    stream = training_stream(np.arange(103, dtype=np.int32), batch=4, bptt=6)
    halves = [stream.segment(2, rows)[0] for rows in (slice(0, 2), slice(2, 4))]

    assert torch.equal(torch.cat(halves, 1), stream.segment(2)[0])


def test_shortest_text():
    """One segment per row is enough; one character less is not."""
    assert training_stream(np.zeros(4 * 7, dtype=np.int32), batch=4, bptt=6).segments == 1
    with pytest.raises(RunError, match=r"27 words(.|\n)*28 = batch 4 x \(bptt 6 \+ 1\)"):
        training_stream(np.zeros(27, dtype=np.int32), batch=4, bptt=6, items="words")


def test_a_walk_begins_where_the_seed_says(tmp_path):
    """The same text, from another place; without the option from its beginning."""
    path = tmp_path / "text.txt"
    path.write_text("the quick brown fox jumps over the lazy dog. " * 400)
    options = {"data": str(path), "batch": 2, "bptt": 8, "validation_chars": 64}

    def first(**others):
        return prepare(TextConfig(**options, **others)).train.ids.ravel().tolist()

    start = first(seed=0)
    assert first(seed=1) == start
    rolled = [first(seed=seed, random_start=True) for seed in (0, 1, 1)]
    assert rolled[1] == rolled[2]
    assert start not in rolled
    assert rolled[0] != rolled[1]
    assert sorted(rolled[0])[: len(start) // 2] == sorted(start)[: len(start) // 2]


@pytest.mark.parametrize("length", [2, 3, 50, 1000, 9999])
@pytest.mark.parametrize("limit", [2, 100, 5000])
def test_validation_places_are_the_targets(length, limit):
    """`places` names exactly what the stream's segments predict, within the limit."""
    ids = np.random.default_rng(0).integers(0, 9, length).astype(np.int32)
    stream, places = validation_stream(ids, 16, limit)
    targets = torch.cat([stream.segment(k)[1] for k in range(stream.segments)])

    assert sorted(ids[places].tolist()) == sorted(targets.flatten().tolist())
    assert 1 <= len(places) <= max(limit, 2)


def test_nothing_to_validate_on():
    """One character predicts nothing."""
    with pytest.raises(RunError, match="too short to validate on"):
        validation_stream(np.zeros(1, dtype=np.int32), 16, 100)

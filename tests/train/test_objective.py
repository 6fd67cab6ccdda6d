"""Losses and scores: over batches cut anywhere they are what the formula says of all at once."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.functional import cross_entropy

from elman.train.loop.objective import ACCURACY, CLASSES, R2, SQUARES, evaluate


def cut(tensor: torch.Tensor, places: list[int]) -> list[torch.Tensor]:
    """Cut a tensor along its first axis; no piece is empty."""
    inside = sorted({place % len(tensor) for place in places} - {0})
    return list(torch.tensor_split(tensor, inside))


@given(
    shape=st.tuples(st.integers(2, 9), st.integers(1, 4), st.integers(1, 3)),
    places=st.lists(st.integers(0, 99), max_size=4),
    offset=st.sampled_from([0.0, 1e4]),
    seed=st.integers(0, 99),
)
def test_r2_of_any_batches(shape, places, offset, seed):
    """As one formula in float64 has it, for targets per step and per sequence."""
    draw = torch.Generator().manual_seed(seed)
    targets = torch.randn(shape, generator=draw) + offset
    outputs = targets + torch.randn(shape, generator=draw)
    for axes in ((0, 1), (0,)):
        right, said = (targets, outputs) if len(axes) == 2 else (targets[:, 0], outputs[:, 0])
        found = evaluate(SQUARES, zip(cut(said, places), cut(right, places), strict=True))
        y, error = right.double(), (said.double() - right.double()).square()
        around = (y - y.mean(axes, keepdim=True)).square().sum()
        assert found.loss == pytest.approx(float(error.mean()), rel=1e-5)
        assert found.score == pytest.approx(1 - float(error.sum() / around), rel=1e-4, abs=1e-4)


@pytest.mark.parametrize("value", [0.0, 3.7, -1e6])
def test_r2_of_constant_targets_is_unknown(value):
    """Nothing varies, so nothing is explained."""
    targets = torch.full((5, 2), value)
    found = evaluate(SQUARES, [(targets + 1, targets), (targets, targets)])
    assert found.score is None
    assert found.loss == pytest.approx(0.5)
    assert R2.text(found.score) == "R² unknown"


def test_perfect_and_mean_predictions():
    """R² is 1 and 0."""
    targets = torch.randn(50, 3)
    assert evaluate(SQUARES, [(targets, targets)]).score == 1
    mean = targets.mean(0).expand_as(targets)
    assert evaluate(SQUARES, [(mean, targets)]).score == pytest.approx(0, abs=1e-6)


@given(places=st.lists(st.integers(0, 99), max_size=4), seed=st.integers(0, 99))
def test_accuracy_of_any_batches(places, seed):
    """Targets are whole numbers of any shape; loss and share are those of all at once."""
    draw = torch.Generator().manual_seed(seed)
    logits = torch.randn(7, 3, 5, generator=draw)
    targets = torch.randint(5, (7, 3), generator=draw)
    found = evaluate(CLASSES, zip(cut(logits, places), cut(targets, places), strict=True))
    assert found.score == int((logits.argmax(-1) == targets).sum()) / 21
    whole = float(cross_entropy(logits.flatten(0, 1), targets.flatten()))
    assert found.loss == pytest.approx(whole, rel=1e-5)
    assert ACCURACY.text(found.score) == f"accuracy {found.score:.1%}"


def test_diverged_predictions_have_a_score():
    """NaN stays NaN, and is no error."""
    targets = torch.randn(4, 1)
    assert math.isnan(evaluate(SQUARES, [(targets * math.nan, targets)]).score)

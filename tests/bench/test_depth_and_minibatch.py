"""Suites depth and minibatch: models that learn at all, and what their rows say of the claims."""

from __future__ import annotations

from dataclasses import replace

import pytest

from elman.bench import learning_studies
from elman.bench.cases import Effort
from elman.bench.claims import Rows, judged
from elman.bench.learning_studies import measure_residual, measure_samples
from elman.bench.suites.depth import DEPTH, LAYERS
from elman.bench.suites.depth import name_of as depth
from elman.bench.suites.minibatch import MINIBATCH, SIZES, bound
from elman.bench.suites.minibatch import name_of as minibatch

LEAST = Effort(0.1, 1, 1)
TEXT = "the quick brown fox jumps over the lazy dog. " * 200


@pytest.fixture
def text(tmp_path):
    """A text that is quickly learned."""
    path = tmp_path / "fox.txt"
    path.write_text(TEXT)
    return str(path)


def verdicts(suite, rows):
    """Whether each claim holds, in words."""
    return [line[4] for line in judged(suite.claims, Rows(rows))]


def test_a_deep_stack_with_its_inputs_added_learns(text):
    """Where the plain one of as many steps has hardly begun."""
    case = replace(DEPTH.select((depth(10),), quick=False)[0], B=8, H=16, steps=60, layers=6)
    found = measure_residual(case, LEAST, text)
    assert found["bits"]["residual"] < found["bits"]["plain"] - 0.3
    (plot,) = found["plots"]
    assert set(plot["lines"]) == {"plain", "residual"}


def test_samples_to_a_loss(text, monkeypatch):
    """Counted to the step that came to the target; none if no step did."""
    case = replace(MINIBATCH.select((minibatch(8),), quick=False)[0], H=16, steps=40)
    monkeypatch.setattr(learning_studies, "TARGET", 4.5)
    found = measure_samples(case, LEAST, text)
    assert 0 < found["samples"] <= 8 * 40
    assert found["samples"] % 8 == 0
    assert found["rate"]["momentum"] == 1 - 8 / 512
    monkeypatch.setattr(learning_studies, "TARGET", 0.01)
    found = measure_samples(case, LEAST, text)
    assert found["samples"] is None
    assert "not within 320 samples" in found["told"]


def test_claims_of_depth():
    """As the slides have it, the other way round, and without deep stacks."""
    better = [
        {"case": depth(n), "bits": {"plain": 3.0 + n / 100, "residual": 3.0 - n / 100}}
        for n in LAYERS
    ]
    worse = [
        {"case": row["case"], "bits": {"plain": row["bits"]["residual"], "residual": 3.0 + k}}
        for k, row in enumerate(better)
    ]
    assert verdicts(DEPTH, better) == ["holds", "holds"]
    assert verdicts(DEPTH, worse) == ["does not hold", "does not hold"]
    assert verdicts(DEPTH, better[:2]) == ["not measured", "not measured"]


def test_claims_of_minibatches():
    """A bound within what was tried, none, and nothing that came to the target."""
    curved = [
        {"case": minibatch(B), "samples": 1000 * (1 + (B // 64) ** 2) if B < 512 else None}
        for B in SIZES
    ]
    flat = [{"case": minibatch(B), "samples": 1000} for B in SIZES]
    never = [{"case": minibatch(B), "samples": None} for B in SIZES]
    assert verdicts(MINIBATCH, curved) == ["holds", "holds"]
    assert bound(Rows(curved)) == 32
    assert verdicts(MINIBATCH, flat) == ["does not hold", "holds"]
    assert verdicts(MINIBATCH, never) == ["not measured", "not measured"]
    assert len(MINIBATCH.plots(Rows(curved))) == 2
    assert MINIBATCH.plots(Rows(never)) == DEPTH.plots(Rows([])) == []

"""Suites depth and minibatch: models that learn at all, and what their rows say of the claims."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.cases import Effort
from benchmarks.claims import Rows, judged
from benchmarks.studies import learning_studies, trainer_models
from benchmarks.studies.learning_studies import measure_residual, measure_samples
from benchmarks.suites.depth import DEPTH, LAYERS
from benchmarks.suites.depth import name_of as depth
from benchmarks.suites.minibatch import MINIBATCH, SIZES, bound, fitted
from benchmarks.suites.minibatch import name_of as minibatch

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
    result = measure_residual(case, LEAST, text)
    assert result["bits"]["residual"] < result["bits"]["plain"] - 0.3
    (plot,) = result["plots"]
    assert set(plot["lines"]) == {"plain", "residual"}


def test_samples_to_a_loss(text, monkeypatch):
    """Counted to the step that came to the target; none if no step did."""
    case = replace(MINIBATCH.select((minibatch(8),), quick=False)[0], H=16, steps=40)
    monkeypatch.setattr(learning_studies, "TARGET", 4.5)
    result = measure_samples(case, LEAST, text)
    assert 0 < result["samples"] <= 8 * 40
    assert result["samples"] % 8 == 0
    assert result["rate"]["momentum"] == 1 - 8 / 512
    monkeypatch.setattr(learning_studies, "TARGET", 0.01)
    result = measure_samples(case, LEAST, text)
    assert result["samples"] is None
    assert "none (of 320 at most)" in result["told"]


def test_every_seed_is_counted(text, monkeypatch):
    """As many as there are starts, and their median."""
    case = replace(MINIBATCH.select((minibatch(8),), quick=False)[0], H=8, steps=9)
    lengths = iter([4, 9, 5])
    monkeypatch.setattr(trainer_models, "losses_until", lambda *_: [9.0] * next(lengths))
    result = measure_samples(case, replace(LEAST, starts=5), text)
    assert result["each"] == [32, None, 40]
    assert result["samples"] == 40
    assert "32, none, 40 (of 72 at most)" in result["told"]


def rows_of_depth(plain: dict[int, float], residual: dict[int, float]) -> list[dict]:
    """A row for each number of layers."""
    return [
        {"case": depth(n), "bits": {"plain": plain[n], "residual": residual[n]}} for n in residual
    ]


def test_deeper_stacks_have_to_learn_as_well_as_one_layer():
    """One depth that is best does not make all the others possible."""
    plain = {n: 3.0 + n / 100 for n in LAYERS}
    only_ten = {1: 3.39, 3: 3.29, 10: 3.25, 30: 3.64, 100: 3.9}
    _, deeper = judged(DEPTH.claims, Rows(rows_of_depth(plain, only_ten)))
    assert deeper[4] == "does not hold"
    assert deeper[5].startswith("30 and 100 layers have not learned as much")


def rows_of_minibatches(counts: dict[int, list[int | None]]) -> list[dict]:
    """A row for each minibatch."""
    return [{"case": minibatch(B), "samples": each[0], "each": each} for B, each in counts.items()]


def test_claims_of_minibatches():
    """A bound within what was tried, none, and nothing that came to the target."""
    curved = rows_of_minibatches(
        {B: [1000 * (1 + (B // 64) ** 2) if B < 512 else None] * 3 for B in SIZES}
    )
    flat = rows_of_minibatches({B: [1000, 1010, 990] for B in SIZES})
    never = rows_of_minibatches({B: [None] * 3 for B in SIZES})
    assert verdicts(MINIBATCH, curved) == ["holds", "holds"]
    assert bound(Rows(curved)) == 32
    assert verdicts(MINIBATCH, flat) == ["does not hold", "holds"]
    assert verdicts(MINIBATCH, never) == ["not measured", "not measured"]


def test_one_seed_that_is_off_moves_no_bound():
    """The curve that is judged never falls: what comes down again was noise."""
    noisy: dict[int, list[int | None]] = {B: [1000, 1100, 1050] for B in SIZES}
    noisy[16] = [1000, 2900, 2600]  # twice the fewest, and larger minibatches are not
    noisy[512] = [None, None, 9000]  # most do not come to it
    rows = Rows(rows_of_minibatches(noisy))
    assert bound(rows) == 256
    assert fitted(rows)[16] == pytest.approx(fitted(rows)[256])
    assert 512 not in fitted(rows)


def test_learning_that_needs_more_samples_is_not_alike():
    """Below the bound too: the trend counts, and the range."""
    rising = rows_of_minibatches({B: [round(1000 * B**0.2), round(1020 * B**0.2)] for B in SIZES})
    _, followed = judged(MINIBATCH.claims, Rows(rising))
    assert followed[4] == "does not hold"
    assert "B^(+0.20" in followed[3]
    steep = rows_of_minibatches({B: [1000 * B] * 3 for B in SIZES})
    _, followed = judged(MINIBATCH.claims, Rows(steep))
    assert followed[3:5] == ("alike from 4 to 4 alone", "does not hold")

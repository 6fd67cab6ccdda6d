"""Studies of what models learn: all contestants learn the same, curves are the trainer's, and what
rows of suites depth and minibatch say of the claims."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from rich.console import Console
from torch import nn

from benchmarks.cases import Effort, TrainedCase
from benchmarks.claims import Rows, judged
from benchmarks.studies import LEARNING, learning
from benchmarks.studies.learning import KINDS, begin, config_of, measure_learning
from benchmarks.suites import SUITES
from benchmarks.suites.depth import DEPTH, LAYERS
from benchmarks.suites.depth import name_of as depth
from benchmarks.suites.minibatch import MINIBATCH, SIZES, bound, fitted
from benchmarks.suites.minibatch import name_of as minibatch
from benchmarks.worker import measure
from elman.errors import InputError, VerifyError
from elman.train.loop.metrics import read_metrics
from elman.train.run.run import start
from elman.train.tasks.text.config import TextConfig

pytestmark = pytest.mark.usefixtures("two_classes")
LEAST = Effort(1e-9, 1, 1)
ALL = ("elman-c", "elman", "torch", "loop")
SMALL = TrainedCase(
    *("small", LEARNING, "gru", 12, 4, 8),
    contestants=ALL,
    baseline="elman-c",
    threads=1,
    kind="speech",
    steps=6,
)


def test_all_learn_alike():
    """Losses are the float64 run's; who is not there is told; elman goes on to the last step."""
    result = measure_learning(SMALL, LEAST)
    assert result["off"].keys() == {"elman-c", "elman", "torch"}
    assert max(result["off"].values()) < 1e-5
    assert result["absent"] == {"loop": "no loop is written for gru"}
    assert [len(losses) for losses in result["losses"].values()] == [2, 6, 2]
    assert [step for step, _, _ in result["scores"]][-1] == SMALL.steps
    assert result["accuracy"] == result["scores"][-1][2]
    assert result["chance"] == 0.5
    (plot,) = result["plots"]
    assert plot["lines"].keys() == result["off"].keys()


def test_who_takes_part():
    """What torch has no layer for is compared with a loop, with the same weights; torch's layers of
    equal size in one head learn something else, and are timed all the same."""
    result = measure_learning(replace(SMALL, cell="lem"), LEAST)
    assert result["off"]["loop"] < 1e-5
    assert result["absent"] == {"torch": "torch.nn has no lem"}
    pixels = replace(SMALL, kind="pixels", heads=2, contestants=ALL[:3])
    result = measure_learning(pixels, LEAST)
    assert result["off"].keys() == {"elman-c", "elman"}
    assert result["seconds"].keys() == {"elman-c", "elman", "torch"}


def test_a_curve_is_the_trainers(tmp_path):
    """Step by step as a run of the trainer, noise and dropout included."""
    config = replace(config_of(SMALL), noise=0.1, dropout=0.2, validate_every=2)
    outcome = start(config, tmp_path, Console(quiet=True), comparing=False)
    rows = read_metrics(outcome.folder.metrics)
    want = [(row.step, row.valid_loss) for row in rows if row.valid_loss is not None]
    run = begin(config)
    run.learn(2)
    assert [(step, loss) for step, loss, _ in run.scores] == want
    assert len(want) == 3


def zeroed(model):
    """Begin with other weights."""
    nn.init.zeros_(model.readout.weight)


def climbing(model):
    """Go up in one weight, from the same loss."""
    model.readout.weight.register_hook(torch.neg)


@pytest.mark.parametrize("spoil", [zeroed, climbing])
def test_another_learner_is_found(monkeypatch, spoil):
    """Another loss, at the first step or after an update, is no rounding."""
    build = learning.model_of

    def spoilt(name, *args):
        model = build(name, *args)
        if name == "torch":
            spoil(model)
        return model

    monkeypatch.setattr(learning, "model_of", spoilt)
    with pytest.raises(VerifyError, match="torch learns other than elman-c in float64"):
        measure_learning(SMALL, LEAST)


def test_data_of_another_kind(monkeypatch):
    """A case promises its length; without data a row of suite long names the file, in one line."""
    with pytest.raises(InputError, match=r"small: the sequences of .* have \[12, 12\] steps"):
        measure_learning(replace(SMALL, kind="pixels", T=13), LEAST)
    for kind in KINDS.values():
        monkeypatch.delenv(kind.variable)
    for case in SUITES["long"].cases:
        row = measure(case, LEAST)
        assert "failed" not in row
        assert row["skipped"].startswith(f"no data: set {KINDS[case.kind].variable} to an .npz")
        assert "\n" not in row["skipped"]


@pytest.fixture
def text(tmp_path, monkeypatch):
    """A text that is quickly learned."""
    path = tmp_path / "fox.txt"
    path.write_text("the quick brown fox jumps over the lazy dog. " * 200)
    monkeypatch.setenv(learning.TEXT, str(path))


@pytest.mark.long
@pytest.mark.usefixtures("text")
def test_a_deep_stack_with_its_inputs_added_learns():
    """Where the plain one of as many steps has hardly begun."""
    (case,) = DEPTH.select((depth(10),))
    result = learning.measure_residual(replace(case, B=8, H=16, steps=60, layers=6), LEAST)
    bits = {kind: losses[0] for kind, losses in result["bits"].items()}
    assert bits["residual"] < bits["plain"] - 0.3
    assert bits["norms"] < bits["plain"] - 0.3
    (plot,) = result["plots"]
    assert set(plot["lines"]) == {"plain", "residual", "norms", "equal"}
    assert result["units"] == 21
    assert all(step_s > 0 for times in result["step_s"].values() for step_s in times)


@pytest.mark.usefixtures("text")
def test_samples_to_a_loss(monkeypatch):
    """Counted to the step that came to the target; None if no step did; of each step size and
    seed, with as many seeds as there are starts."""
    (case,) = MINIBATCH.select((minibatch(8),))
    case = replace(case, H=16, steps=120)
    monkeypatch.setattr(learning, "TARGET", 5.0)
    result = learning.measure_samples(case, LEAST)
    (counts,) = result["cold"].values()
    assert 0 < counts[0] <= 8 * 120
    assert counts[0] % 8 == 0
    monkeypatch.setattr(learning, "TARGET", 0.01)
    result = learning.measure_samples(case, LEAST)
    assert result["cold"] == {"0.5": [None]}
    assert "(of 960 at most)" in result["told"]
    seen = list[TextConfig]()

    def steps_to(_: float, config: TextConfig) -> int | None:
        seen.append(config)
        return None if config.seed == 1 else 2

    monkeypatch.setattr(learning, "steps_to", steps_to)
    result = learning.measure_samples(replace(case, steps=9), replace(LEAST, starts=5))
    assert result["cold"] == result["warm"]
    assert result["cold"] == {f"{2.0**n:g}": [16, None, 16] for n in range(-3, 3)}
    assert {config.momentum for config in seen} == {1 - 8 / 512}
    assert all(config.random_start for config in seen)
    assert seen[0].lr == 2.0**-3 * 8 / 512 * 8


def depth_rows(plain: float, residual: float, norms: dict[int, float], step_s: float) -> Rows:
    """Depths whose losses differ by a hundredth between seeds."""
    values = {"plain": plain, "residual": residual}
    rows = []
    for n in LAYERS:
        bits = {kind: [loss, loss + 0.01] for kind, loss in (values | {"norms": norms[n]}).items()}
        bits["equal"] = bits["norms"]
        curve = [[200, norms[n] + 1], [2000, norms[n]]]
        curves = {"equal": [curve, curve]}
        times = {"equal": [step_s * n, step_s * n]}
        rows.append({"case": depth(n), "bits": bits, "curves": curves, "step_s": times, "units": 8})
    return Rows(rows)


def test_deeper_stacks_have_to_learn_as_well_as_one_layer():
    """One depth that is best does not make all the others possible; in the time of one layer a
    deep stack has done a part of its steps."""
    norms = {1: 3.39, 3: 3.29, 10: 3.25, 30: 3.64, 100: 3.9}
    applies, deeper, equal, in_time = judged(DEPTH.claims, depth_rows(3.5, 3.0, norms, 1.0))
    assert applies[4] == "holds"
    assert deeper[4] == equal[4] == in_time[4] == "does not hold"
    assert "+0.510 ± 0.007 at 100" in deeper[5]
    same = dict.fromkeys(LAYERS, 3.3)
    applies, deeper, equal, in_time = judged(DEPTH.claims, depth_rows(3.0, 3.0, same, 1.0))
    assert applies[4] == "not decided"
    assert deeper[4] == equal[4] == "holds"
    assert in_time[4] == "does not hold"
    assert "4.300 at 10" in in_time[3]


def rows_of(counts: dict[int, list[int | None]]) -> Rows:
    """A row for each minibatch, whose learning neither a warm-up nor a step size changes."""
    return Rows(
        {"case": minibatch(B), "cold": {"0.1": by_seed}, "warm": {"0.125": by_seed}}
        for B, by_seed in counts.items()
    )


def verdicts(counts: dict[int, list[int | None]]) -> list[str]:
    return [line[4] for line in judged(MINIBATCH.claims, rows_of(counts))]


def test_claims_of_minibatches():
    """A bound within what was tried, none, and nothing that came to the target."""
    curved: dict[int, list[int | None]] = {B: [1000 * (1 + (B // 64) ** 2)] * 3 for B in SIZES}
    curved[512] = [None] * 3
    assert verdicts(curved) == ["holds", "holds", "holds"]
    assert bound(curved) == 32
    assert verdicts({B: [1000, 1010, 990] for B in SIZES}) == ["does not hold", "holds", "holds"]
    assert verdicts({B: [None] * 3 for B in SIZES}) == ["not tried"] * 3


def test_one_seed_that_is_off_moves_no_bound():
    """The curve that is judged never falls: what comes down again was noise."""
    noisy: dict[int, list[int | None]] = {B: [1000, 1100, 1050] for B in SIZES}
    noisy[16] = [1000, 2900, 2600]  # twice the fewest, and larger minibatches are not
    noisy[512] = [None, None, 9000]  # most do not come to it
    assert bound(noisy) == 256
    assert fitted(noisy)[16] == pytest.approx(fitted(noisy)[256])
    assert 512 not in fitted(noisy)


def test_learning_that_needs_more_samples_is_not_alike():
    """Below the bound too: the trend counts, and the range."""
    rising = rows_of({B: [round(1000 * B**0.2), round(1020 * B**0.2)] for B in SIZES})
    _, followed, _ = judged(MINIBATCH.claims, rising)
    assert followed[4] == "does not hold"
    assert "B^(+0.20" in followed[3]
    steep = rows_of({B: [1000 * B] * 3 for B in SIZES})
    _, followed, warmed = judged(MINIBATCH.claims, steep)
    assert followed[3:5] == warmed[3:5] == ("alike from 4 to 4 alone", "does not hold")

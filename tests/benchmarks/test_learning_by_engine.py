"""Measurement learning: all contestants learn the same, and one that does not is found."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from rich.console import Console
from torch import nn

from benchmarks.cases import Effort, TrainedCase
from benchmarks.studies import trainer_models
from benchmarks.studies.learning_by_engine import LEARNING, measure_learning
from benchmarks.studies.trainer_models import config_of, curve_of
from elman.errors import InputError, VerifyError
from elman.train.loop.metrics import read_metrics
from elman.train.run.run import start

pytestmark = pytest.mark.usefixtures("two_classes")
LEAST = Effort(1e-9, 1, 1)
SMALL = TrainedCase(
    "small",
    LEARNING,
    "gru",
    *(12, 4, 8),
    contestants=("elman-c", "elman", "torch", "loop"),
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


def test_a_curve_is_the_trainers(tmp_path):
    """Step by step as a run of the trainer, noise and dropout included."""
    config = replace(config_of(SMALL), noise=0.1, dropout=0.2, validate_every=2)
    outcome = start(config, tmp_path, Console(quiet=True), comparing=False)
    rows = read_metrics(outcome.folder.metrics)
    curve = [(row.step, row.valid_loss) for row in rows if row.valid_loss is not None]
    assert curve_of(config, 2) == curve
    assert len(curve) == 3


def test_a_loop_takes_part():
    """What torch has no layer for is compared with a loop, with the same weights."""
    lem = replace(SMALL, cell="lem", contestants=("elman-c", "elman", "torch", "loop"))
    result = measure_learning(lem, LEAST)
    assert result["off"]["loop"] < 1e-5
    assert result["absent"] == {"torch": "torch.nn has no lem"}


def test_torch_has_one_head():
    """torch.nn's layers of equal size learn something else, and are timed all the same."""
    pixels = replace(SMALL, kind="pixels", heads=2)
    result = measure_learning(replace(pixels, contestants=("elman-c", "elman", "torch")), LEAST)
    assert result["off"].keys() == {"elman-c", "elman"}
    assert result["seconds"].keys() == {"elman-c", "elman", "torch"}


def zeroed(model):
    """Begin with other weights."""
    nn.init.zeros_(model.readout.weight)


def climbing(model):
    """Go up in one weight, from the same loss."""
    model.readout.weight.register_hook(torch.neg)


@pytest.mark.parametrize("spoil", [zeroed, climbing])
def test_another_learner_is_found(monkeypatch, spoil):
    """Another loss, at the first step or after an update, is no rounding."""
    build = trainer_models.model_of

    def spoilt(name, *rest):
        model = build(name, *rest)
        if name == "torch":
            spoil(model)
        return model

    monkeypatch.setattr(trainer_models, "model_of", spoilt)
    with pytest.raises(VerifyError, match="torch learns other than elman-c in float64"):
        measure_learning(SMALL, LEAST)


def test_sequences_of_another_length():
    """A case promises its length."""
    with pytest.raises(InputError, match=r"small: the sequences of .* have \[12, 12\] steps"):
        measure_learning(replace(SMALL, kind="pixels", T=13), LEAST)

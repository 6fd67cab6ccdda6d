"""A training step does what its configuration says: optimizer, momentum, learning rate."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from lightning_fabric import Fabric

from elman.train.loop.config import Config
from elman.train.loop.metrics import read_metrics
from elman.train.loop.objective import SQUARES
from elman.train.loop.optimizer import SCHEDULES, learning_rate
from elman.train.loop.stepper import make_stepper
from elman.train.loop.task import Batch
from runs import Scaled


@pytest.mark.parametrize("momentum, nesterov", [(0.0, False), (0.8, False), (0.8, True)])
def test_sgd_is_its_formula(momentum, nesterov):
    """v = momentum v + g; W -= lr v, or lr (g + momentum v); g has the decay, after clipping."""
    decay, clip = 0.1, 1.5
    config = Config(
        optimizer="sgd", momentum=momentum, nesterov=nesterov, weight_decay=decay, clip=clip
    )
    stepper = make_stepper(Fabric(accelerator="cpu", devices=1), Scaled(), config, SQUARES)
    x, y = torch.tensor([[1.0, 2.0], [3.0, -1.0]]), torch.tensor([[2.0, 0.0], [1.0, 1.0]])
    w, v = torch.eye(2), torch.zeros(2, 2)
    for lr in (0.1, 0.05, 0.2):
        loss, norm = stepper.train(Batch(x, y, resets_state=True), lr)
        error = x @ w - y
        g = x.T @ error / 2  # of the mean of four squares
        assert loss == pytest.approx(float(error.square().mean()))
        assert norm == pytest.approx(float(g.norm()), rel=1e-5)
        g = g * min(1.0, clip / float(g.norm())) + decay * w
        v = momentum * v + g
        w = w - lr * (g + momentum * v if nesterov else v)
        torch.testing.assert_close(stepper.plain.weight.detach(), w, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("where", ["loss", "gradient"])
def test_a_step_that_is_not_finite_changes_nothing(where):
    """Neither weights, nor what the optimizer remembers, nor the carried state."""

    class Carrying(Scaled):
        def forward(self, x, state=None):
            out, _ = super().forward(x)
            if where == "gradient":
                out = out + (self.weight.sum() * 0).sqrt()  # 0 · inf in the backward
            return out, x.sum()[None]

    config = Config(optimizer="sgd", momentum=0.9)
    stepper = make_stepper(Fabric(accelerator="cpu", devices=1), Carrying(), config, SQUARES)
    if where == "loss":
        good = torch.ones(2, 2)
        stepper.train(Batch(good, 2 * good, resets_state=True), 0.1)
    else:
        stepper.state = torch.ones(1)
    before = [stepper.plain.weight.clone(), stepper.state.clone()]
    remembered = str(stepper.optimizer.state_dict()["state"])
    bad = torch.full((2, 2), float("inf") if where == "loss" else 1.0)

    loss, norm = stepper.train(Batch(bad, torch.zeros(2, 2), resets_state=False), 0.1)

    assert not (math.isfinite(loss) and math.isfinite(norm))
    assert math.isfinite(loss) == (where == "gradient")
    assert torch.equal(before[0], stepper.plain.weight)
    assert torch.equal(before[1], stepper.state)
    assert str(stepper.optimizer.state_dict()["state"]) == remembered


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_the_learning_rate_is_the_schedules(small_config, train, schedule):
    """At each step that is written down."""
    config = dataclasses.replace(small_config, schedule=schedule, warmup=0.2, log_every=1)
    rows = read_metrics(train(config).folder.metrics)
    assert [row.lr for row in rows] == [
        learning_rate(step, 14, config.lr, 0.2, schedule) for step in range(14)
    ]

"""When two runs are equal; a model for a single step."""

from __future__ import annotations

import dataclasses

import torch
from torch import nn

from elman.train.loop.metrics import read_metrics
from elman.train.run import checkpoint
from elman.train.run.checkpoint import best_of
from elman.train.run.folder import RunFolder


def assert_equal_runs(left: RunFolder, right: RunFolder) -> None:
    """Every tensor of the last checkpoint and of the best, and every number of metrics.csv but
    times are equal."""
    runs = (left, right)
    ours, theirs = (checkpoint.load_latest(run.checkpoints)[0] for run in runs)
    assert ours.step == theirs.step
    assert ours.tensors.keys() == theirs.tensors.keys()
    for name, value in ours.tensors.items():
        assert torch.equal(value, theirs.tensors[name]), name
    bests = [best_of(run.checkpoints) for run in runs]
    assert [best.step for best in bests] == [run.read("result")["best_step"] for run in runs]
    assert bests[0].score == bests[1].score
    for name, value in bests[0].weights.items():
        assert torch.equal(value, bests[1].weights[name]), name
    rows, others = (read_metrics(run.metrics) for run in runs)
    same = [dataclasses.replace(row, items_per_s=0.0, train_seconds=0.0) for row in rows]
    assert same == [dataclasses.replace(row, items_per_s=0.0, train_seconds=0.0) for row in others]
    result, other = left.read("result"), right.read("result")
    for name in ("valid_loss", "valid_score", "baseline", "sample", "table", "shown", "steps"):
        assert result.get(name) == other.get(name), name


class Scaled(nn.Module):
    """Multiplies with a matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.eye(2))

    def forward(self, x, state=None):
        return x @ self.weight, None

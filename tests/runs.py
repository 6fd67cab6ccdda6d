"""Runs in processes of their own, and when two of them are equal."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import torch

import elman
from elman.train import checkpoint
from elman.train.folder import RunFolder
from elman.train.metrics import TIMES, read_metrics


def environment() -> dict[str, str]:
    """What a process needs that runs this very elman."""
    paths = [str(Path(elman.__path__[0]).parent), os.environ.get("PYTHONPATH", "")]
    return os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}


def assert_equal_runs(left: RunFolder, right: RunFolder) -> None:
    """Every tensor of the last checkpoint and every number of metrics.csv but times are equal."""
    ours, theirs = (checkpoint.load_latest(run.checkpoints)[0] for run in (left, right))
    assert ours.step == theirs.step
    assert ours.tensors.keys() == theirs.tensors.keys()
    for name, value in ours.tensors.items():
        assert torch.equal(value, theirs.tensors[name]), name
    rows, others = (read_metrics(run.metrics) for run in (left, right))
    same = [dataclasses.replace(row, **dict.fromkeys(TIMES, 0.0)) for row in rows]
    assert same == [dataclasses.replace(row, **dict.fromkeys(TIMES, 0.0)) for row in others]
    result, other = left.read("result"), right.read("result")
    for name in (
        "valid_loss",
        "valid_accuracy",
        "valid_r2",
        "baseline",
        "sample",
        "table",
        "shown",
        "steps",
    ):
        assert result.get(name) == other.get(name), name

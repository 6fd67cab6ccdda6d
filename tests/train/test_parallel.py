"""Two processes, one model: Fabric's launch from the command line, and a resume of it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import elman
from elman.train import checkpoint
from elman.train.metrics import read_metrics


def run(*words: str) -> None:
    """Run `elman train` in processes of its own."""
    paths = [str(Path(elman.__path__[0]).parent), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}
    command = [sys.executable, "-m", "elman", "train", *words]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stdout + ran.stderr


@pytest.mark.slow
@pytest.mark.skipif(not torch.distributed.is_available(), reason="torch without distributed")
def test_two_processes_train_and_resume(small_text, tmp_path):
    """Every process has its rows and its state; a resumed run equals the uninterrupted one."""
    sizes = "--hidden=8 --batch=8 --bptt=16 --steps=10 --checkpoint-every=4 --log-every=1"
    where = "--devices=2 --accelerator=cpu --engine=aten --threads=1 --dropout=0.2"
    run(f"--data={small_text}", f"--out={tmp_path}", *sizes.split(), *where.split())
    (whole,) = tmp_path.iterdir()
    resumed = shutil.copytree(whole, tmp_path / "resumed")
    (resumed / "result.json").unlink()
    shutil.rmtree(resumed / "checkpoints" / "step-000000010")

    run(f"--resume={resumed}")

    ours, theirs = (checkpoint.load_latest(run / "checkpoints")[0] for run in (resumed, whole))
    assert ours.tensors["carried.0"].shape[:3] == (2, 2, 4)  # processes, layers, rows
    for name, value in theirs.tensors.items():
        assert torch.equal(ours.tensors[name], value), name
    losses = [
        [row.train_loss for row in read_metrics(run / "metrics.csv")] for run in (resumed, whole)
    ]
    assert losses[0] == losses[1]
    assert len(losses[0]) == 10

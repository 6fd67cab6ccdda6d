"""Two processes, one model: Fabric's launch from the command line, and a resume of it."""

from __future__ import annotations

import os
import shutil
import signal
import time
from pathlib import Path

import pytest
import torch
from lightning_fabric import Fabric

from elman.errors import InputError, RunError
from elman.train.distributed.launch import agreed, check_place, noticing_loss
from elman.train.loop.config import Config
from elman.train.run import checkpoint
from elman.train.run.folder import RunFolder
from runs import assert_equal_runs
from scripts import PATIENCE_S, begin, finished
from workers import ELMAN, OPTIONS, cut_short, only_run


@pytest.mark.slow
@pytest.mark.skipif(not torch.distributed.is_available(), reason="torch without distributed")
def test_two_processes_train_and_resume(common):
    """Every process has its rows and its state; a resumed run equals the uninterrupted one."""
    options = ("--steps=12", "--dropout=0.1")
    whole = only_run(common(*options, processes=2))
    resumed = shutil.copytree(whole.path, whole.path.parent / "resumed")
    cut_short(RunFolder(resumed), 8)
    point, _ = checkpoint.load_latest(whole.checkpoints)
    assert point.tensors["carried.0"].shape[:3] == (2, 1, 4)  # processes, layers, rows

    finished(begin(*ELMAN, f"--resume={resumed}"))
    assert_equal_runs(RunFolder(resumed), whole)


def begun(folder: Path) -> bool:
    """Whether a checkpoint is of a later step than the first ones."""
    return int("".join(filter(str.isdigit, folder.name))) >= 10


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="finds child processes in /proc")
def test_a_killed_process_ends_the_others(small_text, tmp_path):
    """No hang: the first process says in words that the other one is gone, and how to go on."""
    options = (*OPTIONS, "--steps=1000000", "--devices=2")
    process = begin(*ELMAN, f"--data={small_text}", f"--out={tmp_path}", *options)
    try:
        deadline = time.monotonic() + PATIENCE_S
        while not any(map(begun, tmp_path.glob("*/checkpoints/step-*"))):
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.1)
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        assert len(children) == 1
        os.kill(int(children[0]), signal.SIGKILL)
        _, err = process.communicate(timeout=PATIENCE_S)
    finally:
        process.kill()

    (folder,) = tmp_path.iterdir()
    assert process.returncode != 0
    assert "another process of the run is gone" in err
    assert f"elman resume {folder}" in err
    assert "Traceback" not in err


def test_what_processes_agree_on(monkeypatch):
    """Several wishes are one message; each is anybody's; alone nothing is sent."""
    alone = Fabric(accelerator="cpu", devices=1)
    assert agreed(alone, True, False) == [True, False]
    sent = []

    def all_reduce(votes):  # another process wishes the second thing
        sent.append(votes.clone())
        votes += torch.tensor([0.0, 1.0, 0.0])

    class Two:
        """One of two processes."""

        world_size, device = 2, torch.device("cpu")

    monkeypatch.setattr(torch.distributed, "all_reduce", all_reduce)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
    assert agreed(Two(), True, False, False) == [True, True, False]
    assert len(sent) == 1


@pytest.mark.parametrize(
    "name, value, rule",
    [
        ("MASTER_PORT", "hello", "a number from 0 to 65535"),
        ("MASTER_PORT", "70000", "a number from 0 to 65535"),
        ("NODE_RANK", "2", "a number from 0 to 1"),
        ("NODE_RANK", "-1", "a number from 0 to 1"),
    ],
)
def test_a_place_that_there_is_not(monkeypatch, name, value, rule):
    """It is said at once, not after the time to wait for others; a single machine has no place."""
    monkeypatch.setenv(name, value)
    check_place(Config(nodes=1))
    with pytest.raises(InputError, match=f"{name} must be {rule}\n  said +{name}={value}"):
        check_place(Config(nodes=2))


def test_other_errors_pass():
    """Only a lost connection is told in words."""
    lost = RuntimeError("[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:5] Read error\nmore")
    with (
        pytest.raises(RunError, match=r"said  \[/pytorch.*Read error\n  hint  elman resume"),
        noticing_loss("elman resume FOLDER"),
    ):
        raise lost
    with pytest.raises(RuntimeError, match="out of memory"), noticing_loss(""):
        raise RuntimeError("out of memory")

"""Many processes of one run: torchrun, a worker killed, and what goes wrong."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from elman.train.run import checkpoint
from elman.train.run.folder import RunFolder
from forked import Forked
from runs import assert_equal_runs
from scripts import PATIENCE_S, begin, begin_anew, finished
from workers import (
    OPTIONS,
    RESUME,
    TRAIN,
    as_torchrun,
    cut_short,
    free_port,
    losses,
    only_run,
    torchrun,
)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not torch.distributed.is_available(), reason="torch without distributed"),
]

IN_PROC = pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="looks into /proc")
STEPS = "--steps=12"  # of runs that several tests look at


def test_any_number_of_workers_learns_alike(common):
    """Same global batch, same loss curve."""
    alone = losses(common(STEPS))
    assert len(alone) == 12
    assert losses(common(STEPS, processes=4)) == pytest.approx(alone, rel=1e-5)


def test_two_processes_train_and_resume(common):
    """Every process has its rows and its state; a resumed run equals the uninterrupted one."""
    options = ("--steps=12", "--dropout=0.1")
    whole = only_run(common(*options, processes=2))
    resumed = shutil.copytree(whole.path, whole.path.parent / "resumed")
    cut_short(RunFolder(resumed), 8)
    point, _ = checkpoint.load_latest(whole.checkpoints)
    assert point.tensors["carried.0"].shape[:3] == (2, 1, 4)  # processes, layers, rows

    finished(begin(*RESUME, str(resumed)))
    assert_equal_runs(RunFolder(resumed), whole)


def test_weights_that_are_averaged_every_few_steps(common):
    """Each process follows its own gradient in between: the first loss is that of averages in each
    step, the next one is not, all of them are near; a resumed run equals the uninterrupted one."""
    options = ("--steps=12", "--validate-every=6", "--average-every=4")
    whole = only_run(common(*options, processes=2))
    apart = losses(whole.path.parent)
    together = losses(common("--steps=12", "--validate-every=6", processes=2))
    assert apart[0] == pytest.approx(together[0], rel=1e-5)
    assert apart[1] != pytest.approx(together[1], rel=1e-5)
    assert apart == pytest.approx(together, rel=0.05)
    resumed = shutil.copytree(whole.path, whole.path.parent / "resumed")
    cut_short(RunFolder(resumed), 8)
    finished(begin(*RESUME, str(resumed)))
    assert_equal_runs(RunFolder(resumed), whole)
    cut_short(RunFolder(resumed), 8)
    finished(*as_torchrun(1, *RESUME, str(resumed)))  # one process has nobody to average with


def test_a_killed_process_ends_the_others(small_text, tmp_path):
    """No hang: the first process says in words that the other one is gone, and how to go on."""
    options = (f"--data={small_text}", f"--out={tmp_path}", *OPTIONS, "--steps=1000000")
    first, second = as_torchrun(2, *TRAIN, *options)
    try:
        wait_until(lambda: list(tmp_path.glob("*/checkpoints/step-*[1-9]?")), first)
        second.kill()
        err = finished(first, status=1)
    finally:
        first.kill()
        second.kill()

    (folder,) = tmp_path.iterdir()
    assert "another process of the run is gone" in err
    assert f"elman resume {folder}" in err
    assert "Traceback" not in err


@IN_PROC
def test_a_killed_worker_is_started_again(small_text, common, tmp_path):
    """torchrun starts it anew, and it goes on with the run that it was in: equal to a whole one."""
    options, killed = ("--steps=100", "--dropout=0.1"), tmp_path / "killed"
    process = torchrun(1, f"--data={small_text}", *OPTIONS, *options, f"--out={killed}")
    try:
        wait_until(lambda: list(killed.glob("*/checkpoints/step-*[1-9]*")), process)
        os.kill(*children(process), signal.SIGKILL)
        said = finished(process)
    finally:
        process.kill()
    assert "resumed at step" in said
    assert_equal_runs(only_run(killed), only_run(common(*options)))


def test_a_resume_by_fewer_workers(common):
    """The rows of the batch, and the states carried along them, are shared out anew."""
    parts = common(STEPS, processes=4)
    cut_short(only_run(parts), 8)
    said = finished(*as_torchrun(2, *RESUME, str(only_run(parts).path)))

    assert "4 processes then, 2 now" in said
    assert "resumed at step 8" in said
    assert losses(parts) == pytest.approx(losses(common(STEPS)), rel=1e-5)


def wait_until(there: Callable[[], object], process: Forked) -> None:
    """Wait for what a process does while it runs."""
    end = time.monotonic() + PATIENCE_S
    while not there():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end
        time.sleep(0.02)


def children(process: Forked) -> list[int]:
    """The processes that a process has started."""
    told = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text()
    return [int(word) for word in told.split()]


def pair(tmp_path: Path, *differing: tuple[str, ...]) -> list[Forked]:
    """Start processes of one run as on machines of their own, each with options of its own."""
    where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    return [
        begin(
            *(*TRAIN, *OPTIONS, "--steps=4", f"--nodes={len(differing)}", *words),
            f"--out={tmp_path / str(rank)}",
            NODE_RANK=str(rank),
            **where,
        )
        for rank, words in enumerate(differing)
    ]


def test_two_machines(small_text, tmp_path):
    """Without torchrun each machine starts the same command."""
    data = f"--data={small_text}"
    first, second = pair(tmp_path, (data,), (data,))

    finished(first, second)
    assert len(losses(tmp_path / "0")) == 4
    assert not (tmp_path / "1").exists()


def test_workers_that_differ(small_text, tmp_path):
    """Both say in what, and nothing is written."""
    other = tmp_path / "other.txt"
    other.write_text(small_text.read_text()[::-1])
    for process in pair(tmp_path, (f"--data={small_text}",), (f"--data={other}",)):
        said = finished(process, status=1)
        assert "the processes differ in data" in said
        assert "Traceback" not in said
    assert not (tmp_path / "0").exists()


@pytest.mark.parametrize("what", ["alone", "taken"])
def test_workers_that_do_not_meet(small_text, tmp_path, what):
    """A worker that never joins, and a port in use: one line, long before
    torch's own patience of half an hour ends."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        port = held.getsockname()[1]
        if what == "taken":
            held.listen()
        else:
            held.close()
        start = begin_anew if what == "alone" else begin
        process: Any = start(
            *(*TRAIN, *OPTIONS, f"--data={small_text}", f"--out={tmp_path}", "--nodes=2"),
            "--timeout=1",
            NODE_RANK="0",
            MASTER_ADDR="127.0.0.1",
            MASTER_PORT=str(port),
        )
        said = finished(process, status=1)

    assert "the processes of the run have not found one another" in said
    assert "Traceback" not in said
    if what == "alone":  # where torch's C++ is told to be quiet before it is imported
        assert "c10d::" not in said

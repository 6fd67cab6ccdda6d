"""Sequences that are cut in time over processes: all of them compute what one does."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch

import elman
from elman.errors import EngineError
from library_sizes import VECTORS
from scripts import TESTS, begin, finished
from workers import free_port

pytestmark = pytest.mark.skipif(
    not torch.distributed.is_available(), reason="torch without distributed"
)

PROCESSES = 3
EXACT = 1e-10  # two scans of float64, added up in another order
SOME = ("gru", "lru", "t_lstm")  # dense; affine, of two states; several inputs
NOT_COMPARED = ("zoneout_lstm_layernorm",)  # it draws
CUT = "time-sharded sequences"
REFUSED = {
    "engine aten": f"engine aten does not run {CUT}",
    "step": f"{CUT} have no single steps",
    "stream": f"{CUT} are no streams: each process calls the module itself",
    "strided": "inside shard_time T is a multiple of each stride, got 4",
    "second scan": f"{CUT} have no second derivatives",
    "engine c": f"engine c does not run {CUT}",
    "lengths": f"{CUT} have no lengths of their own",
    "checkpoint": f"{CUT} have no checkpoints",
    "transform": f"{CUT} go through no transform",
    "compiled": f"nothing; {CUT} are not compiled: they run as without torch.compile",
    "second": f"{CUT} have no second derivatives",
}


def run_processes(folder: Path, *names: str) -> list[dict[str, float | str]]:
    """What each process of some says of its cases, and of some cells."""
    script = str(TESTS / "engines" / "time_shards_script.py")
    meet = f"file://{folder}/meet"
    path = {"PYTHONPATH": ":".join([str(TESTS), str(TESTS.parent / "src")])}
    started = [
        begin("-W", "ignore", script, str(rank), str(PROCESSES), meet, *names, **path)
        for rank in range(PROCESSES)
    ]
    try:
        return [dict(json.loads(finished(one).splitlines()[-1])) for one in started]
    finally:
        for one in started:
            one.kill()


@pytest.mark.slow
@pytest.mark.parametrize(
    "names",
    [SOME, pytest.param([cell.name for cell in VECTORS], marks=pytest.mark.long)],
    ids=["some", "all"],
)
def test_processes_agree_with_one(tmp_path, names):
    """Outputs, last states and every gradient, in layers, directions and functions; in turn where
    no solver comes to an end; what is not possible is refused."""
    names = [name for name in names if name not in NOT_COMPARED]
    for said in run_processes(tmp_path, *names):
        assert {name: said.pop(name) for name in REFUSED} == REFUSED
        assert len(said) == 2 * len(names) + 13
        assert all(off < EXACT for off in said.values()), said


@pytest.mark.slow
def test_the_pages_code_runs():
    """Of two processes, of fewer steps."""
    page = (TESTS.parent / "docs" / "long_sequences.md").read_text("utf-8")
    (text,) = re.findall(r"^```python\n(# torchrun.*?)^```$", page, re.MULTILINE | re.DOTALL)
    text = text.replace("1_000_000", "60") + "\nassert weight.grad.isfinite().all()\n"
    meet = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2"}
    both = [begin("-W", "ignore", "-c", text, RANK=str(rank), **meet) for rank in range(2)]
    finished(*both)


def test_without_a_group():
    """A hint how to make one."""
    with pytest.raises(EngineError, match="no group of processes"), elman.shard_time():
        pass

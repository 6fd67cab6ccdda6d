"""Processes of one run choose alike, whatever each of them would have measured."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from scripts import run_script

pytestmark = pytest.mark.skipif(
    not torch.distributed.is_available(), reason="torch without distributed"
)

JOIN = """
import json, os
import torch, torch.distributed as dist
import elman
from elman.tuning import choose, ranks
rank = int(os.environ["RANK"])
dist.init_process_group("gloo", init_method=os.environ["MEET"], rank=rank, world_size=2)
"""
# Each process is told by its clock that another candidate is the fastest.
CHOOSE = (
    JOIN
    + """
calls = []
def benchmark(job, steps, batch, order, evidence):
    calls.append(job.name)
    for _ in range(2):  # as two processes before: torch's own layers need as many to win
        evidence.tries += 1
        for who in order:
            for _ in range(3):
                evidence.add(who, 1e-6 if (who == "aten") == rank else 1e-4, 0.0)
    return {}
choose._benchmark = benchmark
model = elman.GRU(8, 8, engine="auto")
for B in (4, 32):
    model(torch.randn(6, B, 8))[0].sum().backward()
chosen = {shown: [c.engine, c.schedule] for shown, c in model.runners["l0"].choices.items()}
dist.barrier()
print(json.dumps([chosen, len(calls)]))
"""
)
CLAIMED = (
    JOIN
    + """
ranks.WAIT_S = 1.0
def work():
    if rank == 0:
        raise ValueError("no compiler")
    return {"by": rank}
if rank == 1:
    dist.barrier()  # rank 0 has failed
try:
    print(json.dumps(ranks.once_for_all({"job": 1, "machine": rank}, work)))
except ValueError as error:
    print(json.dumps(str(error)))
if rank == 0:
    dist.barrier()
"""
)
SILENT = (
    JOIN
    + """
import warnings
ranks.WAIT_S = 0.2
if rank == 0:
    ranks.once_for_all({"job": 1}, lambda: dist.barrier() or dist.barrier() or 0)
else:
    dist.barrier()  # rank 0 is at work
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = ranks.once_for_all({"job": 1}, lambda: 1)
    dist.barrier()
    print(json.dumps([found, [str(one.message) for one in caught]]))
"""
)


def both(text: str, tmp_path: Path) -> list[str]:
    """What two processes print; each has caches of its own."""

    def one(rank: int) -> str:
        own = tmp_path / str(rank)
        own.mkdir()
        meet = f"file://{tmp_path}/meet"
        return run_script(text, own, RANK=str(rank), MEET=meet, ELMAN_CACHE=str(own))

    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(one, range(2)))


@pytest.mark.slow
def test_one_choice_for_all(tmp_path):
    """One process benchmarks each kind of call, and all run what it found."""
    (chosen, calls), (other, more) = map(json.loads, both(CHOOSE, tmp_path))

    assert chosen == other
    assert len(chosen) == 2
    assert calls + more == 2


def test_one_process_benchmarks_alone_without_a_group():
    """Nothing is shared where there is nobody."""
    from elman.tuning.ranks import once_for_all

    assert [once_for_all({"job": 1}, lambda found=found: found) for found in (1, 2)] == [1, 2]


@pytest.mark.slow
def test_who_fails_leaves_it_to_the_others(tmp_path):
    """An error is the process's own; facts of its machine do not make it another job."""
    first, second = both(CLAIMED, tmp_path)

    assert json.loads(first) == "no compiler"
    assert json.loads(second) == {"by": 1}


@pytest.mark.slow
def test_nobody_waits_for_ever(tmp_path):
    """After a while a process benchmarks by itself, and says so."""
    _, second = both(SILENT, tmp_path)

    found, said = json.loads(second)
    assert found == 1
    assert "which engine is fastest" in said[0]

"""Processes of one run choose alike, whatever each of them would have measured."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from elman import cells, compiler
from elman.tuning import decisions, together
from elman.tuning.allreduce import Interconnect
from elman.tuning.choose import Choice
from elman.tuning.decisions import once_for_all
from scripts import run_script
from specs import spec_of

pytestmark = pytest.mark.skipif(
    not torch.distributed.is_available(), reason="torch without distributed"
)

JOIN = """
import json, os
import torch, torch.distributed as dist
import elman
from elman.tuning import choose
from elman.tuning import decisions
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
decisions.WAIT_S = 100.0
def work():
    if rank == 0:
        raise ValueError("no compiler")
    return {"by": rank}
if rank == 1:
    dist.barrier()  # rank 0 has failed
try:
    print(json.dumps(decisions.once_for_all({"job": 1, "machine": rank}, work)))
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
decisions.WAIT_S = 0.2
if rank == 0:
    decisions.once_for_all({"job": 1}, lambda: dist.barrier() or dist.barrier() or 0)
else:
    dist.barrier()  # rank 0 is at work
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = decisions.once_for_all({"job": 1}, lambda: 1)
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


# Notes when a layer's backward runs, and when its gradients are with the other process. Layers that
# were measured to be faster at once, as noise may have it, would not be released.
RELEASE = (
    JOIN
    + """
from elman.engines.c.kernel import CKernel
from elman.nn.execute import group
group.sends_by_layer = lambda *call: True
torch.manual_seed(0)
plain, told = CKernel.backward, []
def backward(self, *args):
    told.append("backward")
    return plain(self, *args)
model = elman.GRU(8, 8, 3, engine="c")
whole = torch.nn.GRU(8, 8, 3)
whole.load_state_dict(model.state_dict())
parallel = torch.nn.parallel.DistributedDataParallel(model, bucket_cap_mb=1e-4)
x = torch.randn(2, 6, 4, 8)
for _ in range(2):  # torch orders its messages by the first step
    parallel.zero_grad()
    parallel(x[rank])[0].square().mean().backward()
for name, parameter in model.named_parameters():
    parameter.register_post_accumulate_grad_hook(lambda p, name=name: told.append(name[-2:]))
CKernel.backward = backward
parallel.zero_grad()
parallel(x[rank])[0].square().mean().backward()
whole(x.flatten(1, 1).transpose(0, 1).flatten(1, 2))[0].square().mean().backward()
close = [torch.allclose(p.grad, q.grad, atol=1e-6) for p, q in zip(*map(
    torch.nn.Module.parameters, (model, whole)))]
print(json.dumps([told, all(close)]))
"""
)


@pytest.mark.slow
def test_gradients_of_a_layer_are_sent_before_the_backward_below(tmp_path):
    """Between the backwards of two layers, those of the upper one are there."""
    for told, close in map(json.loads, both(RELEASE, tmp_path)):
        order = [name for k, name in enumerate(told) if not k or told[k - 1] != name]
        assert order == ["backward", "l2", "backward", "l1", "backward", "l0"]
        assert close


def test_at_once_unless_more_time_is_hidden(monkeypatch):
    """By what was benchmarked, the size of the gradients and the link."""
    wants = frozenset(weight.name for weight in cells.gru.weights)
    job = compiler.job(cells.gru, spec_of({"I": 1024, "H": 1024}.items(), wants=wants))
    size = together.gradient_bytes(job)
    assert size == 4 * (2 * 3 * 1024 * 1024 + 2 * 3 * 1024)

    def apart(schedule, workers, bytes_per_s, **medians_s):
        monkeypatch.setattr(decisions, "workers", lambda: workers)
        monkeypatch.setattr(together, "interconnect", lambda: Interconnect(0.0, bytes_per_s))
        choice = Choice("c", schedule, None, "benchmarked", medians_s)
        return together.sends_by_layer(choice, [job] * 4, 100)

    assert not apart("apart", 1, 1e9)
    assert apart("apart", 2, 1e9)
    assert not apart("together", 2, 1e9)  # pinned: not benchmarked here
    times = {"together": 1e-3, "apart": 1.2e-3}
    assert not apart("together", 2, 400 * size, **times)  # 10 ms to be sent, 20 ms lost
    assert apart("together", 2, 40 * size, **times)  # 100 ms, of which 75 can be hidden
    with decisions.sending_after_backward():
        assert not apart("together", 2, 40 * size, **times)
        assert not apart("apart", 2, 1e9)
    assert apart("apart", 2, 1e9)

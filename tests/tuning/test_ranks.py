"""Processes of one run choose alike, whatever each of them would have measured."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

from elman import cells, compiler
from elman.tuning import decisions, together
from elman.tuning.decisions import once_for_all
from scripts import run_script
from specs import spec_of

pytestmark = pytest.mark.skipif(
    not torch.distributed.is_available(), reason="torch without distributed"
)

# Two processes do this together, one part after another; each prints what it saw, by part.
TOGETHER = """
import json, os, warnings
import torch, torch.distributed as dist
import elman
from elman.engines.c.run.kernel import CKernel
from elman.tuning import choose, decisions
rank, seen = int(os.environ["RANK"]), {}
dist.init_process_group("gloo", init_method=os.environ["MEET"], rank=rank, world_size=2)

# choices: each process is told by its clock that another candidate is the fastest
calls = []
def benchmark(job, steps, batch, order, evidence):
    calls.append(job.name)
    for _ in range(2):  # as two processes before: torch's own layers need as many to win
        evidence.tries += 1
        for name in order:
            for _ in range(3):
                evidence.add(name, 1e-6 if (name == "aten") == rank else 1e-4, 0.0)
    return {}
choose._benchmark = benchmark
model = elman.GRU(8, 8, engine="auto")
for B in (4, 32):
    model(torch.randn(6, B, 8))[0].sum().backward()
seen["choices"] = {name: [c.engine, c.schedule] for name, c in model.runners["l0"].choices.items()}
seen["benchmarks"] = len(calls)
dist.barrier()

# failure: of the process that benchmarks
decisions.WAIT_S = 100.0
def work():
    if rank == 0:
        raise ValueError("no compiler")
    return {"by": rank}
if rank == 1:
    dist.barrier()  # rank 0 has failed
try:
    seen["failure"] = decisions.once_for_all({"job": 1, "machine": rank}, work)
except ValueError as error:
    seen["failure"] = str(error)
if rank == 0:
    dist.barrier()

# silence: of a process that does not come to an end
decisions.WAIT_S = 0.2
if rank == 0:
    decisions.once_for_all({"job": 2}, lambda: dist.barrier() or dist.barrier() or 0)
else:
    dist.barrier()  # rank 0 is at work
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        seen["silence"] = decisions.once_for_all({"job": 2}, lambda: 1)
    seen["warnings"] = [str(warning.message) for warning in caught]
    dist.barrier()

# order: when a layer's backward runs, and when its gradients are with the other process
torch.manual_seed(0)
plain, order = CKernel.backward, []
def backward(self, *args):
    order.append("backward")
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
    parameter.register_post_accumulate_grad_hook(lambda p, name=name: order.append(name[-2:]))
CKernel.backward = backward
parallel.zero_grad()
parallel(x[rank])[0].square().mean().backward()
whole(x.flatten(1, 1).transpose(0, 1).flatten(1, 2))[0].square().mean().backward()
seen["order"] = order
seen["close"] = all(torch.allclose(p.grad, q.grad, atol=1e-6) for p, q in zip(*map(
    torch.nn.Module.parameters, (model, whole))))
print(json.dumps(seen))
"""


@pytest.fixture(scope="module")
def seen(tmp_path_factory) -> list[dict[str, Any]]:
    """What two processes saw; each has caches of its own."""
    folder = tmp_path_factory.mktemp("ranks")

    def run(rank: int) -> dict[str, Any]:
        cache = folder / str(rank)
        cache.mkdir()
        meet = f"file://{folder}/meet"
        text = run_script(TOGETHER, cache, RANK=str(rank), MEET=meet, ELMAN_CACHE=str(cache))
        return json.loads(text)

    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(run, range(2)))


@pytest.mark.slow
def test_one_choice_for_all(seen):
    """One process benchmarks each kind of call, and all run what it found."""
    assert seen[0]["choices"] == seen[1]["choices"]
    assert len(seen[0]["choices"]) == 2
    assert seen[0]["benchmarks"] + seen[1]["benchmarks"] == 2


def test_one_process_benchmarks_alone_without_a_group():
    """Nothing is shared where there is nobody."""
    assert [once_for_all({"job": 1}, lambda found=found: found) for found in (1, 2)] == [1, 2]


@pytest.mark.slow
def test_who_fails_leaves_it_to_the_others(seen):
    """An error is the process's own; facts of its machine do not make it another job."""
    assert [one["failure"] for one in seen] == ["no compiler", {"by": 1}]


@pytest.mark.slow
def test_nobody_waits_for_ever(seen):
    """After a while a process benchmarks by itself, and says so."""
    assert seen[1]["silence"] == 1
    assert "which engine is fastest" in seen[1]["warnings"][0]


@pytest.mark.slow
def test_gradients_of_a_layer_are_sent_before_the_backward_below(seen):
    """Between the backwards of two layers, those of the upper one are there."""
    for one in seen:
        told = one["order"]
        order = [name for k, name in enumerate(told) if not k or told[k - 1] != name]
        assert order == ["backward", "l2", "backward", "l1", "backward", "l0"]
        assert one["close"]


def test_a_layer_is_a_node_where_gradients_are_sent(monkeypatch):
    """By several processes, unless they send after the backward; not of a forward alone."""
    wants = frozenset(weight.name for weight in cells.gru.weights)
    jobs = [compiler.job(cells.gru, spec_of({"I": 4, "H": 4}.items(), wants=wants))] * 2
    assert not together.sends_by_layer(jobs)
    monkeypatch.setattr(decisions, "workers", lambda: 2)
    assert together.sends_by_layer(jobs)
    with decisions.sending_after_backward():
        assert not together.sends_by_layer(jobs)
    alone = compiler.job(cells.gru, spec_of({"I": 4, "H": 4}.items(), wants=frozenset()))
    assert not together.sends_by_layer([alone])

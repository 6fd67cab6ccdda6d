"""Wrapped by DistributedDataParallel and FSDP2: the losses of torch's layers, on elman's engine."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import elman
from helpers import need_engine
from scripts import TESTS, begin, environment, finished

RANKS = 2


class Model(nn.Module):
    """A tagger: an embedding, two bidirectional layers, a head."""

    def __init__(self, where: Any) -> None:
        super().__init__()
        self.embedding = nn.Embedding(10, 8)
        self.layers = where.GRU(8, 16, 2, bidirectional=True)
        self.head = nn.Linear(32, 10)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.layers(self.embedding(ids))[0])


def wrapped(model: nn.Module, how: str) -> nn.Module:
    if how == "ddp":
        return DistributedDataParallel(model)
    mesh = init_device_mesh("cpu", (RANKS,))
    fully_shard(model.layers, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def losses(where: Any, how: str, rank: int) -> tuple[list[float], list[str]]:
    """Three steps of training; and the engines that ran."""
    torch.manual_seed(0)
    model = Model(where)
    net = wrapped(model, how)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    found = []
    for step in range(3):
        source = torch.Generator().manual_seed(10 * step + rank)
        ids = torch.randint(0, 10, (7, 3), generator=source)
        optimizer.zero_grad()
        loss = net(ids).logsumexp(-1).mean()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        found.append(loss.item())
    if where is nn:
        return found, []
    return found, [c.engine for r in model.layers.stack.runners for c in r.choices.values()]


def worker(rank: int, folder: str) -> None:
    """One of the processes."""
    torch.set_num_threads(1)
    store = distributed.FileStore(f"{folder}/store", RANKS)
    distributed.init_process_group("gloo", store=store, rank=rank, world_size=RANKS)
    with elman.using(engine="c"):
        found = {
            how: [losses(where, how, rank) for where in (nn, elman)] for how in ("ddp", "fsdp")
        }
    Path(folder, f"{rank}.json").write_text(json.dumps(found))
    distributed.barrier()
    distributed.destroy_process_group()


@pytest.mark.slow
def test_wrapped_modules(tmp_path):
    """Two processes, three steps, both wrappers."""
    need_engine("c")
    path = os.pathsep.join([str(TESTS), environment()["PYTHONPATH"]])
    text = f"from nn.test_distributed import worker; worker(%d, {str(tmp_path)!r})"
    finished(*(begin("-c", text % rank, PYTHONPATH=path) for rank in range(RANKS)))
    for rank in range(RANKS):
        for want, got in json.loads(Path(tmp_path, f"{rank}.json").read_text()).values():
            assert got[0] == pytest.approx(want[0], rel=1e-5)
            assert set(got[1]) == {"c"}

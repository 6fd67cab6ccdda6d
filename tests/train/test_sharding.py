"""Weights, gradients and moments divided among processes: the same training, the same files."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import nn

import elman
from elman.errors import InputError
from elman.train.distributed.gradients import divided_as, parts, shard, whole
from elman.train.loop.config import Config
from elman.train.run import checkpoint
from elman.train.run.folder import RunFolder
from elman.train.tasks.text.model import LanguageModel
from scripts import finished
from workers import as_torchrun, cut_short, losses, only_run

pytestmark = pytest.mark.skipif(not dist.is_available(), reason="torch without distributed")


def model(tie: bool = False) -> LanguageModel:
    """A small language model with weights that are always the same."""
    torch.manual_seed(0)
    return LanguageModel(7, 5, 5, elman.GRU(5, 5, num_layers=2, engine="aten"), tie=tie)


@pytest.fixture
def mesh(tmp_path):
    """A group of this one process."""
    dist.init_process_group("gloo", f"file://{tmp_path}/store", world_size=1, rank=0)
    yield dist.device_mesh.init_device_mesh("cpu", (1,), mesh_dim_names=("data_parallel",))
    dist.destroy_process_group()


def test_the_parts_of_a_model():
    """Each child is one, unless it shares weights with another one."""
    free, tied = model(), model(tie=True)
    assert parts(free) == [free.embedding, free.recurrent, free.readout]
    assert parts(tied) == [tied.recurrent]


@pytest.mark.parametrize("tie", [False, True])
def test_a_divided_model(mesh, tie):
    """Loss, logits without a forward, gradients and an update are those of the plain one."""
    plain, divided = model(tie), shard(model(tie), mesh)
    ids = torch.tensor([[0, 1], [2, 3], [4, 6]])
    for net in (plain, divided):
        optimizer = torch.optim.AdamW(net.parameters(), lr=0.1)
        loss, _ = net(ids, None, ids.roll(1))
        loss.backward()
        optimizer.step()
    assert all(type(one).__name__ == "DTensor" for one in divided.parameters())
    moments = optimizer.state_dict()["state"][0]["exp_avg"]
    assert type(moments).__name__ == "DTensor"
    for ours, theirs in zip(divided.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(whole(ours), theirs)
        torch.testing.assert_close(whole(ours.grad), theirs.grad)
    with torch.no_grad():
        torch.testing.assert_close(divided(ids)[0], plain(ids)[0])


def test_whole_and_divided(mesh):
    """A tensor is divided as one of its shape is, and put together again; others are left."""
    layer = shard(nn.Linear(3, 4), mesh)
    value = torch.arange(12.0).reshape(4, 3)
    held = divided_as(value, layer.weight)
    assert type(held).__name__ == "DTensor"
    assert torch.equal(whole(held), value)
    assert divided_as(value, layer.bias) is value
    assert divided_as(value, torch.zeros(4, 3)) is value
    assert whole(value) is value


def test_what_cannot_be_divided(mesh):
    """A parameter that is a number; copies that are averaged now and then."""
    net = nn.Linear(2, 2)
    net.scale = nn.Parameter(torch.tensor(1.0))
    with pytest.raises(InputError, match=r"scale is a number, which cannot be divided\n.*--shard"):
        shard(net, mesh)
    with pytest.raises(InputError, match="shard divides one model, sync_every averages many"):
        Config(shard=True, sync_every=4, devices=2)


@pytest.mark.slow
def test_two_processes_share_a_model(common):
    """The loss curve of copies; files like theirs, from which as many, or one, go on."""
    copies, out = (
        common("--tie", "--steps=12"),
        common("--tie", "--steps=12", "--shard", processes=2),
    )
    learned = losses(out)
    assert learned == pytest.approx(losses(copies), rel=1e-5)
    run = only_run(out)
    assert shapes(run) == shapes(only_run(copies))

    for processes, exact in ((2, True), (1, False)):
        cut_short(run, 8)
        said = finished(*as_torchrun(processes, f"--resume={run.path}"))
        assert "resumed at step 8" in said
        assert losses(out) == (learned if exact else pytest.approx(learned, rel=1e-5))


def shapes(run: RunFolder) -> dict[str, tuple[torch.dtype, torch.Size]]:
    """Of what a run keeps of a model, whoever trained it."""
    point, _ = checkpoint.load_latest(run.checkpoints)
    kept = {key: value for key, value in point.tensors.items() if key[:5] in ("model", "optim")}
    return {key: (value.dtype, value.shape) for key, value in kept.items()}

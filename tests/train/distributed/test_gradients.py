"""Gradients, models and numbers of several processes: averaged in few messages, or divided."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from lightning_fabric import Fabric
from lightning_fabric.strategies.ddp import DDPStrategy
from torch import nn

import elman
from elman.errors import InputError
from elman.train.distributed.gradients import (
    Workers,
    average_gradients,
    divide_as,
    gather,
    parts,
    shard,
)
from elman.train.loop import stepper
from elman.train.loop.config import Config
from elman.train.loop.objective import SQUARES
from elman.train.loop.stepper import make_stepper
from elman.train.loop.task import Batch
from elman.train.run import checkpoint
from elman.train.run.folder import RunFolder
from elman.train.tasks.text.model import LanguageModel
from runs import Scaled
from scripts import finished
from workers import RESUME, as_torchrun, cut_short, losses, only_run

pytestmark = pytest.mark.skipif(not dist.is_available(), reason="torch without distributed")


@pytest.fixture
def sent(monkeypatch):
    """The messages of one of two processes; the other one sends zeros."""
    messages: list[int] = []
    monkeypatch.setattr(dist, "all_reduce", lambda one: messages.append(one.numel()))
    monkeypatch.setattr(dist, "get_world_size", lambda: 2)
    return messages


def test_gradients_and_numbers_are_one_message_per_type(sent):
    """Halves here, as the other process has none; a weight that no process reads has none."""
    net = nn.ModuleDict({"a": nn.Linear(3, 2), "b": nn.Linear(2, 1).double()})
    unread = nn.Parameter(torch.ones(4))
    loss = net["b"](net["a"](torch.ones(1, 3)).double()).sum()
    loss.backward()
    want = [p.grad / 2 for p in net.parameters()]
    numbers = torch.tensor([3.0, 0.0, 1.0])
    average_gradients([*net.parameters(), unread], numbers)
    assert sent == [3 + 5 + 8 + 4, 3]
    assert numbers.tolist() == [1.5, 0.0, 0.5]
    assert unread.grad is None
    for parameter, half in zip(net.parameters(), want, strict=True):
        torch.testing.assert_close(parameter.grad, half)


@pytest.mark.parametrize("here", [True, False])
@pytest.mark.parametrize("elsewhere", [True, False])
def test_weight_decay_moves_what_has_a_gradient(monkeypatch, here, elsewhere):
    """In any process: then those of others count as zero. In none: weight and moments stay."""
    other = torch.tensor([0.5, float(elsewhere), *([4.0, 2.0] if elsewhere else [0.0, 0.0])])
    monkeypatch.setattr(dist, "all_reduce", lambda values: values.add_(other))
    monkeypatch.setattr(dist, "get_world_size", lambda: 2)
    weight = nn.Parameter(torch.ones(2))
    weight.grad = torch.tensor([2.0, 2.0]) if here else None
    optimizer = torch.optim.AdamW([weight], lr=0.1, weight_decay=0.5)
    numbers = torch.tensor([1.5])
    average_gradients([weight], numbers)
    optimizer.step()

    assert numbers.tolist() == [1.0]
    if not (here or elsewhere):
        assert weight.grad is None
        assert weight.tolist() == [1.0, 1.0]
        assert not optimizer.state
        return
    want = torch.tensor([2.0, 2.0]) * here + torch.tensor([4.0, 2.0]) * elsewhere
    torch.testing.assert_close(weight.grad, want / 2)
    assert (weight < 1).all()


def test_a_step_on_shared_cores_sends_one_message(sent, monkeypatch):
    """Gradient, loss and votes; anybody's vote counts, a loss is the mean."""
    made = make_stepper(Fabric(accelerator="cpu", devices=1), Scaled(), Config(), SQUARES)
    made.averaging = True
    batch = Batch(torch.ones(1, 2), torch.zeros(1, 2), resets_state=True)
    loss, norm = made.train(batch, 0.1, cast_votes=lambda: (False, True))
    assert sent == [1 + stepper.MOST_VOTES + 1 + 4]
    assert loss == pytest.approx(0.5)
    assert norm == pytest.approx(1.0)
    assert made.votes == [False, True, False]


def test_gradients_are_averaged_on_shared_cores(monkeypatch):
    """Never by a process alone."""
    fabric = Fabric(accelerator="cpu", devices=1)
    assert not make_stepper(fabric, Scaled(), Config(), SQUARES).averaging
    monkeypatch.setattr(stepper, "averages_after_backward", lambda fabric: True)
    assert make_stepper(fabric, Scaled(), Config(), SQUARES).averaging


def test_where_models_are_wrapped(monkeypatch):
    """By DistributedDataParallel where it hides messages: on devices, and among machines."""
    sent = []
    monkeypatch.setattr(dist, "broadcast", lambda one, src: sent.append(one.numel()))
    monkeypatch.setattr(DDPStrategy, "setup_module", lambda self, module: f"wrapped {module}")
    for device, nodes, wraps in (("cpu", 1, False), ("cpu", 2, True), ("meta", 1, True)):
        workers = Workers(parallel_devices=[torch.device(device)])
        workers.num_nodes = nodes
        monkeypatch.setattr(Workers, "root_device", torch.device(device))
        module = Scaled()
        assert (workers.setup_module(module) is module) != wraps
    assert sent == [4]


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
        torch.testing.assert_close(gather(ours), theirs)
        torch.testing.assert_close(gather(ours.grad), theirs.grad)
    with torch.no_grad():
        torch.testing.assert_close(divided(ids)[0], plain(ids)[0])


def test_whole_and_divided(mesh):
    """A tensor is divided as one of its shape is, and put together again; others are left."""
    layer = shard(nn.Linear(3, 4), mesh)
    value = torch.arange(12.0).reshape(4, 3)
    held = divide_as(value, layer.weight)
    assert type(held).__name__ == "DTensor"
    assert torch.equal(gather(held), value)
    assert divide_as(value, layer.bias) is value
    assert divide_as(value, torch.zeros(4, 3)) is value
    assert gather(value) is value


def test_what_cannot_be_divided(mesh):
    """A parameter that is a number."""
    net = nn.Linear(2, 2)
    net.scale = nn.Parameter(torch.tensor(1.0))
    with pytest.raises(InputError, match=r"scale is a number, which cannot be divided\n.*--shard"):
        shard(net, mesh)


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
        said = finished(*as_torchrun(processes, *RESUME, str(run.path)))
        assert "resumed at step 8" in said
        assert losses(out) == (learned if exact else pytest.approx(learned, rel=1e-5))


def shapes(run: RunFolder) -> dict[str, tuple[torch.dtype, torch.Size]]:
    """Of what a run keeps of a model, whoever trained it."""
    point, _ = checkpoint.load_latest(run.checkpoints)
    kept = {key: value for key, value in point.tensors.items() if key[:5] in ("model", "optim")}
    return {key: (value.dtype, value.shape) for key, value in kept.items()}

"""Means over processes: what is sent in how many messages, and what comes back."""

from __future__ import annotations

import pytest
import torch
from lightning_fabric import Fabric
from lightning_fabric.strategies.ddp import DDPStrategy
from torch import nn

from elman.train.distributed.gradients import Workers, average_gradients, average_models
from elman.train.loop import stepper
from elman.train.loop.config import Config
from elman.train.loop.objective import SQUARES
from elman.train.loop.stepper import make_stepper
from elman.train.loop.task import Batch

pytestmark = pytest.mark.skipif(
    not torch.distributed.is_available(), reason="torch without distributed"
)


@pytest.fixture
def sent(monkeypatch):
    """The messages of one of two processes; the other one sends zeros."""
    messages: list[int] = []
    monkeypatch.setattr(torch.distributed, "all_reduce", lambda one: messages.append(one.numel()))
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
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
    monkeypatch.setattr(torch.distributed, "all_reduce", lambda values: values.add_(other))
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
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


def test_models_and_moments_are_averaged_apart_from_each_other(sent):
    """One message; every parameter keeps memory of its own, as safetensors wants it."""
    net = nn.Linear(3, 2)
    net(torch.ones(1, 3)).sum().backward()
    optimizer = torch.optim.SGD(net.parameters(), 0.1, momentum=0.5)
    optimizer.step()
    want = [p.detach() / 2 for p in net.parameters()]
    places = [p.data_ptr() for p in net.parameters()]
    average_models(net, optimizer)
    assert sent == [8 + 8]
    assert [p.data_ptr() for p in net.parameters()] == places
    for parameter, half in zip(net.parameters(), want, strict=True):
        torch.testing.assert_close(parameter.detach(), half)
        torch.testing.assert_close(
            optimizer.state[parameter]["momentum_buffer"], torch.full_like(half, 0.5)
        )


class Scaled(nn.Module):
    """Multiplies with a matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.eye(2))

    def forward(self, x, state=None):
        return x @ self.weight, None


def test_a_step_on_shared_cores_sends_one_message(sent, monkeypatch):
    """Gradient, loss and wishes; anybody's wish is a wish, a loss is the mean."""
    made = make_stepper(Fabric(accelerator="cpu", devices=1), Scaled(), Config(), SQUARES)
    made.gathers = True
    batch = Batch(torch.ones(1, 2), torch.zeros(1, 2), begins=True)
    loss, norm = made.train(batch, 0.1, wishes=lambda: (False, True))
    assert sent == [1 + stepper.WISHES + 1 + 4]
    assert loss == pytest.approx(0.5)
    assert norm == pytest.approx(1.0)
    assert made.wished == [False, True, False]


@pytest.mark.parametrize(("every", "gathers"), [(1, True), (4, False)])
def test_gradients_are_gathered_on_shared_cores(monkeypatch, every, gathers):
    """Unless processes train apart; never by a process alone."""
    fabric, config = Fabric(accelerator="cpu", devices=1), Config(sync_every=every)
    assert not make_stepper(fabric, Scaled(), config, SQUARES).gathers
    monkeypatch.setattr(stepper, "at_once", lambda fabric: True)
    assert make_stepper(fabric, Scaled(), config, SQUARES).gathers == gathers


def test_where_models_are_wrapped(monkeypatch):
    """By DistributedDataParallel where it hides messages: on devices, and among machines."""
    sent = []
    monkeypatch.setattr(torch.distributed, "broadcast", lambda one, src: sent.append(one.numel()))
    monkeypatch.setattr(DDPStrategy, "setup_module", lambda self, module: f"wrapped {module}")
    for device, nodes, wraps in (("cpu", 1, False), ("cpu", 2, True), ("meta", 1, True)):
        workers = Workers(parallel_devices=[torch.device(device)])
        workers.num_nodes = nodes
        monkeypatch.setattr(Workers, "root_device", torch.device(device))
        module = Scaled()
        assert (workers.setup_module(module) is module) != wraps
    assert sent == [4]

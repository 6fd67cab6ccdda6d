"""Means over processes: what is sent in how many messages, and what comes back."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch
from lightning_fabric import Fabric
from lightning_fabric.strategies.ddp import DDPStrategy
from torch import nn

from elman.train import averaging, stepper
from elman.train.averaging import Gradients, average
from elman.train.config import Config
from elman.train.objective import SQUARES
from elman.train.shared import SharedMemory
from elman.train.stepper import make_stepper
from elman.train.task import Batch
from elman.train.workers import Workers

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
    want = [one.grad / 2 for one in net.parameters()]
    gradients = Gradients([*net.parameters(), unread])
    numbers = gradients.average((3.0, 0.0, 1.0), torch.float32)
    assert sent == [3 + 5 + 8 + 4, 3]
    assert numbers == [1.5, 0.0, 0.5]
    assert unread.grad is None
    for one, half in zip(net.parameters(), want, strict=True):
        torch.testing.assert_close(one.grad, half)


@pytest.mark.parametrize("here", [True, False])
@pytest.mark.parametrize("elsewhere", [True, False])
def test_weight_decay_moves_what_has_a_gradient(monkeypatch, here, elsewhere):
    """In any process: then those of others count as zero. In none: weight and moments stay."""
    other = torch.tensor([0.5, float(elsewhere), *([4.0, 2.0] if elsewhere else [0.0, 0.0])])
    monkeypatch.setattr(torch.distributed, "all_reduce", lambda one: one.add_(other))
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
    weight = nn.Parameter(torch.ones(2))
    weight.grad = torch.tensor([2.0, 2.0]) if here else None
    optimizer = torch.optim.AdamW([weight], lr=0.1, weight_decay=0.5)
    numbers = Gradients([weight]).average((1.5,), torch.float32)
    optimizer.step()

    assert numbers == [1.0]
    if not (here or elsewhere):
        assert weight.grad is None
        assert weight.tolist() == [1.0, 1.0]
        assert not optimizer.state
        return
    want = torch.tensor([2.0, 2.0]) * here + torch.tensor([4.0, 2.0]) * elsewhere
    torch.testing.assert_close(weight.grad, want / 2)
    assert (weight < 1).all()


@pytest.mark.parametrize("most", [1e-3, 0.5, 1e3])
def test_means_are_clipped_as_torch_does(sent, most):
    """By the norm over all types, what is averaged beside them left out; so in each step."""
    net = nn.ModuleDict({"a": nn.Linear(3, 2), "b": nn.Linear(2, 1).double()})
    gradients = Gradients(net.parameters())
    for _ in range(3):
        net.zero_grad()
        net["b"](net["a"](torch.randn(4, 3)).double()).square().sum().backward()
        want = [nn.Parameter(torch.empty_like(one)) for one in net.parameters()]
        for one, copy in zip(net.parameters(), want, strict=True):
            copy.grad = one.grad / 2
        norm = torch.nn.utils.clip_grad_norm_(want, most)
        assert gradients.average((1e6,), torch.float64) == [5e5]
        assert gradients.clip(most) == pytest.approx(norm.item(), rel=1e-6)
        for one, copy in zip(net.parameters(), want, strict=True):
            torch.testing.assert_close(one.grad, copy.grad)


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_a_norm_that_is_not_finite_is_told(sent, value):
    """Whichever vector holds it."""
    weights = [nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2, dtype=torch.float64))]
    for broken in range(2):
        for k, weight in enumerate(weights):
            weight.grad = torch.full_like(weight, value if k == broken else 1.0)
        gradients = Gradients(weights)
        gradients.average((), torch.float32)
        assert not math.isfinite(gradients.clip(1.0))


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
    made.gathered = Gradients(made.plain.parameters())
    batch = Batch(torch.ones(1, 2), torch.zeros(1, 2), begins=True)
    loss, norm = made.train(batch, 0.1, wishes=lambda: (False, True))
    assert sent == [1 + stepper.WISHES + 1 + 4]
    assert loss == pytest.approx(0.5)
    assert norm == pytest.approx(1.0)
    assert made.wished == [False, True, False]


@pytest.mark.parametrize(("every", "gathers"), [(1, True), (4, False)])
def test_who_shares_memory(monkeypatch, every, gathers):
    """Processes on shared cores, whether they average gradients or models; no others."""
    fabric, config = Fabric(accelerator="cpu", devices=1), Config(sync_every=every)
    alone = make_stepper(fabric, Scaled(), config, SQUARES)
    monkeypatch.setattr(stepper, "at_once", lambda fabric: True)
    shares = make_stepper(fabric, Scaled(), config, SQUARES)
    assert (alone.memory, alone.gathered) == (None, None)
    assert isinstance(shares.memory, SharedMemory)
    assert (shares.gathered is not None) == gathers
    given = []

    def mean_of(parts, memory, out=None):
        given.append(memory)
        return torch.cat([part.flatten() for part in parts], out=out)

    monkeypatch.setattr(averaging, "mean_of", mean_of)
    monkeypatch.setattr(stepper, "average", lambda *arguments: given.append(arguments[-1]))
    shares.train(Batch(torch.ones(1, 2), torch.zeros(1, 2), begins=True), 0.1)
    assert given == [shares.memory]


def test_gradients_and_models_go_through_the_memory(monkeypatch):
    """Sums are asked of it; where it has none they are messages."""
    asked: list[int] = []

    class Alike(SharedMemory):
        """Of processes that have the same values."""

        def mean(self, parts, out=None):
            asked.append(sum(part.numel() for part in parts))
            return torch.cat([part.flatten() for part in parts], out=out)

    net, memory = nn.Linear(3, 2), Alike()
    net(torch.ones(1, 3)).sum().backward()
    want = [one.grad.clone() for one in net.parameters()]
    assert Gradients(net.parameters(), memory).average((3.0,), torch.float32) == [3.0]
    assert [one.grad.tolist() for one in net.parameters()] == [one.tolist() for one in want]
    optimizer = torch.optim.SGD(net.parameters(), 0.1, momentum=0.5)
    optimizer.step()
    fabric = SimpleNamespace(world_size=2)
    average(fabric, net, optimizer, memory)
    assert asked == [1 + 2 + 8, 8 + 8]  # with who has a gradient; weights, and momenta


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

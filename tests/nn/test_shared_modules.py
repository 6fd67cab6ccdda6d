"""Modules whose weights processes share: padded batches in each, and in workers of a loader."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch import multiprocessing as processes
from torch.utils.data import DataLoader, Dataset

import elman
from helpers import assert_close

LENGTHS = torch.tensor([6, 2, 5, 1])


def gradients(net: Any, x: Tensor) -> list[Tensor]:
    """The output of a padded batch, and the gradients of all weights."""
    out, _ = net(x, lengths=LENGTHS)
    return [out.detach(), *torch.autograd.grad(out.sin().sum(), list(net.parameters()))]


def _work(net: Any, x: Tensor, answers: Any) -> None:
    torch.set_num_threads(1)  # torch cannot have more in a fork of a process that had some
    answers.put([value.tolist() for value in gradients(net, x)])
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    for _ in range(20):
        optimizer.zero_grad()
        (net(x, lengths=LENGTHS)[0] - 0.3).square().mean().backward()
        optimizer.step()


class Outputs(Dataset):
    """What a module makes of a batch, computed by the loader's workers."""

    def __init__(self, net: Any, x: Tensor) -> None:
        self.net, self.x = net, x

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Tensor:
        with torch.no_grad():
            return self.net(self.x, lengths=LENGTHS)[0]


@pytest.mark.parametrize(
    "used",
    [
        pytest.param(False, id="new", marks=pytest.mark.long),
        pytest.param(True, id="used", marks=pytest.mark.slow),
    ],
)
def test_hogwild_and_loaders(used):
    """Two forks begin with the weights that both then train; a loader's workers see the result."""
    torch.manual_seed(0)
    net: Any = elman.LSTM(3, 4, 2, bidirectional=True, batch_first=True).share_memory()
    x = torch.randn(4, 6, 3)
    with elman.using(engine="reference"):
        want = gradients(net, x)
        before = (net(x, lengths=LENGTHS)[0] - 0.3).square().mean()
    if used:
        gradients(net, x)
    context = processes.get_context("fork")
    answers = context.SimpleQueue()
    # one after the other answers with weights that the first has begun to train: it answers first
    workers = [context.Process(target=_work, args=(net, x, answers)) for _ in range(2)]
    workers[0].start()
    for got, value in zip(answers.get(), want, strict=True):
        assert_close(torch.tensor(got), value)
    workers[1].start()
    answers.get()
    for worker in workers:
        worker.join(60)
        assert worker.exitcode == 0
    out = net(x, lengths=LENGTHS)[0].detach()
    assert (out - 0.3).square().mean() < before
    for batch in DataLoader(Outputs(net, x), batch_size=2, num_workers=2):
        for made in batch:
            assert_close(made, out)

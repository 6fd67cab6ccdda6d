"""Drop-ins for which torch's own layer is the fastest."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import elman
from elman.nn.execute import layer
from elman.tuning.choose import choose


@pytest.fixture(autouse=True)
def torchs_is_chosen(monkeypatch):
    def chosen(job, steps, batch, engine="auto", **options):
        return choose(job, steps, batch, "aten" if engine == "auto" else engine, **options)

    monkeypatch.setattr(layer, "choose", chosen)


@pytest.mark.parametrize("layers, directions", [(1, 1), (2, 1), (2, 2)])
@pytest.mark.parametrize("kind", ["RNN", "GRU", "LSTM"])
def test_calls_are_torchs_own(kind, layers, directions):
    torch.manual_seed(0)
    theirs = getattr(nn, kind)(3, 5, layers, bidirectional=directions == 2, batch_first=True)
    ours = elman.accelerate(
        getattr(nn, kind)(3, 5, layers, bidirectional=directions == 2, batch_first=True)
    )
    ours.load_state_dict(theirs.state_dict())
    x = torch.randn(2, 4, 3)
    for _ in range(3):
        results = []
        for net in (theirs, ours):
            net.zero_grad()
            given = x.clone().requires_grad_()
            out, last = net(given)
            (out.sum() + (last[0] if kind == "LSTM" else last).square().sum()).backward()
            grads = {name: p.grad for name, p in net.named_parameters()}
            results.append({"out": out, "x": given.grad, **grads})
        for name, value in results[0].items():
            torch.testing.assert_close(results[1][name], value)
    plans = [plan for _, plan in ours.runtime.plans._plans.values()]
    assert [plan.is_torchs for plan in plans] == [True]


def test_options_that_torch_lacks_stay_ours():
    net = elman.GRU(3, 3, 2, residual=True)
    x = torch.randn(4, 2, 3)
    first = net(x)[0]
    torch.testing.assert_close(net(x)[0], first)
    assert not torch.allclose(first, nn.GRU.forward(net, x)[0])

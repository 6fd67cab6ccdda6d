"""``elman.tune``: engines are timed for an input, for a layer and for each layer of a model."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import elman
from elman.errors import InputError
from helpers import need_engine


class Tagger(nn.Module):
    """Two recurrent layers, one of them called by keyword."""

    def __init__(self) -> None:
        super().__init__()
        self.below = elman.GRU(5, 7)
        self.above = elman.LSTM(7, 6, bidirectional=True)

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        return self.above(self.below(x)[0], lengths=lengths)[0]


@pytest.fixture
def x() -> Tensor:
    need_engine("c")
    return torch.randn(6, 3, 5)


def test_a_layer(x):
    """The winner is what runs; the time of each candidate is known, the reason of each refusal."""
    net = elman.GRU(5, 7)
    tuned = elman.tune(net, x)
    (winner,) = [each for each in tuned.candidates if each.chosen]
    assert winner.layer == "l0"
    assert all(each.refusal or each.seconds for each in tuned.candidates)
    assert {"c:batch", "aten"} <= {each.name for each in tuned.candidates}
    assert winner.name in str(tuned)
    net(x)[0].sum().backward()
    (record,) = elman.nn.choices(net)["l0"].values()
    assert winner.name.partition(":")[0] == record["engine"]


def test_layers_of_a_model(x):
    """With the inputs that they have in a call; names say where they are."""
    model = Tagger()
    tuned = elman.tune(model, x)
    assert [each.layer for each in tuned.candidates if each.chosen] == ["l0", "l0", "l0_reverse"]
    text = str(tuned)
    assert text.startswith("below: l0 (float32 on cpu, T = 6, B = 3)")
    assert "above: l0_reverse" in text
    assert not model.below._forward_pre_hooks
    assert "T = 4, B = 3" in str(elman.tune(model.below, x[:4]))
    lengths = torch.tensor([6, 2, 1])
    assert "asked for by name" in str(elman.tune(model, x, lengths=lengths))


def test_again(x):
    """Choices of earlier calls, in this process and on disk, are benchmarked anew."""
    net = elman.GRU(5, 7)
    elman.tune(net, x)
    before = net.runners["l0"]
    assert "remembered" in str(elman.tune(elman.GRU(5, 7), x))
    elman.tune(net, x, again=True)
    assert net.runners["l0"] is not before
    net(x)[0].sum().backward()


def test_no_layer(x):
    """What is missing is said, and what to do."""
    with pytest.raises(InputError, match=r"(?s)no recurrent layer.*accelerate"):
        elman.tune(nn.Linear(5, 7), x)
    with pytest.raises(InputError, match="example input"):
        elman.tune(elman.GRU(5, 7), None)

"""Chunks of a stream are the sequence, whatever their lengths."""

from __future__ import annotations

import doctest

import pytest
import torch
from torch.nn.utils.rnn import pack_sequence

import elman
from elman import cells
from elman.errors import InputError, ShapeError
from elman.nn.modules import stream
from helpers import assert_same


def test_resets():
    """All samples, to zeros or to what was given; nothing has come yet."""
    module = elman.LSTM(5, 7, num_layers=2).eval()
    x, begin = torch.randn(4, 3, 5), (torch.randn(2, 3, 7), torch.randn(2, 3, 7))
    for start in (None, begin):
        stream = elman.Stream(module, start)
        whole = stream(x)
        stream.reset()
        assert torch.equal(stream(x), whole)
    fresh = elman.Stream(module)
    fresh.reset([1])
    assert fresh.state is None


@pytest.mark.parametrize("engine", ["auto", "reference"])
def test_outputs_are_the_callers(engine):
    """Changing an output in place, as audio is processed, changes nothing that follows."""
    module = elman.RNN(5, 7, engine=engine).eval()
    x = torch.randn(8, 3, 5)
    stream = elman.Stream(module)
    stream(x[:4]).zero_()
    assert_same("out", stream(x[4:]), module(x)[0][4:], torch.float32, 8)


def test_a_state_is_kept_and_given_back():
    """To go on from where a stream was."""
    module = elman.GRU(5, 7).eval()
    x = torch.randn(8, 3, 5)
    stream = elman.Stream(module)
    stream(x[:4])
    other = elman.Stream(module)
    other.state = stream.state
    assert torch.equal(stream(x[4:]), other(x[4:]))


def test_what_has_no_stream():
    """Two directions, other modules, packed chunks, samples of none, another batch."""
    with pytest.raises(InputError, match="needs the whole sequence"):
        elman.Stream(elman.GRU(5, 7, bidirectional=True))
    with pytest.raises(InputError, match="takes a recurrent module, not Linear"):
        elman.Stream(torch.nn.Linear(5, 7))
    stream = elman.Stream(elman.Recurrent(cells.mgu, 5, 7))
    with pytest.raises(InputError, match="are tensors, not packed"):
        stream(pack_sequence([torch.randn(3, 5)]))
    stream(torch.randn(4, 5))
    with pytest.raises(InputError, match="has no samples"):
        stream.reset([0])
    stream.reset()
    stream(torch.randn(4, 3, 5))
    with pytest.raises(ShapeError, match=r"state h of mgu must be \[1, 2, 7\]"):
        stream(torch.randn(4, 2, 5))


@pytest.mark.parametrize(
    ("samples", "told"),
    [
        ([3], "there is no sample 3 among 3"),
        (torch.tensor([0, -4]), "there is no sample -4 among 3"),
        (7, "there is no sample 7 among 3"),
        ([True, False], r"mask \[3\] of bool, not bool \[2\]"),
        (torch.ones(4, dtype=torch.uint8), r"mask \[3\] of bool, not uint8 \[4\]"),
        (torch.ones(3, 1, dtype=torch.bool), r"not bool \[3, 1\]"),
        (torch.ones(3), r"not float32 \[3\]"),
        ([[0], [1]], r"not int64 \[2, 1\]"),
        (True, r"not bool \[\]"),
        ("all", "not str"),
        ({1}, "not set"),
    ],
)
def test_samples_that_are_none(samples, told):
    """Are refused with what would be right, and the state stays."""
    stream = elman.Stream(elman.LSTM(5, 7))
    stream(torch.randn(2, 3, 5))
    kept = stream.state
    with pytest.raises(InputError, match=rf"samples to reset must be (.|\n)*{told}(.|\n)*hint"):
        stream.reset(samples)
    assert stream.state is kept


@pytest.mark.parametrize(
    ("samples", "which"),
    [
        ([], []),
        (torch.zeros(3, dtype=torch.bool), []),
        (1, [1]),
        ([-1, 0], [0, 2]),
        (torch.tensor([1, 0, 1], dtype=torch.uint8), [0, 2]),
        (torch.tensor([1], dtype=torch.int32), [1]),
        (range(2), [0, 1]),
    ],
)
def test_samples_in_every_form(samples, which):
    """Numbers, from the end too, and masks, also of none."""
    stream = elman.Stream(elman.GRU(5, 7))
    stream(torch.randn(2, 3, 5))
    stream.reset(samples)
    assert [k for k in range(3) if not stream.state[:, k].any()] == which


def test_examples_of_the_docstring():
    """As they are printed."""
    failed, tried = doctest.testmod(stream, extraglobs={"elman": elman})
    assert tried > 5
    assert not failed


@pytest.mark.parametrize("batch", [1, 3])
def test_changed_weights_are_seen(batch):
    """Also changes that torch does not count: an average of weights is written through data."""
    module = elman.GRU(5, 7)
    x = torch.randn(batch, 5)
    with torch.no_grad():
        before, _ = module.step(x)
        for weight in module.parameters():
            weight.data.mul_(0.5)
        after, _ = module.step(x)
        want, _ = module(x[None])
    assert not torch.allclose(before, after)
    torch.testing.assert_close(after, want[0])


def test_what_cannot_be_stepped():
    """Two directions, an axis too many, no tensor."""
    with pytest.raises(InputError, match="needs the whole sequence"):
        elman.GRU(5, 7, bidirectional=True).step(torch.randn(3, 5))
    with pytest.raises(InputError, match="the axis of time is left out"):
        elman.GRU(5, 7).step(torch.randn(1, 3, 5))
    with pytest.raises(InputError, match="x must be a tensor"):
        elman.Recurrent(cells.mgu, 5, 7).step("now")
    with pytest.raises(InputError, match=r"hint  torch.as_tensor\(x\)"):
        elman.GRU(5, 7).step(torch.randn(3, 5).numpy())

"""``mask=``: steps that do not count leave all states as they are, in every form of a call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn.utils.rnn import pack_padded_sequence

import elman
import elman.nn
from elman import cells
from elman.errors import EngineError, InputError, ShapeError
from helpers import need_engine
from kinds import deterministic


@pytest.mark.parametrize("engine", ["c", "reference"])
def test_all_or_nothing(engine):
    """All steps: bit for bit the call without a mask. None: what was given, and nothing learned."""
    need_engine(engine)
    net = elman.LSTM(5, 4, 2, engine=engine)
    x = torch.randn(6, 3, 5, requires_grad=True)
    state = tuple(torch.randn(2, 3, 4, requires_grad=True) for _ in range(2))
    found = []
    with deterministic():  # else layers run at once where that was measured as faster
        for call in ({}, {"mask": torch.ones(6, 3)}):
            out, last = net(x, state, **call)
            loss = out.sin().sum() + last[1].sum()
            found.append([out, *last, *torch.autograd.grad(loss, [x, *state, *net.parameters()])])
    for plain, masked in zip(*found, strict=True):
        assert torch.equal(plain, masked)

    nothing = torch.full_like(x, torch.inf).requires_grad_()
    out, last = net(nothing, state, mask=torch.zeros(6, 3))
    assert torch.equal(out, state[0][1].expand(6, 3, 4))
    assert all(torch.equal(a, b) for a, b in zip(last, state))
    (out.sum() + last[1].sum()).backward()
    assert torch.equal(state[0].grad, torch.tensor([0.0, 6.0]).view(2, 1, 1).expand(2, 3, 4))
    assert torch.equal(state[1].grad, torch.ones(2, 3, 4))
    assert not any(value.grad.any() for value in (nothing, *net.parameters()))


BAD: dict[str, tuple[Callable[[], dict[str, Any]], type[Exception], str]] = {
    "no tensor": (
        lambda: {"mask": [True]},
        InputError,
        r"mask must be a tensor, one flag per step, got list\n  hint  torch.as_tensor\(mask\)$",
    ),
    "other sizes": (
        lambda: {"mask": torch.zeros(3, 4)},
        ShapeError,
        r"mask must be \[T, B\] = \[4, 3\], got \[3, 4\]\n  hint  mask.T$",
    ),
    "a column": (
        lambda: {"mask": torch.zeros(4, 3, 1)},
        ShapeError,
        r"got \[4, 3, 1\]\n  hint  mask.squeeze\(-1\)$",
    ),
    "elsewhere": (
        lambda: {"mask": torch.zeros(4, 3, device="meta")},
        InputError,
        r"mask is on meta, but x is on cpu\n  hint  mask.to\('cpu'\)$",
    ),
    "complex": (
        lambda: {"mask": torch.zeros(4, 3, dtype=torch.complex64)},
        InputError,
        "mask must be bool or real numbers, got torch.complex64",
    ),
    "sparse": (lambda: {"mask": torch.zeros(4, 3).to_sparse()}, InputError, "mask is torch.sparse"),
    "no mask": (
        lambda: {"masked_output": "zeros"},
        InputError,
        "masked_output='zeros' has no effect without mask=",
    ),
    "no such output": (
        lambda: {"mask": torch.zeros(4, 3), "masked_output": "last"},
        InputError,
        "masked_output must be 'held' or 'zeros', got 'last'",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_mistakes(name):
    """Said with what it must be, by every module."""
    make, error, text = BAD[name]
    for net in (elman.GRU(5, 2), elman.Recurrent(cells.mgu, 5, 2)):
        with pytest.raises(error, match=text):
            net(torch.zeros(4, 3, 5), **make())


def test_mistakes_elsewhere():
    """Of packed rows, of a step, of a constructor, and where torch's own layer would run."""
    net = elman.GRU(5, 2)
    rows = pack_padded_sequence(torch.zeros(4, 3, 5), [4, 2, 1])
    with pytest.raises(InputError, match="mask is packed as x is"):
        net(rows, mask=torch.zeros(4, 3))
    with pytest.raises(ShapeError, match=r"mask must be \[3\], one flag per sample, got \[4\]"):
        net.step(torch.zeros(3, 5), mask=torch.zeros(4))
    with pytest.raises(InputError, match="mask is an argument of each call"):
        elman.Recurrent(cells.mgu, 5, 2, mask=torch.zeros(4, 3))
    with pytest.raises(EngineError, match="cannot run this GRU with mask: "):
        elman.GRU(5, 2, engine="aten")(torch.zeros(4, 3, 5), mask=torch.zeros(4, 3))

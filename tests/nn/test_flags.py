"""``reset=`` and ``mask=``: what flags of each step keep apart, and what they must be."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.utils.rnn import pack_padded_sequence

import elman
from elman import cells
from elman.errors import EngineError, InputError, ShapeError
from helpers import need_engine
from kinds import deterministic

F64 = torch.float64


@pytest.mark.parametrize("to", ["zeros", "initial"])
def test_nothing_leaks(to):
    """NaN and infinities of one episode never reach the next, nor its gradients."""
    need_engine("c")
    net = elman.GRU(5, 5, engine="c", dtype=F64)
    x = torch.randn(6, 2, 5, dtype=F64)
    x[1, 0] = float("nan")
    x.requires_grad_()
    flags = torch.zeros(6, 2)
    flags[3] = 1
    out, _ = net(x, reset=flags, reset_to=to)
    assert out[1:3, 0].isnan().all()
    assert out[3:].isfinite().all()
    out[3:].sum().backward()
    assert x.grad[3:].isfinite().all()
    assert not x.grad[:3, 1].count_nonzero()


@pytest.mark.parametrize("engine", ["c", "reference"])
def test_all_or_nothing(engine):
    """A mask of all steps: bit for bit the call without one. Of none: what was given, and nothing
    learned."""
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


@pytest.mark.parametrize("options", [{}, {"heads": 2}, {"residual": True, "num_layers": 2}])
def test_autocast(options):
    """Where no engine has autocast's type, what torch cannot do is computed in the weights', with
    products of autocast's where there are some."""
    net = elman.GRU(4, 4, precision="bf16", **options)
    x, flags = torch.randn(5, 3, 4), torch.rand(5, 3) < 0.3
    want, last = net(x, reset=flags)
    net.precision = None
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out, h = net(x, reset=flags)
        if options:
            assert net(x)[0].dtype == torch.bfloat16
    assert out.dtype == h.dtype == torch.bfloat16
    torch.testing.assert_close(out, want.bfloat16())
    torch.testing.assert_close(h, last.bfloat16())


X, FLAGS = torch.zeros(4, 3, 5), torch.zeros(4, 3)
BAD: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {  # NAME is reset or mask
    "no tensor": (
        lambda: [True],
        InputError,
        r"NAME must be a tensor, one flag per step, got list\n  hint  torch.as_tensor\(NAME\)$",
    ),
    "an array": (FLAGS.numpy, InputError, r"got ndarray\n  hint  torch.as_tensor\(NAME\)"),
    "packed": (
        lambda: pack_padded_sequence(FLAGS, [4, 4, 4]), InputError, "NAME must be a tensor"
    ),
    "other sizes": (
        FLAGS.t, ShapeError, r"NAME must be \[T, B\] = \[4, 3\], got \[3, 4\]\n  hint  NAME.T$"
    ),
    "a column": (
        lambda: FLAGS.unsqueeze(-1), ShapeError, r"got \[4, 3, 1\]\n  hint  NAME.squeeze\(-1\)$"
    ),
    "elsewhere": (
        lambda: FLAGS.to("meta"),
        InputError,
        r"NAME is on meta, but x is on cpu\n  hint  NAME.to\('cpu'\)$",
    ),
    "complex": (FLAGS.cfloat, InputError, "NAME must be bool or real numbers, got torch.complex64"),
    "sparse": (FLAGS.to_sparse, InputError, "NAME is torch.sparse"),
}  # fmt: skip
BAD_CALLS: list[tuple[dict[str, Any], str]] = [
    ({"masked_output": "zeros"}, "masked_output='zeros' has no effect without mask="),
    ({"mask": FLAGS, "masked_output": "last"}, "must be 'held' or 'zeros', got 'last'"),
    ({"reset_to": "zeros"}, "reset_to='zeros' has no effect without reset="),
    ({"reset": FLAGS, "reset_to": "nothing"}, "reset_to must be 'zeros' or 'initial'"),
]


@pytest.mark.parametrize("option", ["reset", "mask"])
@pytest.mark.parametrize("name", BAD)
def test_flags_that_do_not_fit(name, option):
    """Said with what they must be, by every module."""
    make, error, text = BAD[name]
    for net in (elman.GRU(5, 2), elman.Recurrent(cells.mgu, 5, 2)):
        with pytest.raises(error, match=text.replace("NAME", option)):
            net(X, **{option: make()})


@pytest.mark.parametrize(("call", "text"), BAD_CALLS)
def test_calls_that_make_no_sense(call, text):
    for net in (elman.GRU(5, 2), elman.Recurrent(cells.mgu, 5, 2)):
        with pytest.raises(InputError, match=text):
            net(X, **call)


@pytest.mark.parametrize("option", ["reset", "mask"])
def test_mistakes_elsewhere(option):
    """Of packed rows, of a step, of a constructor, and where torch's own layer would run."""

    def given(value: Any) -> dict[str, Any]:
        return {option: value}

    for net in (elman.GRU(5, 2), elman.Recurrent(cells.mgu, 5, 2)):
        rows = pack_padded_sequence(X, [4, 2, 1])
        with pytest.raises(InputError, match=f"{option} is packed as x is"):
            net(rows, **given(FLAGS))
        with pytest.raises(ShapeError, match="other lengths"):
            net(rows, **given(pack_padded_sequence(FLAGS, [4, 3, 1])))
    for flags in ([True, False, True], 1):
        with pytest.raises(InputError, match=f"{option} must be a tensor, one flag per sample"):
            elman.GRU(5, 2).step(X[0], **given(flags))
    wrong: list[tuple[Tensor, Tensor, str]] = [
        (X[0], torch.zeros(4), r"\[3\], one flag per sample, got \[4\]"),
        (X[0, 0], torch.zeros(1), r"\[\], one flag per sample, got \[1\]"),
    ]
    for x, flags, text in wrong:
        for net in (elman.GRU(5, 2), elman.GRU(5, 2, batch_first=True)):
            with pytest.raises(ShapeError, match=rf"{option} must be {text}"):
                net.step(x, **given(flags))
    with pytest.raises(InputError, match=f"{option} is an argument of each call"):
        elman.Recurrent(cells.mgu, 5, 2, **given(FLAGS))
    with pytest.raises(EngineError, match=f"cannot run this GRU with {option}: "):
        elman.GRU(5, 2, engine="aten")(X, **given(FLAGS))

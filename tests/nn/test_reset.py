"""``reset=``: every call with resets gives what its episodes give one by one, in every form."""

from __future__ import annotations

import pytest
import torch
from torch.nn.utils.rnn import pack_padded_sequence

import elman
import elman.nn
from elman import cells
from elman.errors import EngineError, InputError, ShapeError
from helpers import need_engine

TO = ("zeros", "initial")
F64 = torch.float64


def mask_of(T: int, B: int, seed: int = 0, share: float = 0.3) -> torch.Tensor:
    """Random resets; the second sample (if there is one) has none, the last one has all."""
    mask = torch.rand(T, B, generator=torch.Generator().manual_seed(seed)) < share
    mask[:, 1:2] = False
    mask[:, -1] = B > 2
    return mask


@pytest.mark.parametrize("to", TO)
def test_nothing_leaks(to):
    """NaN and infinities of one episode never reach the next, nor its gradients."""
    need_engine("c")
    net = elman.GRU(5, 5, engine="c", dtype=F64)
    x = torch.randn(6, 2, 5, dtype=F64)
    x[1, 0] = float("nan")
    x.requires_grad_()
    mask = torch.zeros(6, 2)
    mask[3] = 1
    out, _ = net(x, reset=mask, reset_to=to)
    assert out[1:3, 0].isnan().all()
    assert out[3:].isfinite().all()
    out[3:].sum().backward()
    assert x.grad[3:].isfinite().all()
    assert not x.grad[:3, 1].count_nonzero()


BAD = {
    "no tensor": (
        lambda: [True],
        InputError,
        "reset must be a tensor, one flag per step, got list",
    ),
    "other sizes": (
        lambda: torch.zeros(3, 4),
        ShapeError,
        r"reset must be \[T, B\] = \[4, 3\], got \[3, 4\]\n  hint  reset.T$",
    ),
    "a column": (
        lambda: torch.zeros(4, 3, 1),
        ShapeError,
        r"got \[4, 3, 1\]\n  hint  reset.squeeze\(-1\)$",
    ),
    "an array": (
        lambda: torch.zeros(4, 3).numpy(),
        InputError,
        r"got ndarray\n  hint  torch.as_tensor\(reset\)",
    ),
    "a packed one": (
        lambda: pack_padded_sequence(torch.zeros(4, 3), [4, 4, 4]),
        InputError,
        "reset must be a tensor",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_masks(name):
    """Said with what it must be, by every module."""
    make, error, text = BAD[name]
    for net in (elman.GRU(5, 2), elman.Recurrent(cells.mgu, 5, 2)):
        with pytest.raises(error, match=text):
            net(torch.zeros(4, 3, 5), reset=make())
        rows = pack_padded_sequence(torch.zeros(4, 3, 5), [4, 2, 1])
        with pytest.raises(InputError, match="packed as x is"):
            net(rows, reset=torch.zeros(4, 3))
        with pytest.raises(ShapeError, match="other lengths"):
            net(rows, reset=pack_padded_sequence(torch.zeros(4, 3), [4, 3, 1]))
        with pytest.raises(InputError, match="'zeros' or 'initial'"):
            net(torch.zeros(4, 3, 5), reset=torch.zeros(4, 3), reset_to="nothing")
    for flags in ([True, False, True], 1):
        with pytest.raises(InputError, match="reset must be a tensor, one flag per sample"):
            elman.GRU(5, 2).step(torch.zeros(3, 5), reset=flags)
    for net in (elman.GRU(5, 2), elman.GRU(5, 2, batch_first=True)):
        with pytest.raises(
            ShapeError, match=r"reset must be \[3\], one flag per sample, got \[4\]"
        ):
            net.step(torch.zeros(3, 5), reset=torch.zeros(4))
        with pytest.raises(ShapeError, match=r"reset must be \[\], one flag per sample, got \[1\]"):
            net.step(torch.zeros(5), reset=torch.zeros(1))


def test_torchs_own_layer_has_none():
    """Where torch's layer would run, a reset is refused, never forgotten."""
    x, mask = torch.zeros(4, 3, 5), torch.zeros(4, 3)
    with pytest.raises(EngineError, match="cannot run this GRU with reset: "):
        elman.GRU(5, 2, engine="aten")(x, reset=mask)


@pytest.mark.parametrize(
    "options", [{}, {"heads": 2}, {"residual": True, "num_layers": 2}], ids=str
)
def test_autocast(options):
    """Where no engine has autocast's type, what torch cannot do is computed in the weights'."""
    net = elman.GRU(4, 4, **options)
    x, mask = torch.randn(5, 3, 4), mask_of(5, 3)
    want, last = net(x, reset=mask)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out, h = net(x, reset=mask)
        if options:
            assert net(x)[0].dtype == torch.bfloat16
    assert out.dtype == h.dtype == torch.bfloat16
    torch.testing.assert_close(out, want.bfloat16())
    torch.testing.assert_close(h, last.bfloat16())

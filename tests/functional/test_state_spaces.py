"""The scans of Mamba and Mamba-2 against loops over independent steps."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F  # noqa: N812  # torch's own habit

from benchmarks.peers.matrix_steps import STEPS
from elman.errors import InputError, ShapeError
from elman.functional import mamba2_scan, selective_scan

F64 = torch.float64


def normal(*shape: int, seed: int = 0) -> Tensor:
    source = torch.Generator().manual_seed(sum(shape) + seed)
    return torch.randn(*shape, generator=source, dtype=F64).requires_grad_()


def rates(*shape: int) -> Tensor:
    return (-normal(*shape).detach().abs() - 0.1).requires_grad_()


def loop(name: str, inputs: list[Tensor], static: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """Outputs [B, T, ..] and the last state of inputs [B, T, ..]."""
    rows = []
    for t in range(inputs[0].shape[1]):
        y, (state,) = STEPS[name](tuple(x[:, t] for x in inputs), (static,), (state,))
        rows.append(y)
    return torch.stack(rows, 1), state


def step_size(dt: Tensor, bias: Tensor | None, positive: bool) -> Tensor:
    dt = dt if bias is None else dt + bias
    return F.softplus(dt) if positive else dt


def assert_alike(got: tuple[Tensor, ...], want: tuple[Tensor, ...], leaves: list[Tensor]) -> None:
    """The same results, and gradients of every leaf."""
    assert [x.shape for x in got] == [x.shape for x in want]
    assert all(torch.allclose(a, b) for a, b in zip(got, want, strict=True))
    gradients = [
        torch.autograd.grad([x.sin().sum() for x in results], leaves) for results in (got, want)
    ]
    assert all(torch.allclose(a, b) for a, b in zip(*gradients, strict=True))


@given(
    count=st.integers(1, 3),
    steps=st.integers(1, 9),
    heads=st.sampled_from(((1, 1), (2, 1), (4, 2))),
    size=st.sampled_from((1, 7)),
    further=st.booleans(),
    limit=st.sampled_from(((0.0, float("inf")), (0.2, 0.9))),
)
def test_mamba2(count, steps, heads, size, further, limit) -> None:
    """Groups of heads, with and without bias, skip, gate and initial state."""
    (H, G), N = heads, 5
    x, dt, A = normal(count, steps, H, size), normal(count, steps, H, seed=1), rates(H)
    B, C = normal(count, steps, G, N, seed=2), normal(count, steps, G, N, seed=3)
    leaves = [x, dt, A, B, C]
    names = ("D", "dt_bias", "z", "initial_states")
    shapes = ((H,), (H,), (count, steps, H, size), (count, H, size, N))
    more = (
        {key: normal(*s, seed=4) for key, s in zip(names, shapes, strict=True)} if further else {}
    )
    out, last = mamba2_scan(
        *leaves, chunk_size=64, dt_softplus=True, dt_limit=limit, return_final_states=True, **more
    )
    lengths = step_size(dt, more.get("dt_bias"), True).clamp(*limit)
    outputs, lasts = [], []
    for h in range(H):
        g = h * G // H
        inputs = [x[:, :, h], lengths[:, :, h], B[:, :, g], C[:, :, g]]
        state = more["initial_states"][:, h] if further else x.new_zeros(count, size, N)
        y, S = loop("mamba2", inputs, A[h].expand(count), state)
        outputs.append(y + more["D"][h] * x[:, :, h] if further else y)
        lasts.append(S)
    want = torch.stack(outputs, 2)
    want = want * F.silu(more["z"]) if further else want
    assert_alike((out, last), (want, torch.stack(lasts, 1)), [*leaves, *more.values()])
    plain = mamba2_scan(*leaves, dt_softplus=True, dt_limit=limit, **more)
    assert isinstance(plain, Tensor)
    assert torch.equal(plain, out)


@pytest.mark.parametrize(("channels", "further"), [*product((1, 67, 96), (False, True))])
def test_mamba(channels, further) -> None:
    """Channels are divided among samples, as far as they can be; the last two in one and two."""
    count, steps, N = 2, 6, 3
    u, delta = normal(count, channels, steps), normal(count, channels, steps, seed=1)
    A, (B, C) = rates(channels, N), (normal(count, N, steps, seed=n) for n in (2, 3))
    leaves = [u, delta, A, B, C]
    shapes = {"D": (channels,), "delta_bias": (channels,), "z": u.shape}
    more = {key: normal(*shape, seed=4) for key, shape in shapes.items()} if further else {}
    out, last = selective_scan(*leaves, delta_softplus=True, return_last_state=True, **more)
    lengths = step_size(delta.mT, more.get("delta_bias"), True)
    inputs = [u.mT, lengths, B.mT, C.mT]
    y, S = loop("mamba", inputs, (-A).log(), u.new_zeros(count, channels, N))
    want = ((y + more["D"] * u.mT) * F.silu(more["z"].mT) if further else y).mT
    assert_alike((out, last), (want, S), [*leaves, *more.values()])
    assert selective_scan(*leaves, delta_softplus=True, **more).shape == u.shape


def test_step_sizes_without_softplus() -> None:
    """They are limited all the same."""
    x, dt, A = normal(1, 3, 1, 2), normal(1, 3, 1), rates(1)
    B = C = normal(1, 3, 1, 4)
    out = mamba2_scan(x, dt, A, B, C)
    assert torch.allclose(out, mamba2_scan(x, dt.clamp(min=0), A, B, C))


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"dt": torch.ones(2, 5)}, ShapeError, r"dt must be \[2, 5, 4\], got \[2, 5\]"),
        ({"C": torch.ones(2, 5, 2, 4)}, ShapeError, "C must be"),
        ({"D": torch.ones(3)}, ShapeError, "D must be"),
        (
            {"initial_states": torch.ones(2, 4, 7, 3)},
            ShapeError,
            r"initial_states must be \[2, 4, 3",
        ),
        ({"B": torch.ones(2, 5, 3, 7), "C": torch.ones(2, 5, 3, 7)}, ShapeError, "3 groups"),
        ({"B": torch.ones(2, 5, 7)}, ShapeError, "B must be"),
        ({"seq_idx": torch.ones(2, 5)}, InputError, "seq_idx must be a tensor of integers"),
        ({"seq_idx": torch.ones(2, 4, dtype=torch.long)}, ShapeError, "seq_idx must be"),
        ({"cu_seqlens": torch.ones(2)}, InputError, "not available"),
    ],
)
def test_what_is_refused(changes, error, message) -> None:
    """With the shape that is expected."""
    every = {"x": torch.ones(2, 5, 4, 3), "dt": torch.ones(2, 5, 4), "A": -torch.ones(4)}
    every |= {"B": torch.ones(2, 5, 2, 7), "C": torch.ones(2, 5, 2, 7)}
    with pytest.raises(error, match=message):
        mamba2_scan(**(every | changes))


def test_shapes_of_mamba_are_checked() -> None:
    """B and C of each channel are not available."""
    u, A = torch.ones(2, 4, 5), -torch.ones(4, 3)
    B = torch.ones(2, 3, 5)
    for given_ in ({"B": torch.ones(4, 3)}, {"C": B[:1]}, {"delta": u[:, :2]}, {"z": u[:, :, :2]}):
        every = {"delta": u, "A": A, "B": B, "C": B} | given_
        with pytest.raises(ShapeError, match="must be"):
            selective_scan(u, **every)


def test_half_precision_is_computed_in_float32() -> None:
    """The result has the inputs' type, the state is not rounded."""
    u, A = torch.ones(2, 4, 5).bfloat16(), -torch.ones(4, 3)
    B = torch.ones(2, 3, 5).bfloat16()
    out, last = selective_scan(u, u, A, B, B, return_last_state=True)
    assert (out.dtype, last.dtype) == (torch.bfloat16, torch.float32)


def test_rates_of_any_sign() -> None:
    """A state may stay as it is, or grow."""
    u, delta, B, C = normal(1, 2, 3), normal(1, 2, 3, seed=1), normal(1, 2, 3), normal(1, 2, 3)
    A = torch.tensor([[0.0, 0.5], [-0.5, 0.0]], dtype=F64, requires_grad=True)
    out = selective_scan(u, delta, A, B, C)
    S, rows = u.new_zeros(1, 2, 2), []
    for t in range(3):
        S = (delta[..., t, None] * A).exp() * S + (delta * u)[..., t, None] * B[:, None, :, t]
        rows.append((S * C[:, None, :, t]).sum(-1))
    assert_alike((out,), (torch.stack(rows, -1),), [u, delta, A, B])

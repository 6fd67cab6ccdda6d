"""Numbers below the least normal one: kernels on x86 return zero instead, as a processor takes a
hundred times as long for them, and leave the mode of the threads as it was."""

from __future__ import annotations

import platform

import pytest
import torch
from torch import Tensor

import elman
from elman.engines.c.kernels import scans
from helpers import need_engine

LEAST = torch.finfo(torch.float32).tiny
T, B, N = 300, 4, 40
x86 = pytest.mark.skipif(platform.machine() != "x86_64", reason="x86's mode of a thread")


@elman.cell(input="x[H]", state="h[H]")
def fade(x, h):
    """Halves its state at every step."""
    return 0.5 * h + 1e10 * x


def below(values: Tensor) -> int:
    """How many numbers are subnormal."""
    return int(((values != 0) & (values.abs() < LEAST)).sum())


def of_torch() -> Tensor:
    """A product of torch's that is subnormal, by every thread of its pool."""
    return torch.full((1 << 20,), LEAST) * 0.25


@pytest.fixture(params=(1, 2))
def threads(request: pytest.FixtureRequest):
    """A pool of one thread or of two."""
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@x86
def test_states_and_gradients_fade_to_zero(threads):
    """Nothing is left where a float32 would be subnormal; torch's own operations keep theirs."""
    need_engine("c")
    layer = elman.Recurrent(fade, N, N, engine="c")
    x = torch.zeros(T, B, N, requires_grad=True)
    h = torch.ones(1, B, N, requires_grad=True)
    y = layer(x, h)[0]
    y[-1].sum().backward()
    assert below(y) == 0
    assert bool((y[130:] == 0).all())
    assert bool((y[120] > 0).all())
    assert x.grad is not None
    assert below(x.grad) == 0
    assert bool((x.grad[: T - 130] == 0).all())
    assert bool((x.grad[-1] == 1e10).all())
    assert below(of_torch()) == 1 << 20


@x86
def test_scans_fade_to_zero(threads):
    """The scans that DEER and linear layers stand on."""
    need_engine("c")
    A, b, y0 = torch.full((T, 1, 1, N), 0.5), torch.zeros(T, 1, N), torch.ones(1, N)
    y = scans.forward(A, b, y0, units=True)
    assert y is not None
    gradients = scans.backward(A, y0, y, torch.ones_like(y), units=True)
    assert gradients is not None
    assert not any(below(of) for of in (y, *gradients))
    assert bool((y[120] > 0).all())
    assert bool((y[130:] == 0).all())
    assert below(of_torch()) == 1 << 20


def test_arguments_that_are_subnormal_are_read(threads):
    """The input's numbers have a share in the results, whatever their size."""
    need_engine("c")
    layer = elman.Recurrent(fade, N, N, engine="c")
    y = layer(torch.full((3, B, N), 1e-40))[0]
    torch.testing.assert_close(y[0], torch.full((B, N), 1e-30), rtol=1e-4, atol=0)

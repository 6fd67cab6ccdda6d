"""torch's own layers as an engine: what it recognises, what it refuses, and that it agrees."""

from __future__ import annotations

import pytest
import torch

from elman import cells, ops
from elman.engines.aten.engine import ENGINE
from elman.frontend.cell import cell
from elman.nn.modules.formulas import FORMULAS
from helpers import Sizes, assert_all_same, job_of, random_case, run


@cell(input="x[I]", state="h[H]", weights="c[3H], R[3H, H], b[3H], W[3H, I]")
def shuffled_gru(x, h, c, R, b, W):
    """A GRU whose weights are declared in another order, its sums written the other way round."""
    hr, hz, hn = ops.split(c + R @ h, 3)
    xr, xz, xn = ops.split(b + W @ x, 3)
    z = ops.sigmoid(hz + xz)
    return z * h + ops.tanh(hn * ops.sigmoid(hr + xr) + xn) * (1 - z)


@cell(input="x[I]", state="h[H], c[H]", weights="d[4H], W[4H, I], b[4H], R[4H, H]")
def two_bias_lstm(x, h, c, d, W, b, R):
    """An LSTM with two biases."""
    return cells.lstm(x, h, c, W, R, d + b)


@cell(input="x[I]", state="h[H], c[H]", weights="W[4H, I], R[4H, H], b[4H]")
def other_order(x, h, c, W, R, b):
    """An LSTM with its gates in the order f, i, g, o."""
    f, i, g, o = ops.split(W @ x + R @ h + b, 4)
    c = ops.sigmoid(f) * c + ops.sigmoid(i) * ops.tanh(g)
    return ops.sigmoid(o) * ops.tanh(c), c


@cell(input="x[I]", state="h[H]", weights="W[3H, I], R[3H, H], b[3H]")
def one_bias_gru(x, h, W, R, b):
    """A GRU with one bias, beside the input."""
    return cells.gru(x, h, W, R, b, 0.0)


@cell(input="x[I]", state="h[H]", weights="W[4H, I], R[3H, H], b[3H], c[3H]")
def wide_gru(x, h, W, R, b, c):
    """A GRU that uses three quarters of its W."""
    used, _ = ops.split(W, "3H, H")
    return cells.gru(x, h, used, R, b, c)


OWN = [
    cells.rnn,
    cells.rnn.with_options(activation=ops.relu),
    cells.gru,
    cells.lstm,
    shuffled_gru,
    two_bias_lstm,
    *(FORMULAS[mode] for mode in FORMULAS if mode != ("GRU", True)),
]
OTHERS = [cells.gru_before, cells.lstm_peephole, cells.mgu, cells.lem, other_order, one_bias_gru]


@pytest.mark.parametrize("own", OWN)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_agrees_with_reference(own, dtype):
    """Output, last states and every gradient, with each weight in its place."""
    case = random_case(own, Sizes(T=6, B=3, I=5, H=7), dtype=dtype)
    want = run(own, case.to(torch.float64), "reference")
    got = run(own, case, "aten")

    assert_all_same(got, want, dtype, case.T)


@pytest.mark.parametrize("own", OTHERS)
def test_refuses_other_formulas(own):
    """What is not torch's formula is refused, in words."""
    case = random_case(own, Sizes(T=2, B=1, I=2, H=3))

    assert (
        ENGINE.supports(job_of(case))
        == f"{own.name} is not the formula of torch's RNN, GRU or LSTM"
    )


def test_refuses_weights_of_another_shape():
    """The same step with a weight that is wider than torch's."""
    case = random_case(wide_gru, Sizes(T=2, B=1, I=2, H=3))

    assert "W[4H, I] is not W[3H, I] of torch's gru" in str(ENGINE.supports(job_of(case)))


def test_refuses_what_torch_does_not_take():
    """No input features, and dtypes beside float32 and float64."""
    none = random_case(cells.gru, Sizes(T=2, B=1, I=0, H=3))
    some = random_case(cells.gru, Sizes(T=2, B=1, I=2, H=3))

    assert ENGINE.supports(job_of(none)) == "torch's layers take no dim of size 0"
    assert "dtype bfloat16" in str(ENGINE.supports(job_of(some, dtype="bfloat16")))
    assert "device mps" in str(ENGINE.supports(job_of(some, device="mps")))

"""The oracle: shapes, derivatives and what transforms need; its ops: ``test_awkward.py``."""

from __future__ import annotations

import pytest
import torch

import elman
from calls import forward, given_of, grouped
from elman import cells, ops
from elman.engines.registry import find
from elman.frontend.cell import cell
from helpers import DIFFERENCES, Sizes, job_of, random_case, run


def test_weights_alone_reach_every_sample():
    """A next state and an output that do not depend on the sample are repeated for all samples."""

    @cell(input="x[I], m", state="h[H], s, k[P]", weights="w[H], a, p[P]", output="y[P]")
    def odd(x, m, h, s, k, w, a, p):
        return p * a, w, m * s, ops.concat(p) * 2

    case = random_case(odd, Sizes(3, 2, 4, 5, (("P", 6),)), dtype=torch.float64)
    kernel = find("reference").compile(job_of(case))
    out, last, saved = forward(kernel, given_of(case))

    assert saved == ()
    assert out.shape == (3, 2, 6)
    assert [tuple(value.shape) for value in last] == [(2, 5), (2,), (2, 6)]
    torch.testing.assert_close(last[0][1], case.weights["w"])
    torch.testing.assert_close(last[1], case.states["s"] * case.inputs["m"].prod(0))
    torch.testing.assert_close(out[2, 1], case.weights["p"] * case.weights["a"])


def test_expressions_of_weights_and_scalars():
    """Constants, scalar weights, weight matrices cut, joined, masked and transposed."""

    @cell(input="x[I], m", state="h[H]", weights="W[2H, I], R[H, H], M[H, H], a, b[H]")
    def masked(x, m, h, W, R, M, a, b):
        top, bottom = ops.split(W, 2)
        both = ops.concat(top, bottom)
        first, second = ops.split(both @ x, 2)
        return ops.tanh(first + a * second + (R * M).T @ (m * h) + ops.exp(-a) * b + ops.sqrt(4.0))

    case = random_case(masked, Sizes(1, 3, 4, 5), dtype=torch.float64)
    got = run(masked, case, "reference")["out"][0]
    w, x, m = case.weights, case.inputs["x"][0], case.inputs["m"][0][:, None]
    first, second = (x @ w["W"].T).split(5, -1)
    pre = first + w["a"] * second + (m * case.states["h"]) @ (w["R"] * w["M"])
    want = torch.tanh(pre + torch.exp(-w["a"]) * w["b"] + 2.0)

    torch.testing.assert_close(got, want)


@pytest.mark.parametrize("own", cells.CORE)
def test_gradcheck(own):
    """Gradients of every cell against finite differences, first and second order."""
    case = random_case(own, Sizes(2, 2, 2, 3), dtype=torch.float64)
    kernel = find("reference").compile(job_of(case))
    given = given_of(case)

    def function(*values):
        out, last, _ = forward(kernel, grouped(values, given))
        return (out, *last)

    leaves = [value.requires_grad_() for group in given for value in group]
    torch.autograd.gradcheck(function, leaves)
    if own.name in ("gru", "lstm_layernorm"):
        given = given_of(random_case(own, Sizes(2, 1, 2, 3), dtype=torch.float64))
        leaves = [value.requires_grad_() for group in given for value in group]
        torch.autograd.gradgradcheck(function, leaves, atol=DIFFERENCES)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_odd_dtypes_run(dtype):
    """A dtype that no other engine has runs on the reference."""
    net = elman.Recurrent(cells.lstm_layernorm, 3, 4, dtype=dtype, engine="reference")
    out, (h, _) = net(torch.ones(2, 3, 3, dtype=dtype))
    out.sum().backward()

    gradients = [weight.grad for weight in net.parameters()]
    assert {value.dtype for value in (out, h, *gradients) if value is not None} == {dtype}

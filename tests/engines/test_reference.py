"""The oracle: each op against torch's own function, shapes, and what transforms need."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional

import elman
from calls import forward, given_of, grouped
from elman import cells, ops
from elman.engines.registry import find
from elman.frontend.cell import cell
from helpers import AWKWARD, DIFFERENCES, Sizes, job_of, random_case, run

OPS = {  # what a cell author may call -> what torch computes, on vectors a and b [B, n]
    "tanh": (lambda a, b: ops.tanh(a), lambda a, b: a.tanh()),
    "sigmoid": (lambda a, b: ops.sigmoid(a), lambda a, b: a.sigmoid()),
    "relu": (lambda a, b: ops.relu(a), lambda a, b: a.relu()),
    "exp": (lambda a, b: ops.exp(a), lambda a, b: a.exp()),
    "log": (lambda a, b: ops.log(a * a), lambda a, b: (a * a).log()),
    "sqrt": (lambda a, b: ops.sqrt(a * a + 1), lambda a, b: (a * a + 1).sqrt()),
    "abs": (lambda a, b: ops.abs(a), lambda a, b: a.abs()),
    "sin": (lambda a, b: ops.sin(a), lambda a, b: a.sin()),
    "cos": (lambda a, b: ops.cos(a), lambda a, b: a.cos()),
    "erf": (lambda a, b: ops.erf(a), lambda a, b: a.erf()),
    "softplus": (lambda a, b: ops.softplus(30 * a), lambda a, b: functional.softplus(30 * a)),
    "silu": (lambda a, b: ops.silu(a), lambda a, b: functional.silu(a)),
    "gelu": (lambda a, b: ops.gelu(a), lambda a, b: functional.gelu(a)),
    "softmax": (lambda a, b: ops.softmax(a), lambda a, b: a.softmax(-1)),
    "minimum": (lambda a, b: ops.minimum(a, b), torch.minimum),
    "maximum": (lambda a, b: ops.maximum(a, 0.25), lambda a, b: a.clamp(min=0.25)),
    "clip": (lambda a, b: ops.clip(a, -0.5, 0.5), lambda a, b: a.clamp(-0.5, 0.5)),
    "where": (lambda a, b: ops.where(a < b, a, 2.0), lambda a, b: torch.where(a < b, a, 2.0)),
    "comparisons": (
        lambda a, b: (a < b) + (a <= b) + (a > b) + (a >= b) + (a == b) + (a != b),
        lambda a, b: (
            (a < b).double()
            + (a <= b).double()
            + (a > b).double()
            + (a >= b).double()
            + (a == b).double()
            + (a != b).double()
        ),
    ),
    "arithmetic": (
        lambda a, b: -a + 2 * b - a / (b * b + 1),
        lambda a, b: -a + 2 * b - a / (b * b + 1),
    ),
    "power": (lambda a, b: a**3, lambda a, b: a**3),
    "sum": (lambda a, b: a * ops.sum(b), lambda a, b: a * b.sum(-1, keepdim=True)),
    "mean": (lambda a, b: a + ops.mean(b), lambda a, b: a + b.mean(-1, keepdim=True)),
    "var": (lambda a, b: a * ops.var(b), lambda a, b: a * b.var(-1, correction=0, keepdim=True)),
    "layer_norm": (
        lambda a, b: ops.layer_norm(a),
        lambda a, b: functional.layer_norm(a, a.shape[-1:]),
    ),
    "stop_gradient": (lambda a, b: ops.stop_gradient(a) * b, lambda a, b: a.detach() * b),
    "split": (
        lambda a, b: ops.split(ops.concat(a, b), 2)[1],
        lambda a, b: b,
    ),
}


def made(name):
    """A cell of one op: h' = op(x, h)."""
    own = OPS[name][0]

    @cell(input="x[H]", state="h[H]", weights="w[H]")
    def one(x, h, w):
        return own(x, h) + 0 * w

    return one


@pytest.mark.parametrize("name", OPS)
def test_ops_mean_what_torch_computes(name):
    """Value and gradient of every op."""
    one = made(name)
    case = random_case(one, Sizes(T=1, B=3, I=5, H=5), dtype=torch.float64)
    got = run(one, case, "reference")
    x = case.inputs["x"][0].clone().requires_grad_()
    h = case.states["h"].clone().requires_grad_()
    want = OPS[name][1](x, h)
    d = case.d_output[0] + case.d_last["h"]

    torch.testing.assert_close(got["out"][0], want.detach(), rtol=1e-13, atol=1e-14)
    if want.requires_grad:
        dx, dh = torch.autograd.grad(want, (x, h), d, allow_unused=True)
        for key, grad, like in (("dx", dx, case.inputs["x"]), ("dh", dh, h)):
            zero = torch.zeros_like(like.reshape(-1, 5))
            grad = zero[-3:] if grad is None else grad
            torch.testing.assert_close(
                got.get(key, zero).reshape(-1, 5), grad, rtol=1e-11, atol=1e-13
            )


@pytest.mark.parametrize(
    "name", ["tanh", "sigmoid", "relu", "exp", "abs", "softplus", "clip", "minimum"]
)
def test_ops_pass_nan_and_infinities(name):
    """NaN and infinities come out as torch has them."""
    one = made(name)
    odd = torch.tensor([[math.nan, math.inf, -math.inf, 0.0, -0.0]], dtype=torch.float64)
    case = random_case(one, Sizes(T=1, B=1, I=5, H=5), dtype=torch.float64)
    kernel = find("reference").compile(job_of(case))
    h = torch.ones_like(odd)
    out, _, _ = forward(kernel, ([odd[None]], [h], list(case.weights.values())))

    torch.testing.assert_close(out[0], OPS[name][1](odd, h), equal_nan=True)


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


@pytest.mark.parametrize("own", cells.CORE, ids=lambda own: own.name)
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
        torch.autograd.gradgradcheck(function, leaves, atol=DIFFERENCES)


@pytest.mark.parametrize("sizes", AWKWARD, ids=str)
def test_awkward_sizes(sizes):
    """T = 1, B = 1, no input features: results have the declared shapes and are finite."""
    case = random_case(cells.lstm, sizes)
    got = run(cells.lstm, case, "reference")

    assert got["out"].shape == (sizes.T, sizes.B, sizes.H)
    assert got["dx"].shape == (sizes.T, sizes.B, sizes.I)
    assert all(value.isfinite().all() for value in got.values())


@pytest.mark.filterwarnings("ignore:.torch.jit.script:DeprecationWarning")  # torch.func.jvp's own
def test_torch_func_transforms():
    """vmap, grad, jvp and jacrev see through the reference."""
    case = random_case(cells.gru, Sizes(3, 2, 2, 3), dtype=torch.float64)
    kernel = find("reference").compile(job_of(case))
    weights = tuple(case.weights.values())
    x, h = case.inputs["x"], case.states["h"]

    def loss(weights, x, h):
        out, _, _ = forward(kernel, ([x], [h], weights))
        return out.square().sum()

    whole = torch.func.grad(loss)(weights, x, h)
    samples = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 1, 0))(
        weights, x.unsqueeze(2), h.unsqueeze(1)
    )
    for one, each in zip(whole, samples):
        torch.testing.assert_close(each.sum(0), one)
    _, tangent = torch.func.jvp(lambda h: loss(weights, x, h), (h,), (torch.ones_like(h),))
    torch.testing.assert_close(tangent, torch.func.grad(loss, argnums=2)(weights, x, h).sum())
    assert torch.func.jacrev(loss, argnums=1)(weights, x, h).shape == x.shape


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_odd_dtypes_run(dtype):
    """A dtype that no other engine has runs on the reference."""
    net = elman.Recurrent(cells.lstm_layernorm, 3, 4, dtype=dtype)
    with pytest.warns(UserWarning, match="lstm_layernorm runs step by step on engine reference"):
        out, (h, _) = net(torch.ones(2, 3, 3, dtype=dtype))
    out.sum().backward()

    assert out.dtype == h.dtype == net.W_l0.grad.dtype == dtype

"""A formula without a state is a layer without a loop: on every engine, and saved."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch

import elman
from elman import cell
from elman.ops import sigmoid, tanh
from helpers import Sizes, assert_all_same, assert_close, job_of, need, oracle, random_case, run


@cell(input="x[I]", output="h[H]", weights="W[H, I], b[H]")
def dense(x, W, b):
    """One layer of a feed-forward network."""
    return tanh(W @ x + b)


@cell(input="x[I], m", output="y[P], s", weights="W[P, I], idle[P]")
def two_outputs(x, m, W, idle, *, scale=0.5):
    """A scalar input and output, an option, and a weight that has the usual state's name."""
    y = sigmoid(W @ x + idle) * m
    return y, scale * m


@pytest.mark.parametrize("engine", ["c", "scan-backward", "deer"])
@pytest.mark.parametrize("T, B", [(1, 1), (7, 5)])
def test_engines_agree(engine, T, B):
    """The output, the idle state, and every gradient, in awkward sizes."""
    formula = dense.recurrent
    case = random_case(formula, Sizes(T, B, 3, 17), dtype=torch.float64)
    need(engine, job_of(case))
    assert_all_same(run(formula, case, engine), oracle(case), torch.float64, T)


@pytest.mark.parametrize("engine", ["reference", "c"])
def test_it_is_the_layer_of_torch(engine):
    """Called with a hidden size as any other; two layers of it are a perceptron."""
    net = elman.Recurrent(dense, 5, 7, 2, engine=engine).double()
    x = torch.randn(4, 3, 5, dtype=torch.float64, requires_grad=True)
    W, b, U, c = net.parameters()
    want = torch.tanh(torch.tanh(x @ W.T + b) @ U.T + c)
    out, state = net(x)
    assert_close(out, want)
    assert not state.count_nonzero()
    leaves = (x, W, b, U, c)
    grads, wanted = (torch.autograd.grad(v.square().sum(), leaves) for v in (out, want))
    for grad, other in zip(grads, wanted, strict=True):
        assert_close(grad, other)


def test_the_loop_has_nothing_to_do():
    """All products and functions are before the loop; the loop copies the idle state."""
    text = elman.explain(dense.recurrent, input_size=64, hidden_size=256).stages["program"]
    before = text.partition("forward   before")[2].partition("step")
    assert "[W] @ x → tanh1" in before[0]
    assert before[2].split("\n")[0].split()[0] == "copies"


def test_outputs_options_and_copies():
    """Several outputs; a name that is taken; pickled, copied and given options, it is the same."""
    net = elman.Recurrent(two_outputs, 3, 4, engine="reference", scale=2.0)
    x, m = torch.randn(6, 2, 3), torch.randn(6, 2)
    (y, s), _ = net((x, m))
    assert_close(y, torch.sigmoid(x @ net.W_l0.T + net.idle_l0) * m[..., None])
    assert_close(s, 2 * m)
    for twin in (copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        (again, _), _ = twin((x, m))
        assert torch.equal(again, y)

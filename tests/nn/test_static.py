"""``static=``: the same numbers as the same inputs repeated over time, without their memory."""

from __future__ import annotations

import pytest
import torch

import elman
from elman import cell, compiler, ops
from elman.engines.deer.problem import Formula
from elman.errors import InputError, ShapeError
from elman.plan.spec import Spec
from helpers import assert_close, need_engine

F64 = torch.float64


def formula(x, s, k, h, c, W, R, b, V, U, d, p):
    """A gate of static inputs alone, a product that is added, a scalar, and one as it stands."""
    i = ops.sigmoid(V @ s + d)
    f, g = ops.split(W @ x + R @ h + U @ s + b, 2)
    c = ops.sigmoid(f) * c + i * ops.tanh(k * g) + p * ops.mean(s) * h
    return ops.tanh(c), c


ASKED = {"state": "h[H], c[H]", "weights": "W[2H, I], R[2H, H], b[2H], V[H, S], U[2H, S], d[H], p"}
once = cell(input="x[I]", static="s[S], k", **ASKED)(formula)
repeated = cell(input="x[I], s[S], k", **ASKED)(formula)  # the judge


def drawn(*shape: int) -> torch.Tensor:
    return torch.randn(shape, dtype=F64)


def test_nothing_is_repeated():
    """The step reads what is held, its Jacobian is as large as the states that change, and nothing
    of it is an input of every step."""
    graph = compiler.graph_of(once)
    assert [leaf.name for leaf in graph.inputs] == ["x"]
    held = graph.states[2:]
    assert [leaf.name for leaf in held] == ["held", "i", "k", "held_"]
    assert graph.next_states[2:] == held
    dims = tuple(sorted(once.bind(4, 5, S=3).items()))
    job = compiler.job(once, Spec(dims, "float64"))
    assert [group.rows for group in Formula(job).state_groups] == [10]
    assert job.pair.step.held == {leaf for leaf in job.pair.step.states if leaf.name not in "hc"}


def test_heads():
    """What multiplies a state is divided among heads; the rest is not."""
    need_engine("c")
    torch.manual_seed(0)
    net, judge = (
        elman.Recurrent(of, 4, 6, heads=2, engine=name, dtype=F64, S=3)
        for of, name in ((once, "c"), (repeated, "reference"))
    )
    judge.load_state_dict(net.state_dict())
    x, s, k = drawn(7, 3, 4), drawn(3, 3), drawn(3)
    want = judge((x, s.expand(7, 3, 3), k.expand(7, 3)))[0]
    assert_close(net(x, static=(s, k))[0], want)


def test_mistakes():
    """Missing, too many, of a wrong shape or type; and for a cell that has none."""
    net, judge = (elman.Recurrent(of, 4, 5, dtype=F64, S=3) for of in (once, repeated))
    x, s, k = drawn(7, 3, 4), drawn(3, 3), drawn(3)
    with pytest.raises(InputError, match=r"formula has static inputs: s, k"):
        net(x)
    told = r"has 2 static inputs, \(s, k\), but 1 was given\n  hint  net\(x, static=\(s, k\)\)"
    with pytest.raises(InputError, match=told):
        net(x, static=s)
    with pytest.raises(InputError, match=r"hint  net\(x, .*\); net\(x, static=…\) .*: s, k"):
        net(x, (s, k, s, k))  # as of a layer that takes them behind x
    with pytest.raises(ShapeError, match=r"input s of formula must be \[3, 3\], got \[2, 3\]"):
        net(x, static=(s[:2], k))
    with pytest.raises(ShapeError, match=r"input k of formula must be \[3\], got \[7, 3\]"):
        net(x, static=(s, k.expand(7, 3)))
    with pytest.raises(InputError, match=r"is torch\.float32, but its weights are torch\.float64"):
        net(x, static=(s.float(), k))
    with pytest.raises(InputError, match="has no static inputs"):
        judge((x, s.expand(7, 3, 3), k.expand(7, 3)), static=s)


def test_explained():
    """The formula says what is static; what is held has no recurrence."""
    told = elman.explain(once, input_size=4, hidden_size=5, measure=False, S=3)
    assert "leaves: x[I]; static s[S], k; h[H], c[H]" in told.stages["graph"]
    assert "once per sequence: held, i, k, held_" in told.stages["graph"]
    assert "recurrence: dense (h, c)" in told.stages["step"]
    elman.draw(once, S=3)


def clipped(x, s, h, W, R):
    """A gradient is clipped on its way to what is the same at all steps."""
    return ops.tanh(W @ x + R @ h + ops.clip_gradient(3 * ops.sin(s), 0.1) * h)


@pytest.mark.parametrize("engine", ["reference", "c"])
def test_gradients_are_clipped_in_every_step(engine):
    """Not once, when they have been summed over all steps."""
    need_engine(engine)
    more = {"state": "h[H]", "weights": "W[H, I], R[H, H]"}
    net = elman.Recurrent(
        cell(input="x[I]", static="s[H]", **more)(clipped), 4, 5, engine=engine, dtype=F64
    )
    judge = elman.Recurrent(
        cell(input="x[I], s[H]", **more)(clipped), 4, 5, engine="reference", dtype=F64
    )
    judge.load_state_dict(net.state_dict())
    x, s, h = (drawn(*shape).requires_grad_() for shape in ((7, 3, 4), (3, 5), (1, 3, 5)))
    got = net(x, h, static=s)[0]
    want = judge((x, s.expand(7, 3, 5)), h)[0]
    assert_close(got, want)
    for a, b in zip(*(torch.autograd.grad(v.square().sum(), (x, s, h)) for v in (got, want))):
        assert_close(a, b)

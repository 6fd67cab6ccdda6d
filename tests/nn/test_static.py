"""``static=``: the same numbers as the same inputs repeated over time, without their memory."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import elman
from elman import cell, compiler, ops
from elman.engines.deer.problem import Formula
from elman.errors import InputError, ShapeError
from elman.plan.spec import Spec
from helpers import assert_close, need_engine

F64 = torch.float64
WEIGHTS = "W[2H, I], R[2H, H], b[2H], V[H, S], U[2H, S], d[H], p"
SIZES = {"S": 3}


def formula(x, s, k, h, c, W, R, b, V, U, d, p):
    """A gate of static inputs alone, a product that is added, a scalar, and one as it stands."""
    i = ops.sigmoid(V @ s + d)
    f, g = ops.split(W @ x + R @ h + U @ s + b, 2)
    c = ops.sigmoid(f) * c + i * ops.tanh(k * g) + p * ops.mean(s) * h
    return ops.tanh(c), c


@cell(input="x[I]", static="s[S], k", state="h[H], c[H]", weights=WEIGHTS)
def once(x, s, k, h, c, W, R, b, V, U, d, p):
    """With inputs that are the same at all steps."""
    return formula(x, s, k, h, c, W, R, b, V, U, d, p)


@cell(input="x[I], s[S], k", state="h[H], c[H]", weights=WEIGHTS)
def repeated(x, s, k, h, c, W, R, b, V, U, d, p):
    """The judge."""
    return formula(x, s, k, h, c, W, R, b, V, U, d, p)


def nets(engine: str, **options: Any) -> tuple[Any, Any]:
    """A module with static inputs, and the judge: the same with inputs that do not change."""
    torch.manual_seed(1)
    net = elman.Recurrent(once, 4, 5, engine=engine, dtype=F64, **SIZES, **options)
    options.pop("plan", None)
    judge = elman.Recurrent(repeated, 4, 5, engine="reference", dtype=F64, **SIZES, **options)
    judge.load_state_dict(net.state_dict())
    return net, judge


def drawn(net: Any, T: int = 7, B: int = 3) -> tuple[Any, ...]:
    """x, (s, k) and initial states, the same at every call."""
    source = torch.Generator().manual_seed(0)
    lead = net.num_layers * (1 + net.bidirectional)
    shapes = ((T, B, 4), (B, 3), (B,), (lead, B, 5), (lead, B, 5))
    x, s, k, h, c = (
        torch.randn(shape, generator=source, dtype=F64).requires_grad_() for shape in shapes
    )
    return x, (s, k), (h, c)


def over_time(net: Any, x: torch.Tensor, static: Any) -> tuple[torch.Tensor, ...]:
    """Inputs with static ones repeated for all steps."""
    batch_first = net.batch_first
    steps = x.shape[1] if batch_first else x.shape[0]
    wide = [s.unsqueeze(int(batch_first)) for s in static]
    axis = int(batch_first)
    return (x, *[s.expand(*s.shape[:axis], steps, *s.shape[axis + 1 :]) for s in wide])


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
    made = [
        elman.Recurrent(of, 4, 6, heads=2, engine=name, dtype=F64, **SIZES)
        for of, name in ((once, "c"), (repeated, "reference"))
    ]
    made[1].load_state_dict(made[0].state_dict())
    x, static, _ = drawn(made[0])
    assert_close(made[0](x, static=static)[0], made[1](over_time(made[1], x, static))[0])


def test_mistakes():
    """Missing, too many, of a wrong shape or type; and for a cell that has none."""
    net, judge = nets("reference")
    x, (s, k), _ = drawn(net)
    with pytest.raises(InputError, match=r"once has static inputs: s, k"):
        net(x)
    told = r"has 2 static inputs, \(s, k\), but 1 was given\n  hint  net\(x, static=\(s, k\)\)"
    with pytest.raises(InputError, match=told):
        net(x, static=s)
    with pytest.raises(InputError, match=r"hint  net\(x, .*\); net\(x, static=…\) .*: s, k"):
        net(x, (s, k, s, k))  # as of a layer that takes them behind x
    with pytest.raises(ShapeError, match=r"static input s of once must be \[3, 3\], got \[2, 3\]"):
        net(x, static=(s[:2], k))
    with pytest.raises(ShapeError, match=r"static input k of once must be \[3\], got \[7, 3\]"):
        net(x, static=(s, k.expand(7, 3)))
    with pytest.raises(InputError, match=r"is torch\.float32, but its weights are torch\.float64"):
        net(x, static=(s.float(), k))
    with pytest.raises(InputError, match="has no static inputs"):
        judge(over_time(judge, x, (s, k)), static=s)


def test_explained():
    """The formula says what is static; what is held has no recurrence."""
    told = elman.explain(once, input_size=4, hidden_size=5, measure=False, **SIZES)
    assert "leaves: x[I]; static s[S], k; h[H], c[H]" in told.stages["graph"]
    assert "once per sequence: held, i, k, held_" in told.stages["graph"]
    assert "recurrence: dense (h, c)" in told.stages["step"]
    elman.draw(once, **SIZES)


@pytest.mark.parametrize("engine", ["reference", "c"])
def test_entity_aware_lstm(engine):
    """As NeuralHydrology's loop computes it: the input gate once, then step by step."""
    need_engine(engine)
    net = elman.Recurrent(elman.cells.ealstm, 4, 6, S=3, engine=engine, dtype=F64)
    x, s = torch.randn(8, 3, 4, dtype=F64), torch.randn(3, 3, dtype=F64)
    i = torch.sigmoid(torch.nn.functional.linear(s, net.V_l0, net.d_l0))
    h = c = x.new_zeros(3, 6)
    for row in x:
        gates = torch.addmm(net.b_l0.expand(3, -1), h, net.R_l0.T) + row @ net.W_l0.T
        f, o, g = gates.chunk(3, 1)
        c = torch.sigmoid(f) * c + i * torch.tanh(g)
        h = torch.sigmoid(o) * torch.tanh(c)
    out, last = net(x, static=s)
    assert_close(out[-1], h)
    assert_close(last[1][0], c)
    weights = list(net.parameters())
    for got, want in zip(
        torch.autograd.grad(out[-1].sum(), weights),
        torch.autograd.grad(h.sum(), weights),
        strict=True,
    ):
        assert_close(got, want)


@cell(input="x[I]", static="s[H]", state="h[H]", weights="W[H, I], R[H, H]")
def clipped_once(x, s, h, W, R):
    """A gradient is clipped on its way to what is the same at all steps."""
    return ops.tanh(W @ x + R @ h + ops.clip_gradient(3 * ops.sin(s), 0.1) * h)


@cell(input="x[I], s[H]", state="h[H]", weights="W[H, I], R[H, H]")
def clipped_repeated(x, s, h, W, R):
    """The judge."""
    return ops.tanh(W @ x + R @ h + ops.clip_gradient(3 * ops.sin(s), 0.1) * h)


@pytest.mark.parametrize("engine", ["reference", "c"])
def test_gradients_are_clipped_in_every_step(engine):
    """Not once, when they have been summed over all steps."""
    need_engine(engine)
    net = elman.Recurrent(clipped_once, 4, 5, engine=engine, dtype=F64)
    judge = elman.Recurrent(clipped_repeated, 4, 5, engine="reference", dtype=F64)
    judge.load_state_dict(net.state_dict())
    source = torch.Generator().manual_seed(0)
    x, s, h = (
        torch.randn(shape, generator=source, dtype=F64).requires_grad_()
        for shape in ((7, 3, 4), (3, 5), (1, 3, 5))
    )
    got = net(x, h, static=s)[0]
    want = judge((x, s.expand(7, 3, 5)), h)[0]
    assert_close(got, want)
    for a, b in zip(*(torch.autograd.grad(v.square().sum(), (x, s, h)) for v in (got, want))):
        assert_close(a, b)

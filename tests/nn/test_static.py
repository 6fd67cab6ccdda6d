"""``static=``: the same numbers as the same inputs repeated over time, without their memory."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from torch.func import functional_call, grad, jvp, vmap
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import elman
from elman import cell, compiler, ops
from elman.engines.deer.problem import Formula
from elman.errors import InputError, ShapeError
from elman.plan.spec import Spec
from helpers import assert_close, forced, need_engine

F64 = torch.float64
ENGINES = ("reference", "c", "deer", "scan-backward")
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
    options.pop("checkpoint", None)
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


def results(out: Any, last: Any, leaves: Any) -> list[torch.Tensor]:
    """Values and gradients of a loss of all of them."""
    values = [out, *last]
    source = torch.Generator().manual_seed(3)
    ds = [torch.randn(v.shape, generator=source, dtype=F64) for v in values]
    return [*values, *torch.autograd.grad(values, leaves, ds)]


def agree(net: Any, judge: Any, batch_first: bool = False, **more: Any) -> None:
    """Output, last states and every gradient."""
    x, static, state = drawn(net)
    given = x.transpose(0, 1) if batch_first else x
    leaves = [x, *static, *state]
    got = net(given, state, static=static, **more)
    want = judge(over_time(judge, given, static), state, **more)
    assert len(got[1]) == 2, "what is held is no state of the cell"
    got, want = (
        results(*made, [*leaves, *of.parameters()]) for made, of in ((got, net), (want, judge))
    )
    for a, b in zip(got, want, strict=True):
        assert_close(a, b)


STACKED = {"bidirectional": True, "num_layers": 2, "checkpoint": 3}


@pytest.mark.parametrize(
    ("engine", "options"),
    [
        *((engine, options) for engine in ENGINES for options in ({}, STACKED)),
        ("c", {"num_layers": 2}),
        ("c", {"batch_first": True, "checkpoint": 2}),
    ],
    ids=str,
)
def test_as_if_repeated(engine, options):
    """Whole, with resets, with lengths in any order; in every layer and direction."""
    need_engine(engine)
    net, judge = nets(engine, **options)
    batch_first = net.batch_first
    reset = torch.rand(7, 3, generator=torch.Generator().manual_seed(2)) < 0.3
    reset = reset.T if batch_first else reset
    for more in (
        {},
        {"reset": reset},
        {"reset": reset, "reset_to": "initial"},
        {"lengths": [4, 7, 2]},
        {"lengths": [4, 7, 2], "reset": reset},
    ):
        agree(net, judge, batch_first, **more)


@pytest.mark.parametrize("engine", ["reference", "c"])
def test_packed_in_any_order(engine):
    """Static inputs go by the caller's order of sequences."""
    need_engine(engine)
    net, judge = nets(engine)
    x, static, state = drawn(net)
    lengths = torch.tensor([2, 7, 4])
    packed = pack_padded_sequence(x, lengths, enforce_sorted=False)
    out, last = net(packed, state, static=static)
    want, ends = judge(over_time(judge, x, static), state, lengths=lengths)
    assert_close(pad_packed_sequence(out)[0], want)
    for got, end in zip(last, ends, strict=True):
        assert_close(got, end)


def test_unbatched_and_steps():
    """One sequence without an axis of samples; a stream step by step."""
    net, _ = nets("reference")
    x, (s, k), state = drawn(net)
    out, _ = net(x, state, static=(s, k))
    one, _ = net(x[:, 1], tuple(v[:, 1] for v in state), static=(s[1], k[1]))
    assert_close(one, out[:, 1])
    for t in range(len(x)):
        y, state = net.step(x[t], state, static=(s, k))
        assert_close(y, out[t])


@pytest.mark.parametrize("lengths", [None, (4, 7, 2)])
def test_compiled(lengths):
    """One graph, the eager call's numbers."""
    net, _ = nets("c", num_layers=2)
    need_engine("c")
    x, static, state = drawn(net)
    told = None if lengths is None else torch.tensor(lengths)
    torch._dynamo.reset()
    compiles = torch.compile(net, fullgraph=True, backend="aot_eager")
    leaves = [x, *static, *state, *net.parameters()]
    got, want = (
        results(*call(x, state, static=static, lengths=told), leaves) for call in (compiles, net)
    )
    for a, b in zip(got, want, strict=True):
        assert torch.equal(a, b)
    torch._dynamo.reset()


@pytest.mark.filterwarnings("ignore:.torch.jit.script:DeprecationWarning")
def test_transforms():
    """Gradients by sample, tangents, and derivatives of derivatives, as of engine reference."""
    need_engine("c")
    net, judge = nets("c")
    x, static, _ = drawn(net, T=4)
    x, static = x.detach(), tuple(s.detach() for s in static)
    weights = {name: w.detach() for name, w in net.named_parameters()}

    def loss(weights: Any, x: torch.Tensor, s: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        out, last = functional_call(net, weights, (x,), {"static": (s, k)})
        return out.square().sum() + last[1].sin().sum()

    def asked() -> list[Any]:
        by_sample = vmap(grad(loss, argnums=(0, 2)), in_dims=(None, 1, 0, 0))(weights, x, *static)
        tangent = jvp(lambda s: loss(weights, x, s, static[1]), (static[0],), (static[0].cos(),))
        return [*by_sample[0].values(), by_sample[1], *tangent]

    got = asked()
    with forced("reference"):
        want = asked()
    for a, b in zip(got, want, strict=True):
        assert_close(a, b)
    s = static[0].clone().requires_grad_()
    assert torch.autograd.gradgradcheck(lambda s: net(x[:2], static=(s, static[1]))[0], (s,))
    del judge


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


def test_saved_as_any_module():
    """Copied and pickled with its cell."""
    net, _ = nets("reference")
    x, static, state = drawn(net)
    want, _ = net(x, state, static=static)
    for again in (copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        assert torch.equal(again(x, state, static=static)[0], want)
    assert once.fingerprint != repeated.fingerprint


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

"""Values with another derivative: spikes, straight-through estimates, clipped gradients."""

from __future__ import annotations

from math import pi

import pytest
import torch
from torch.func import grad, jvp

import elman
from calls import call
from elman import cell, cells, compiler
from elman.autodiff.structure import structure
from elman.errors import EngineError, TraceError
from elman.ir.graph import walk
from elman.ir.ops import STAND_INS
from elman.ops import abs, clip_gradient, relu, round, sigmoid, spike, straight_through, sum, tanh
from elman.passes.digest import digest
from elman.plan.build import program
from elman.plan.cost import phase_nodes
from elman.plan.spec import Spec
from elman.tuning.kernels import kernel_of
from helpers import Sizes, assert_all_same, job_of, need, need_engine, random_case, run

F64 = torch.float64
pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.script:DeprecationWarning")
ENGINES = ("reference", "c", "deer", "scan-backward")


@cell(input="x[I]", state="s[H], m[H]", weights="W[H, I], R[H, H], b[H]")
def spiking(x, s, m, W, R, b, *, surrogate="fast_sigmoid", subtract=True):
    """Recurrent, reset by subtraction."""
    m = 0.8 * m + W @ x + R @ s + b - 0.5 * s * subtract
    return spike(m - 0.3, surrogate), m


SLOPES = {  # surrogate -> the derivative in torch, as published
    "fast_sigmoid": lambda v: 1 / (25 * v.abs() + 1) ** 2,
    "atan": lambda v: 2 / 2 / (1 + (pi / 2 * 2 * v).pow(2)),
    "sigmoid": lambda v: 25 * torch.exp(-25 * v) / (torch.exp(-25 * v) + 1) ** 2,
    "triangular": lambda v: torch.relu(1 - v.abs()),
    "own": lambda v: 0.3 * torch.relu(1 - v.abs()),
}


def given(name: str):
    """A surrogate as it is asked for."""
    return (lambda v: 0.3 * relu(1 - abs(v))) if name == "own" else name


class Spike(torch.autograd.Function):
    @staticmethod
    def forward(ctx, v, slope):
        ctx.save_for_backward(v)
        ctx.slope = slope
        return (v > 0).to(v)

    @staticmethod
    def backward(ctx, d):  # type: ignore[override]
        (v,) = ctx.saved_tensors
        return d * ctx.slope(v), None


def by_torch(net, x, slope):
    """The cell's loop in torch."""
    W, R, b = (getattr(net, f"{name}_l0") for name in ("W", "R", "b"))
    s = m = x.new_zeros(x.shape[1], b.shape[0])
    outputs = []
    for row in x:
        m = 0.8 * m + row @ W.T + s @ R.T + b - 0.5 * s
        s = Spike.apply(m - 0.3, slope)
        outputs.append(s)
    return torch.stack(outputs)


@pytest.mark.usefixtures("as_users")  # what is rounded
@pytest.mark.parametrize(
    "name, engine",
    [(name, "reference") for name in SLOPES] + [("own", engine) for engine in ENGINES[1:]],
)
def test_spikes_are_a_loop_of_autograd_functions(name, engine):
    """Outputs and every gradient, first and second, on every engine."""
    need_engine("c")
    torch.manual_seed(0)
    net = elman.Recurrent(spiking, 3, 5, engine=engine, dtype=F64, surrogate=given(name))
    x = torch.randn(7, 4, 3, dtype=F64, requires_grad=True)
    leaves = [x, *net.parameters()]
    mix = torch.randn(7, 4, 5, dtype=F64)

    def gradients(output):
        first = torch.autograd.grad((output * mix).sum(), leaves, create_graph=True)
        return first, torch.autograd.grad(
            torch.stack([d.square().sum() for d in first]).sum(), leaves
        )

    ours, theirs = net(x)[0], by_torch(net, x, SLOPES[name])
    assert torch.equal(ours, theirs)
    assert 0 < ours.mean() < 1
    torch.testing.assert_close(
        torch.autograd.grad((ours * mix).sum(), leaves, retain_graph=True),
        torch.autograd.grad((theirs * mix).sum(), leaves, retain_graph=True),
    )
    torch.testing.assert_close(gradients(net(x)[0]), gradients(theirs))


@pytest.mark.usefixtures("as_users")
def test_spikes_at_the_threshold():
    """At 0 there is none, nor at NaN; where v is positive it is exactly 1."""

    @cell(input="x[H]", state="h[H]")
    def fires(x, h):
        return spike(x) + 0 * h

    odd = [0.0, -0.0, 1e-300, 5.0, float("inf"), float("-inf"), float("nan"), -1.0]
    x = torch.tensor(odd, dtype=F64)
    for engine in ("reference", "c"):
        net = elman.Recurrent(fires, 8, 8, engine=engine, dtype=F64)
        got = net(x.double().expand(2, 1, 8))[0]
        assert got[1, 0].tolist() == [0, 0, 1, 1, 1, 0, 0, 0]


def test_no_forward_computes_a_surrogate():
    """Neither without gradients nor in training: the backward does, from what the forward has."""
    pair = compiler.pair_of(spiking)
    assert "div" not in {value.op for value in pair.step.walk()}
    wants = frozenset({"x", "W", "R", "b"})
    sizes = (("H", 5), ("I", 3))
    for training in (False, True):
        made = program(pair, Spec(sizes, wants=wants, training=training))
        forward = made.forward
        computed = [
            value.op
            for phase in (forward.before, forward.step, forward.after)
            for value in phase_nodes(phase)
        ]
        assert "gt" in computed
        assert not {"div", "abs", *STAND_INS} & set(computed)
    roots = [d for d in (*pair.d_states, *pair.d_inputs) if d is not None]
    assert "div" in {value.op for value in walk(roots)}
    assert STAND_INS[0] not in {value.op for value in walk(roots)}


def test_a_spike_has_the_pattern_of_its_surrogate():
    """Not none, as of a comparison: deer's Jacobians and gradients need it."""

    @cell(input="x[H]", state="s[H], m[H]")
    def alone(x, s, m):
        m = 0.8 * m + x - 0.5 * s
        return spike(m), m

    found = structure(compiler.pair_of(alone).source)
    assert found.diagonal
    assert found.groups == ((0, 1),)
    assert "diagonal in blocks of 2" in elman.explain(alone).all


def test_formulas_that_differ_in_their_derivative_alone_differ():
    """By fingerprint and by digest; torch's own layer does not run a formula that clips."""

    @cell(input="x[I]", state="h[H]", weights="W[H, I], R[H, H], b[H], c[H]")
    def clipped_rnn(x, h, W, R, b, c):
        return tanh(W @ x + b + R @ clip_gradient(h, 0.1) + c)

    steep = spiking.with_options(surrogate=lambda v: 1 / (1 + 100 * abs(v)) ** 2)
    assert len({one.fingerprint for one in (spiking, steep, clipped_rnn, cells.rnn)}) == 4
    digests = {digest(compiler.pair_of(one).source) for one in (spiking, steep, clipped_rnn)}
    assert len({*digests, digest(compiler.pair_of(cells.rnn).source)}) == 4
    with pytest.raises(EngineError, match="not the formula of torch's RNN"):
        elman.Recurrent(clipped_rnn, 3, 5, engine="aten")(torch.randn(2, 1, 3))


@cell(input="x[I]", state="h[H]", weights="W[H, I], R[H, H], b[H]")
def clipping(x, h, W, R, b):
    """What flows back through h is clipped in every step."""
    return tanh(W @ x + R @ clip_gradient(h, 0.05) + b)


def clipped_by_torch(net, x):
    W, R, b = (getattr(net, f"{name}_l0") for name in ("W", "R", "b"))
    h = x.new_zeros(x.shape[1], b.shape[0])
    outputs = []
    for row in x:
        h = h * 1.0
        if h.requires_grad:
            h.register_hook(lambda d: d.clamp(-0.05, 0.05))
        h = torch.tanh(row @ W.T + h @ R.T + b)
        outputs.append(h)
    return torch.stack(outputs)


def test_higher_derivatives_of_clipped_gradients_are_torchs():
    """Such a backward is not linear, so torch's ops run, and say so; forward mode knows no clip."""
    need_engine("c")
    torch.manual_seed(2)
    net = elman.Recurrent(clipping, 3, 5, engine="c", dtype=F64)
    x = torch.randn(5, 2, 3, dtype=F64, requires_grad=True)

    mix = torch.randn(5, 2, 5, dtype=F64)

    def twice(call):
        (d,) = torch.autograd.grad((call(net, x) * mix).sum(), x, create_graph=True)
        return torch.autograd.grad(d.square().sum(), [x, *net.parameters()])

    with pytest.warns(UserWarning, match="clipping, which clips gradients, run through engine ref"):
        got = twice(lambda net, x: net(x)[0])
    torch.testing.assert_close(got, twice(clipped_by_torch))
    v = torch.randn_like(x)
    moved = jvp(lambda x: net(x)[0], (x.detach(),), (v,))[1]
    free = jvp(lambda x: clipped_by_torch(net, x), (x.detach(),), (v,))[1]
    torch.testing.assert_close(moved, free)
    torch.testing.assert_close(
        grad(lambda x: net(x)[0].sin().sum())(x.detach()),
        torch.autograd.grad(clipped_by_torch(net, x).sin().sum(), x)[0],
    )


def test_deer_says_why_it_clips_nothing():
    with pytest.raises(EngineError, match="clipping clips gradients: its backward is not a linear"):
        elman.Recurrent(clipping, 3, 5, engine="deer")(torch.randn(40, 1, 3))


@pytest.mark.usefixtures("as_users")
def test_straight_through_is_exact():
    """The value of one and the gradient of the other; of the other nothing is computed."""

    @cell(input="x[H]", state="h[H]", weights="a[H]")
    def quantised(x, h, a):
        v = a * x + 0.5 * h
        return straight_through(round(4 * v) / 4, sigmoid(v))

    pair = compiler.pair_of(quantised)
    assert "sigmoid" not in {value.op for value in pair.step.walk()}
    for engine in ("reference", "c"):
        torch.manual_seed(0)
        net = elman.Recurrent(quantised, 5, 5, engine=engine, dtype=F64)
        x = torch.randn(1, 2, 5, dtype=F64, requires_grad=True)
        output = net(x)[0]
        v = (net.a_l0 * x).detach()
        assert torch.equal(output.detach(), (4 * v).round() / 4)
        (d,) = torch.autograd.grad(output.sum(), x)
        s = v.sigmoid()
        torch.testing.assert_close(d, net.a_l0.detach() * s * (1 - s))


@pytest.mark.parametrize(
    ("text", "name", "parameters"),
    [
        ("sigmoid(slope=4)", "sigmoid", {"slope": 4.0}),
        ("triangular( height = 0.3, width=2e0 )", "triangular", {"height": 0.3, "width": 2.0}),
    ],
)
def test_parameters_of_a_surrogate_in_its_text(text, name, parameters):
    """One formula, so that an option of a cell can state them."""

    @cell(input="x[H]", state="h[H]")
    def written(x, h, *, surrogate="atan", parameters=()):
        return spike(x - h, surrogate, **dict(parameters))

    stated = written.with_options(surrogate=text)
    given = written.with_options(surrogate=name, parameters=tuple(parameters.items()))
    assert stated.fingerprint == given.fingerprint


def wrong(formula):
    @cell(input="x[H]", state="h[H]", weights="w[H]")
    def one(x, h, w):
        return formula(x, h, w)

    return one


WRONG = {
    "knows no surrogate 'fast'": lambda x, h, w: spike(h, "fast"),
    "takes no 'alpha' (it takes: slope)": lambda x, h, w: spike(h, alpha=2.0),
    "takes no 'height' (it takes: slope)": lambda x, h, w: spike(h, "sigmoid(height=2)"),
    "surrogate 'sigmoid(4)' cannot be read": lambda x, h, w: spike(h, "sigmoid(4)"),
    "surrogate 'atan(alpha=1' cannot be read": lambda x, h, w: spike(h, "atan(alpha=1"),
    "slope of surrogate 'sigmoid' must be a positive": lambda x, h, w: spike(
        h, "sigmoid(slope=nan)"
    ),
    "alpha of surrogate 'atan' must be a positive": lambda x, h, w: spike(h, "atan", alpha=-1.0),
    "has parameters twice": lambda x, h, w: spike(h, "sigmoid(slope=4)", slope=4.0),
    "of weights alone": lambda x, h, w: h * clip_gradient(2 * w, 1.0),
}


@pytest.mark.parametrize("what", WRONG)
def test_mistakes_are_told_at_their_line(what):
    with pytest.raises(TraceError) as error:
        _ = wrong(WRONG[what]).graph
    message, *where = str(error.value).splitlines()
    assert what in message  # not in the line that it quotes, which is WRONG's own
    assert "test_spikes.py" in where[0]


def test_spikes_are_drawn():
    """What flows back through a spike is what the surrogate says, not nothing."""
    told = elman.draw(spiking, input_size=3, hidden_size=5).svg
    assert "× d1<" in told  # as the backward step that explain prints calls it
    assert "no gradient" not in told


ODD = {  # beyond the pairs of test_other_derivatives: h' of x [H], m, h [H], s, w [H]
    "a scalar's spike": lambda x, m, h, s, w: (h * spike(s) + w * x, spike(s + m)),
    "a slope that is a number": lambda x, m, h, s, w: (spike(h + x, lambda v: 1.0) * w, s),
    "a slope that is a weight": lambda x, m, h, s, w: (spike(h + x, lambda v: w), s),
    "one inside another": lambda x, m, h, s, w: (
        straight_through(spike(h + x), spike(h, lambda v: spike(v + w, "sigmoid"))),
        sum(straight_through(round(h), clip_gradient(h * w, 0.1))),
    ),
    "the same value, seen and felt": lambda x, m, h, s, w: (
        spike(h + x) + (h + x > 0) * w + straight_through(h + x > 0, x),
        0.5 * s,
    ),
}


@pytest.mark.parametrize("name", ODD)
def test_stand_ins_of_any_rate_and_shape(name):
    """Values and every gradient are the oracle's, of steps one by one and all at once."""

    @cell(input="x[H], m", state="h[H], s", weights="w[H]")
    def odd(x, m, h, s, w):
        h, s = ODD[name](x, m, h, s, w)
        return h + 0 * x, s + 0 * m

    case = random_case(odd, Sizes(T=5, B=3, I=6, H=6), 4, F64)
    job = job_of(case)
    need("c", job)
    want = run(odd, case, "reference")
    assert_all_same(call(kernel_of(job, "c"), case), want, F64, case.T)
    if not odd.graph.clips:
        assert_all_same(run(odd, case, "deer"), want, F64, case.T)

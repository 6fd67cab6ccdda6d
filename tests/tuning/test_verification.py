"""No kernel runs before it agreed with the oracle, on any path; rounding refuses none."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch.func import grad

import elman
from elman import cells, ops
from elman.engines import registry
from elman.engines.call import Cotangents, Gradients, Result
from elman.errors import DisagreementError
from elman.nn.autograd.derived import derive
from elman.nn.execute.layer import Runner
from elman.ops import exp, relu, sigmoid, stop_gradient, tanh, where
from elman.tuning import verification
from elman.tuning.kernels import kernel_of
from elman.tuning.request import Request
from elman.tuning.rounding import near_ties, unsteady
from elman.tuning.trial import make_trial
from elman.tuning.verification import compile_verified
from helpers import OwnBackwardEngine, OwnBackwardKernel, Sizes, job_of, need, random_case, stand_in

SIZES = Sizes(4, 2, 3, 5)


class Spoilt(OwnBackwardKernel):
    """Wrong in one result."""

    def __init__(self, job, result):
        super().__init__(job)
        self.result = result

    def forward(self, call):
        output, last, saved = super().forward(call)
        if self.result == "output":
            output = output * 1.01
        if self.result == "last state":
            last = (last[0] + 0.01, *last[1:])
        return Result(output, last, saved)

    def backward(self, call, saved, cotangents, keep):
        if self.result == "cotangent of the last state":
            cotangents = Cotangents(cotangents.output, (None,) * len(cotangents.last))
        d_inputs, d_states, d_weights = super().backward(call, saved, cotangents, keep)
        if self.result == "gradient of a weight" and d_weights[0] is not None:
            d_weights = (d_weights[0] * 1.01, *d_weights[1:])
        if self.result == "gradient of the state":
            d_states = (torch.zeros_like(d_states[0]), *d_states[1:])
        if self.result == "gradient of the input" and d_inputs[0] is not None:
            d_inputs = (d_inputs[0].roll(1, 0), *d_inputs[1:])
        return Gradients(d_inputs, d_states, d_weights)


RESULTS = [
    "output",
    "last state",
    "gradient of a weight",
    "gradient of the state",
    "gradient of the input",
    "cotangent of the last state",
]


class SpoiltEngine(OwnBackwardEngine):
    def __init__(self, result):
        super().__init__()
        self.result = result

    def compile(self, job, schedule=None):
        return Spoilt(job, self.result)


@pytest.fixture(params=RESULTS)
def spoilt(request, monkeypatch, empty_cache):
    """An engine c that is wrong in one result."""
    stand_in(monkeypatch, SpoiltEngine(request.param))
    return request.param


def net(engine):
    torch.manual_seed(0)
    return elman.Recurrent(cells.mgu, 3, 5, engine=engine)


def test_a_named_engine_is_verified(spoilt):
    """It raises; before, with one schedule, it was believed."""
    with pytest.raises(DisagreementError, match="engine c cannot run mgu: it does not agree with"):
        net("c")(torch.randn(4, 2, 3, requires_grad=True))


@pytest.mark.parametrize("deterministic", [False, True])
def test_auto_is_verified_and_says_so(spoilt, deterministic, monkeypatch):
    """The oracle runs in its place, with one warning, also under deterministic algorithms."""
    monkeypatch.setattr(torch, "are_deterministic_algorithms_enabled", lambda: deterministic)
    with pytest.warns(UserWarning, match="mgu runs step by step.*c: does not agree with the ref"):
        net("auto")(torch.randn(4, 2, 3, requires_grad=True))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        out, _ = net("auto")(torch.randn(40, 2, 3, requires_grad=True))
    assert out.requires_grad


def test_a_pinned_choice_is_verified(spoilt):
    """A checkpoint names an engine; it is believed no more than a user."""
    case = random_case(cells.mgu, SIZES)
    runner = Runner(cells.mgu, case.dims)
    every = (1 << len((*cells.mgu.inputs, *cells.mgu.weights))) - 1
    shown = runner.show(Request(torch.float32, "cpu", every, True, 2, 1))
    reason = runner.pin(shown, {"engine": "c", "schedule": "", "plan": "0123"})
    assert reason is not None
    assert "does not agree" in reason


def test_what_is_derived_is_verified(spoilt, monkeypatch):
    """Second derivatives run on kernels of their own."""
    monkeypatch.setattr(SpoiltEngine, "fuses", True)
    derive.cache_clear()
    module = elman.Recurrent(cells.rnn, 3, 5, engine="aten", dtype=torch.float64)
    x = torch.randn(3, 2, 3, dtype=torch.float64)
    with pytest.raises(DisagreementError):
        grad(lambda x: grad(lambda x: module(x)[0].pow(3).sum())(x).square().sum())(x)
    derive.cache_clear()


def test_marks_are_kept_by_library(nothing_known, monkeypatch):
    """Another process compares nothing; another library is compared."""
    job = job_of(random_case(cells.mgu, SIZES))
    need("c", job)
    compared = []
    real = verification._find_error
    monkeypatch.setattr(verification, "_find_error", lambda *a: compared.append(a) or real(*a))

    def another_process():
        verification._verified.clear()
        compile_verified(job, "c", "one")

    another_process()
    another_process()
    assert len(compared) == 1
    monkeypatch.setattr(type(kernel_of(job, "c", "one")), "fingerprint", lambda self: "other")
    another_process()
    assert len(compared) == 2
    monkeypatch.setattr("elman.tuning.machine.__version__", "0.0.1")  # calls kernels in its own way
    another_process()
    assert len(compared) == 3


@elman.cell(input="x[I]", state="s[H], m[H]", weights="W[H, I], R[H, H], b[H]")
def spiking(x, s, m, W, R, b):
    """Leaky integration, a threshold with a straight-through derivative, a reset."""
    m = 0.9 * m + W @ x + R @ s + b - 0.5 * s
    soft = sigmoid(4 * (m - 0.5))
    return (m > 0.5) + soft - stop_gradient(soft), m


@elman.cell(input="x[I]", state="h[H]", weights="W[H, I], R[H, H]")
def kinked(x, h, W, R):
    """relu, abs, where, minimum."""
    a = W @ x + R @ h
    return tanh(where(a, relu(a) - 0.1 * abs(a), a) * 2) * (a > -0.3)


@pytest.mark.slow
@pytest.mark.parametrize("H", [5, 64, 700])
@pytest.mark.parametrize("own", [spiking, kinked])
def test_thresholds_refuse_nothing(own, H, nothing_known, monkeypatch):
    """A unit that rounding sends to the other side is no error."""
    job = job_of(random_case(own, Sizes(4, 2, 20, H)))
    need("c", job)
    for more in (0, 100, 200):

        def seeded(job, T, B, seed=0, ends=False, more=more):
            return make_trial(job, T, B, seed + more, ends)

        monkeypatch.setattr(verification, "make_trial", seeded)
        assert verification._find_error(job, kernel_of(job, "c")) is None


def test_near_ties_are_found():
    """A sample within rounding of a threshold is left out; one exactly on it is not."""

    @elman.cell(input="x[H]", state="h[H]")
    def over(x, h):
        return 0 * h + (x > 0.25)

    trial = make_trial(job_of(random_case(over, Sizes(3, 5, 4, 4))), 3, 5).double()
    assert not near_ties(trial).any()
    trial.call.inputs[0][1, 2, 3] = 0.25 + 1e-8
    trial.call.inputs[0][2, 3, 0] = 0.25
    assert near_ties(trial).tolist() == [False, False, True, False, False]


JUMPS = {  # function -> where it jumps, in x
    "floor": (lambda x: ops.floor(4 * x), 0.25),
    "round": (round, 0.5),
    "remainder": (lambda x: x % 0.25, 0.75),
    "remainder of a number": (lambda x: 1 % x, 0.5),
}


@pytest.mark.parametrize("name", JUMPS)
def test_near_jumps_are_found(name):
    """Functions with steps: a sample within rounding of one is left out."""
    own, jump = JUMPS[name]

    @elman.cell(input="x[H]", state="h[H]")
    def stepping(x, h):
        return 0 * h + own(x)

    trial = make_trial(job_of(random_case(stepping, Sizes(3, 5, 4, 4))), 3, 5).double()
    trial.call.inputs[0].fill_(0.15)
    assert not near_ties(trial).any()
    trial.call.inputs[0][1, 2, 3] = jump + 1e-8
    trial.call.inputs[0][2, 3, 0] = jump
    assert near_ties(trial).tolist() == [False, False, True, False, False]


@pytest.mark.parametrize("name", ["amax", "hardmax"])
@pytest.mark.parametrize("groups", [1, 2])
def test_near_ties_of_the_largest_are_found(name, groups):
    """A sample whose two largest units of a group are within rounding of each other."""

    @elman.cell(input="x[H]", state="h[H]")
    def largest(x, h):
        found = getattr(elman.ops, name)(x, groups=groups)
        return 0 * h + (elman.ops.spread(found, h) if name == "amax" else found)

    trial = make_trial(job_of(random_case(largest, Sizes(3, 5, 4, 4))), 3, 5).double()
    assert not near_ties(trial).any()
    trial.call.inputs[0][1, 2] = torch.tensor([4.0, 4.0 + 1e-8, 1.0, 2.0], dtype=torch.float64)
    trial.call.inputs[0][2, 3] = torch.tensor([3.0, 3.0, 1.0, 2.0])
    assert near_ties(trial).tolist() == [False, False, True, False, False]


def test_small_numbers_are_not_near_ties_of_one_another():
    """tanh(h) - h is small, but known to as many bits as h is: what rounding moves is near."""

    @elman.cell(input="x[H]", state="h[H]")
    def barely(x, h):
        return 0.5 * h + (tanh(h) - h > 0) + x

    trial = make_trial(job_of(random_case(barely, Sizes(1, 17, 40, 40))), 1, 17).double()
    trial.call.states[0][:] = trial.call.states[0].sign() * (0.02 + 0.1 * trial.call.states[0] ** 2)
    trial.call.states[0][3, 7] = 1e-4
    assert near_ties(trial).nonzero().flatten().tolist() == [3]


@elman.cell(input="x[H]", state="h[H]")
def rounding(x, h):
    """Rounds x in float32, and nothing in float64."""
    return (x + 12582912.0) - 12582912.0 + 0 * h


@elman.cell(input="x[H]", state="h[H]", weights="a[H]")
def cancelling(x, h, a):
    """The gradient of a is what is left of large numbers."""
    return (1e4 * a + x) - 1e4 * a + 0.5 * h


@elman.cell(input="x[H]", state="h[H]", weights="R[H, H]")
def chaotic(x, h, R):
    """Rounding errors grow in every step."""
    return tanh(60 * (R @ h) + x)


@elman.cell(input="x[H]", state="h[H]", weights="s")
def undecided(x, h, s):
    """Rounding decides at every unit; the gradient of s is nothing but rounding."""
    return 0.5 * h + 1e-5 * ((0.1 * x + 0.2 * x) - 0.3 * x > 0) + s / (10 * s) * x


@elman.cell(input="x[H]", state="h[H]")
def exploding(x, h):
    """Cotangents grow in every step, and cancel in the gradient of x."""
    return 10 * exp(h) - 9 * x / x


_LOSING = [rounding, cancelling, chaotic, undecided, exploding]


@pytest.mark.parametrize("own", _LOSING)
def test_what_float32_loses_refuses_nothing(own, nothing_known):
    job = job_of(random_case(own, Sizes(4, 2, 40, 40)))
    need("c", job)
    verification._verified.clear()
    compile_verified(job, "c")


def test_cotangents_are_rounded():
    """The gradient of s / s is 0, but for the rounding of the two terms that it is a sum of."""

    @elman.cell(input="x[H]", state="h[H]", weights="s")
    def one(x, h, s):
        return s / s * x + 0.5 * h

    trial = make_trial(job_of(random_case(one, Sizes(4, 2, 5, 5))), 3, 5).double()
    exact = trial.run(kernel_of(trial.job, "reference"))["gradient of s"]
    lost = (trial.run(unsteady(trial.job))["gradient of s"] - exact).abs().item()
    eps = torch.finfo(getattr(torch, trial.job.spec.dtype)).eps
    assert trial.cotangents.output is not None
    term = (trial.cotangents.output * trial.call.inputs[0]).sum() / trial.call.weights[0]
    assert 1e-3 * eps < lost < 4 * eps * term.abs().item()


def test_a_fall_back_is_named_with_its_reason(monkeypatch):
    """A cell that no engine can run: it runs, and says how."""
    monkeypatch.setattr(registry.find("c"), "supports", lambda job: "there is no compiler")
    module = elman.Recurrent(cells.lem, 3, 5)
    with pytest.warns(UserWarning, match="lem runs step by step on engine reference.*no compiler"):
        module(torch.randn(3, 2, 3))

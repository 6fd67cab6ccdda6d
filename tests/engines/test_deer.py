"""All steps at once: scans, Jacobians, solvers, convergence checks, gradients, and the fallback."""

from __future__ import annotations

import functools
import math
import warnings
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.func import jvp

import elman
from calls import backward, forward, given_of
from elman import cells, compiler, ops
from elman.autodiff.structure import Degree, structure
from elman.engines import registry
from elman.engines.c.kernels import scans as c_scans
from elman.engines.deer import solvers
from elman.engines.deer.convergence import TOLERANCES, disagreement, refusal, residual
from elman.engines.deer.problem import Formula, Problem
from elman.engines.deer.scans import Dense, Units, associative, linear, scan
from elman.engines.deer.sequential import run_sequentially
from elman.engines.deer.solvers import BUDGET, METHODS, solve
from elman.errors import EngineError, InputError, ShapeError
from elman.tuning.kernels import candidates, kernel_of
from helpers import (
    Sizes,
    assert_all_same,
    assert_close,
    assert_same,
    job_of,
    need_engine,
    oracle,
    random_case,
    run,
)
from library_sizes import VECTORS, sizes_of
from products import some_of
from scripts import run_script
from unseen import UNSEEN

every_cell = pytest.mark.parametrize("cell", [*cells.CORE, *UNSEEN])
ODD = (1, 2, 3, 17)


def problem_of(cell, T=40, dtype=torch.float64, B=3, seed=0):
    case = random_case(cell, UNSEEN.get(cell, Sizes(T=T, B=B, I=5, H=7)), seed, dtype)
    return Problem(Formula(job_of(case)), case.inputs, case.states, case.weights)


def in_loop(algebra, A, b, y0):
    found = []
    for t in range(b.shape[0]):
        y0 = algebra.of_vector(A[t], y0) + b[t]
        found.append(y0)
    return torch.stack(found)


def drawn(algebra, T, N, dtype=torch.float64):
    n = algebra.n
    units = isinstance(algebra, Units)
    A = torch.randn(T, *((n, n, N) if units else (N, n, n)), dtype=dtype) / math.sqrt(n)
    b = torch.randn(T, *((n, N) if units else (N, n)), dtype=dtype)
    return A, b, torch.randn(b.shape[1:], dtype=dtype)


@settings(deadline=None)
@given(
    algebra=st.one_of(
        st.builds(Units, st.integers(1, 8)), st.builds(Dense, st.sampled_from([1, 3, 8, 17, 33]))
    ),
    T=st.one_of(st.integers(1, 70), st.sampled_from([513, 1025])),
    N=st.sampled_from([1, 2, 5, 16, 37]),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
def test_scans(algebra, T, N, dtype):
    """By torch ops and by the device's own: what a loop gives."""
    A, b, y0 = drawn(algebra, T, N, dtype)
    A = A * 0.9
    want = in_loop(algebra, A.double(), b.double(), y0.double())
    limit = (2e-5 if dtype is torch.float32 else 1e-12) * max(1.0, float(want.abs().max()))
    for found in (associative(algebra, A, b, y0), scan(algebra, A, b, y0)):
        assert found.dtype == dtype
        assert float((found - want).abs().max()) <= limit


def test_time_is_shared_between_threads(monkeypatch):
    """Few channels and many steps: pieces of time, the same numbers for any number of them."""
    native = registry.scans("cpu")
    A, b, y0 = drawn(Units(1), 20011, 3)
    A = torch.sigmoid(A)
    want = in_loop(Units(1), A, b, y0)
    for count in (1, 2, 3, 5):
        monkeypatch.setattr("elman.engines.c.kernels.scans.threads", lambda count=count: count)
        found = native.forward(A, b, y0, True)
        if found is None:
            pytest.skip("no C compiler")
        assert_close(found, want, "step")


@pytest.mark.parametrize("algebra", [Units(1), Units(2), Units(3), Dense(1), Dense(4)])
@pytest.mark.parametrize("T", [1, 2, 9, 14])
def test_scans_have_gradients(algebra, T):
    """First and second derivatives."""
    given = [value.requires_grad_() for value in drawn(algebra, T, 2)]
    assert torch.autograd.gradcheck(lambda *a: linear(algebra, *a), given)
    if T < 14:
        assert torch.autograd.gradgradcheck(lambda *a: linear(algebra, *a), given)


@given(
    algebra=st.one_of(st.builds(Units, st.integers(1, 9)), st.builds(Dense, st.integers(1, 9))),
    T=st.integers(1, 40),
    N=st.sampled_from([1, 2, 5, 16, 37]),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
def test_gradients_of_scans(algebra, T, N, dtype):
    """The device's own backward: what a loop's derivatives are, for any number of channels."""
    given = [value * 0.9 for value in drawn(algebra, T, N, dtype)]
    d = torch.randn_like(given[1])
    ours, theirs = ([value.clone().requires_grad_() for value in given] for _ in range(2))
    got = torch.autograd.grad(linear(algebra, *ours), ours, d)
    want = torch.autograd.grad(in_loop(algebra, *theirs), theirs, d)
    for name, a, b in zip(("dA", "db", "dy0"), got, want, strict=True):
        assert_same(name, a, b, dtype, T)


@pytest.mark.parametrize("mistake", ["wrong", "broken"])
def test_scans_that_compute_something_else_do_not_run(monkeypatch, mistake):
    """Told once, in words; torch's operations take their place."""
    plain = c_scans.file

    def text(name):
        told = plain(name)
        return told.replace("+= ", "-= ") if mistake == "wrong" else f"{told}\n#error broken\n"

    monkeypatch.setattr(c_scans, "file", text)
    c_scans._library.cache_clear()
    try:
        algebra = Dense(3)
        A, b, y0 = drawn(algebra, 30, 4, torch.float32)
        with pytest.warns(UserWarning, match="linear recurrences run in torch's operations"):
            found = scan(algebra, A, b, y0)
        torch.testing.assert_close(found, in_loop(algebra, A, b, y0))
    finally:
        c_scans._library.cache_clear()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_linear_scan(dtype):
    """Channels of any shape, matrices, no start; a loop's values."""
    for T in (*ODD, 100):
        a, b, y0 = (torch.rand(*lead, 2, 3, dtype=dtype) for lead in ((T,), (T,), ()))
        want = in_loop(Units(1), a.view(T, 1, 1, 6), b.view(T, 1, 6), y0.view(1, 6))
        torch.testing.assert_close(elman.linear_scan(a, b, y0), want.view(T, 2, 3))
        M = torch.randn(T, 2, 3, 3, dtype=dtype) / 2
        want = in_loop(Dense(3), M, b, torch.zeros(2, 3, dtype=dtype))
        torch.testing.assert_close(elman.linear_scan(M, b), want)


def test_linear_scan_refuses():
    """Shapes and dtypes that do not fit."""
    b = torch.randn(4, 3)
    for a, y0 in ((torch.randn(4, 2), None), (torch.randn(5, 3), None), (b, torch.randn(2))):
        with pytest.raises(ShapeError, match="linear_scan"):
            elman.linear_scan(a, b, y0)
    with pytest.raises(InputError, match="same dtype"):
        elman.linear_scan(b.double(), b)
    assert elman.linear_scan(b[:0], b[:0]).shape == (0, 3)


@every_cell
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_jacobians(cell):
    """Their product with a direction is the directional derivative; nothing outside the pattern."""
    problem = problem_of(cell)
    if problem.formula.pair.derived:
        pytest.skip("values of its step have other derivatives than their own")
    rows = slice(0, problem.steps)
    y = tuple(torch.randn(problem.steps, *s.shape, dtype=s.dtype) for s in problem.start)
    v = tuple(torch.randn_like(part) for part in y)
    if not y:
        return
    _, want = jvp(lambda *given: problem.values(given, rows), y, v)
    _, J = problem.linearised(y, rows)
    for algebra, matrix, part, expected in zip(problem.algebras, J, v, want, strict=True):
        torch.testing.assert_close(algebra.of_vector(matrix, part), expected, atol=1e-9, rtol=1e-7)


ONE_PRODUCT_ON_EACH_WAY = [cells.rnn, cells.gru, cells.lstm, cells.lstm_peephole]


@pytest.mark.parametrize("cell", ONE_PRODUCT_ON_EACH_WAY)
@pytest.mark.parametrize("heads", [1, 2])
def test_jacobians_within_units(cell, heads):
    """Two backward steps of an LSTM give what lies within units of a Jacobian of 2H rows."""
    case = random_case(cell.with_heads(heads), Sizes(T=9, B=3, I=4, H=6), 0, torch.float64)
    problem = Problem(Formula(job_of(case)), case.inputs, case.states, case.weights)
    view = problem.unitwise()
    assert view is not None
    y = tuple(torch.randn(9, *part.shape, dtype=torch.float64) for part in view.start)
    values, (within,) = view.linearised(y, slice(0, 9))
    whole_values, (whole,) = problem.linearised(problem.repacked(y), slice(0, 9))
    torch.testing.assert_close(problem.repacked(values), whole_values)
    (group,) = problem.state_groups
    k, units = len(group.widths), group.widths[0]
    blocks = whole.unflatten(-1, (k, units)).unflatten(-3, (k, units))  # [T, N, k, U, k, U]
    own = blocks.diagonal(dim1=3, dim2=5)  # [T, N, k, k, U]
    want = own.permute(0, 2, 3, 1, 4).flatten(3)
    torch.testing.assert_close(within, want)
    assert view.row_bytes * units == problem.row_bytes


@pytest.mark.parametrize("heads", [1, 2])
@pytest.mark.parametrize(
    "cell, behind", [*((cell, 0) for cell in ONE_PRODUCT_ON_EACH_WAY), (cells.gru_before, 1)]
)
def test_rows_begin_where_units_mix(cell, heads, behind):
    """A product costs n² of a step, not n³, unless another one lies before it on the way back."""
    case = random_case(cell.with_heads(heads), Sizes(T=1, B=1, I=4, H=6))
    mixing = Formula(job_of(case)).mixing
    assert sum(value.op == "matmul" for value in mixing.nodes) == behind * heads
    products = [one.product for one in mixing.scaled.values()]
    assert any(product is not None for product in products)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("scale", [1.0, 0.5])
def test_jacobians_that_are_not_finite(bad, scale):
    """NaN counts as 0 and an infinity as a large number, wherever in a Jacobian they are."""
    algebra = Dense(3)
    J, f, y0 = drawn(algebra, 5, 2)
    y = torch.randn_like(f)
    J[3, 1, 0, 2] = bad
    f[1, 0, 1] = math.nan
    problem = SimpleNamespace(algebras=(algebra,))
    (found,) = solvers._solved(problem, METHODS["damped"], scale, (f,), (J,), (y,))
    J, f = torch.nan_to_num(J, 0.0, 1e8, -1e8), torch.nan_to_num(f)
    want = y + in_loop(algebra, scale * J, f - y, torch.zeros_like(y0))
    torch.testing.assert_close(found, want)
    assert bool(found.isfinite().all())


def test_nothing_is_left_of_sums_over_units():
    """A normalisation within a unit is no map of that unit alone; sizes that differ have none."""
    problem = problem_of(cells.lstm_layernorm)
    view = problem.unitwise()
    assert view is not None
    y = tuple(part.expand(3, *part.shape) for part in view.start)
    assert all(bool(part.isfinite().all()) for part in view.linearised(y, slice(0, 3))[1])
    assert problem_of(cells.mingru).unitwise() is None, "no unit reaches another"


def test_structure_of_the_library():
    """What each cell's recurrence looks like, in the words that explain prints."""
    told = {}
    for cell in cells.CORE:
        step = compiler.pair_of(cell).step
        told[cell.name] = structure(step).show(tuple(leaf.name for leaf in step.states))
    assert told["gru"] == "dense (h); nonlinear in the state"
    assert told["lstm"] == "dense (h, c); nonlinear in the state"
    assert told["indrnn"] == told["paragru"] == "diagonal (h); nonlinear in the state"
    assert told["sru"] == "diagonal (c); nonlinear in the state"
    assert told["paralstm"] == "diagonal in blocks of 2 (h, c); nonlinear in the state"
    assert told["mingru"] == told["minlstm"] == "diagonal (h); linear in the state"
    assert told["lru"] == "diagonal in blocks of 2 (p, q); linear in the state"


def test_structure_of_odd_cells():
    """No recurrence; a delay; a scalar that all units see; a sum; linear but dense."""
    ops = elman.ops

    def found(f, **kw):
        return structure(compiler.pair_of(elman.cell(**kw)(f)).step)

    none = found(lambda x, h, W: ops.tanh(W @ x), input="x[I]", state="h[H]", weights="W[H, I]")
    assert none.recurrent == ()
    assert none.degree == Degree.CONSTANT
    delay = found(
        lambda x, h, s, W: (ops.tanh(0.5 * h + s), W @ x),
        input="x[I]",
        state="h[H], s[H]",
        weights="W[H, I]",
    )
    assert delay.recurrent == (0, 1)
    assert delay.diagonal
    scalar = found(
        lambda x, h, s, W: (W @ x + s * h, 0.9 * s),
        input="x[I]",
        state="h[H], s",
        weights="W[H, I]",
    )
    assert not scalar.diagonal
    assert scalar.degree == Degree.NONLINEAR
    summed = found(
        lambda x, h, W: W @ x + ops.mean(h), input="x[I]", state="h[H]", weights="W[H, I]"
    )
    assert not summed.diagonal
    assert summed.degree == Degree.LINEAR
    dense = found(
        lambda x, h, W, R: W @ x + R @ h, input="x[I]", state="h[H]", weights="W[H, I], R[H, H]"
    )
    assert not dense.diagonal
    assert dense.degree == Degree.LINEAR


ENGINES = ["deer", "scan-backward"]


@pytest.mark.parametrize(
    "cell, engine, dtype",
    [
        pytest.param(*values.values, dtype, marks=values.marks)
        for values in some_of([*cells.CORE, *UNSEEN], ENGINES, together=1)
        for dtype in (torch.float64, torch.float32)
    ],
)
def test_agreement(cell, engine, dtype):
    """Outputs, last states and every gradient are the oracle's, at odd lengths too."""
    for T in (1, 2, 17) if dtype is torch.float64 else (17,):
        sizes = UNSEEN.get(cell, Sizes(T=T, B=3, I=5, H=7))
        case = random_case(cell, sizes, 1, dtype)
        want, got = oracle(case), run(cell, case, engine)
        for name, value in want.items():
            assert_same(name, got[name], value, dtype, sizes.T)
        if cell in UNSEEN:
            break


@elman.cell(input="x[I]", state="h[H], u", weights="W[H, I], R[H, H], p[H]")
def skipping(x, h, u, W, R, p):
    """A scalar state decides on a vector, and follows it."""
    h = u * ops.tanh(W @ x + R @ h) + (1 - u) * h
    return h, ops.sigmoid(ops.sum(p * h) + u)


@pytest.mark.parametrize("engine", ["deer", "scan-backward"])
@pytest.mark.parametrize("layers", [1, 2])
def test_scalar_states_of_a_module(engine, layers):
    """One layer hands its kernel states with an axis of layers, several layers without."""
    nets = [
        elman.Recurrent(skipping, 5, 7, layers, engine=name, dtype=torch.float64)
        for name in ("reference", engine)
    ]
    nets[1].load_state_dict(nets[0].state_dict())
    x = torch.randn(17, 3, 5, dtype=torch.float64)
    start = torch.rand(layers, 3, 7).double(), torch.rand(layers, 3).double()
    found = []
    for net in nets:
        out, last = net(x, start)
        torch.autograd.backward([out, *last], [torch.ones_like(v) for v in (out, *last)])
        found.append([out, *last, *(weight.grad for weight in net.parameters())])
    for want, got in zip(*found, strict=True):
        assert_close(got, want)


@pytest.mark.parametrize("cell", [cells.gru, cells.lstm, cells.paralstm, cells.lem, cells.sru])
@pytest.mark.parametrize("solver", METHODS)
def test_solvers(cell, solver):
    """Each finds the trajectory of the steps run sequentially."""
    problem = problem_of(cell, T=300)
    found = solve(problem, (solver,))
    assert found.solver == solver, found.tried
    want = run_sequentially(problem)
    for a, b in zip(found.y, want, strict=True):
        assert_close(a, b)


def test_linear_cells_need_one_iteration():
    """One scan is the answer."""
    for cell in (*cells.LINEAR, cells.li):
        assert solve(problem_of(cell, T=500), ("newton",)).iterations == 1


def test_iterations_of_an_untrained_gru():
    """At most 10 at T = 10 000 (the authors report fewer than 20)."""
    torch.manual_seed(0)
    net = torch.nn.GRUCell(4, 8)
    told = []
    with torch.no_grad():
        x = torch.randn(10_000, 2, 4)
        elman.deer(lambda y, x: net(x, y), torch.zeros(2, 8), x, report=told.append)
    assert told[0].solver == "newton"
    assert told[0].iterations <= 10


def chaotic(scale=6.0, H=8, T=200, dtype=torch.float64):
    """A recurrence whose trajectories part exponentially."""
    torch.manual_seed(0)
    case = random_case(cells.rnn, Sizes(T=T, B=2, I=3, H=H), 0, dtype)
    case.weights["R"].mul_(scale)
    return case


@pytest.mark.parametrize("scale", [3.0, 6.0, 30.0])
def test_chaos_never_yields_an_unconverged_result(scale, monkeypatch):
    """It warns once, and every step of the answer satisfies the recurrence."""
    case = chaotic(scale)
    kernel = registry.find("deer").compile(job_of(case), "newton")
    given = given_of(case)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for _ in range(2):
            out, _, _ = forward(kernel, given)
    problem = Problem(Formula(job_of(case)), case.inputs, case.states, case.weights)
    h = torch.cat((case.states["h"][None], out[:-1]))
    again = problem.values((h,), slice(0, problem.steps))[0]
    assert float((again - out).abs().max()) < 1e-12
    assert kernel.calls == 2
    assert len(told) == (1 if kernel.fallbacks else 0)
    if scale > 5:
        assert kernel.fallbacks == 2


def test_the_gates_refuse():
    """A wrong step, a NaN, and a residual that hides a drift."""
    problem = problem_of(cells.gru, T=100)
    y = run_sequentially(problem)
    assert refusal(problem, y, torch.float64, BUDGET) is None
    wrong = (y[0].clone(),)
    wrong[0][50, 0, 3] += 1e-6
    values = [residual(problem, wrong, budget) for budget in (1, BUDGET)]
    assert values == pytest.approx([1e-6] * 2)
    assert "residual" in (refusal(problem, wrong, torch.float64, BUDGET) or "")
    wrong[0][50, 0, 3] = math.nan
    assert "residual nan" in (refusal(problem, wrong, torch.float64, BUDGET) or "")
    drift = (y[0] + 1e-6 * torch.arange(100, dtype=torch.float64)[:, None, None],)
    assert disagreement(problem, drift) > TOLERANCES[torch.float64].agreement


def test_nan_in_the_data_reaches_the_output():
    """As in a sequential run, without a warning; NaN inside iterates does not."""
    case = random_case(cells.gru, Sizes(T=30, B=2, I=3, H=4), 0, torch.float64)
    case.inputs["x"][10, 1] = math.nan
    given = given_of(case)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        out, _, _ = forward(kernel_of(job_of(case), "deer"), given)
    assert out[:10].isfinite().all()
    assert out[:, 0].isfinite().all()
    assert out[10:, 1].isnan().all()


def test_windows_bound_memory():
    """Long sequences in windows of a budget: the same values and gradients."""
    case = random_case(cells.gru, Sizes(T=257, B=2, I=3, H=5), 0, torch.float64)
    kernel = registry.find("deer").compile(job_of(case))
    given = given_of(case)
    out, last, saved = forward(kernel, given)
    d = [torch.randn_like(out), [torch.randn_like(last[0])]]
    grads = backward(kernel, given, saved, *d, keep=True)
    problem = Problem(kernel.formula, case.inputs, case.states, case.weights)
    kernel.budget = 10 * problem.row_bytes
    again = forward(kernel, given)
    assert_close(again[0], out, "step")
    for a, b in zip(grads, backward(kernel, given, saved, *d, keep=True), strict=True):
        assert_close(a, b)


def test_falls_back_to_torch_ops_without_a_compiler(monkeypatch):
    """Where engine c cannot run, sequential steps are torch ops."""
    monkeypatch.setattr("elman.engines.deer.sequential.sequential_kernel", lambda job: None)
    monkeypatch.setattr("elman.errors._warned", {"deer rnn"})
    case = chaotic(20.0)
    kernel = registry.find("deer").compile(job_of(case), "newton")
    given = given_of(case)
    out, _, _ = forward(kernel, given)
    want, _, _ = forward(kernel_of(job_of(case), "reference"), given)
    assert kernel.fallbacks == 1
    torch.testing.assert_close(out[:20], want[:20], atol=1e-9, rtol=1e-6)


def test_schedules_where_no_loop_is_compiled(monkeypatch):
    """The solver with few backward steps is measured beside Newton's, if Jacobians are large."""
    deer = registry.find("deer")
    monkeypatch.setattr("elman.engines.deer.engine._compiled", lambda job: False)
    large, small = (
        job_of(random_case(cells.gru, Sizes(T=40, B=2, I=3, H=H), 0, torch.float32))
        for H in (16, 4)
    )
    assert deer.schedules(large, 40, 2) == ("", "quasi+newton+damped+windowed")
    assert deer.schedules(small, 40, 2) == ("",)
    assert registry.find("scan-backward").schedules(large, 40, 2) == ("",)
    for schedule in deer.schedules(large, 40, 2):
        deer.compile(large, schedule)


def test_schedules_are_solvers():
    """Unknown ones are refused; auto does not measure what has no chance."""
    job = job_of(random_case(cells.gru, Sizes(T=2, B=2, I=3, H=100)))
    for engine, schedule in (("deer", "steepest"), ("scan-backward", "newton")):
        with pytest.raises(EngineError):
            kernel_of(job, engine, schedule)
    able, refusals = candidates(job, ("aten", "deer", "scan-backward"), 1000, 4)
    assert [name for name, _ in able] == ["aten"]
    assert "100 x 100" in refusals["deer"]
    assert candidates(job, ("deer",), 1000, 4)[0] == [("deer", "")]


class TestFunction:
    def test_second_derivatives_are_refused(self):
        """They would be those of fixed Jacobians."""
        x = torch.randn(9, 2, 3, dtype=torch.float64, requires_grad=True)
        y = elman.deer(lambda y, x: torch.tanh(y + x), torch.zeros(2, 3, dtype=torch.float64), x)
        torch.autograd.grad(y.sum(), x, retain_graph=True)
        with pytest.raises(EngineError, match="first derivatives alone"):
            torch.autograd.grad(y.sum(), x, create_graph=True)

    """elman.deer on any torch function."""

    @staticmethod
    def loop(step, y0, x):
        found = []
        for row in x:
            y0 = step(y0, row)
            found.append(y0)
        return torch.stack(found)

    @pytest.mark.parametrize("T", [1, 2, 17, 200])
    def test_a_module(self, T):
        """Values, and gradients of input, start and parameters."""
        torch.manual_seed(0)
        net = torch.nn.GRUCell(3, 6).double()
        x = torch.randn(T, 4, 3, dtype=torch.float64, requires_grad=True)
        y0 = torch.randn(4, 6, dtype=torch.float64, requires_grad=True)

        def step(y, x):
            return net(x, y)

        y, want = elman.deer(step, y0, x), self.loop(step, y0, x)
        assert_close(y, want, "step")
        dy, leaves = torch.randn_like(y), [x, y0, *net.parameters()]
        for a, b in zip(torch.autograd.grad(y, leaves, dy), torch.autograd.grad(want, leaves, dy)):
            assert_close(a, b)

    def test_gradcheck(self):
        """Against finite differences, windows included, unbatched."""
        x = torch.randn(7, 3, dtype=torch.float64, requires_grad=True)
        y0 = torch.randn(3, dtype=torch.float64, requires_grad=True)
        for budget in (1 << 20, 1000):
            solved = functools.partial(
                elman.deer, lambda y, x: torch.tanh(0.9 * y.roll(1, -1) + x), budget=budget
            )
            assert torch.autograd.gradcheck(solved, (y0, x))

    def test_several_inputs_and_guesses(self):
        """A tuple of inputs; an earlier trajectory as the guess needs fewer iterations."""
        x, m = torch.randn(60, 2, 3), torch.rand(60, 2, 1)
        told = []

        def step(y, x):
            v, gate = x
            return torch.tanh(v + gate * y.roll(1, -1))

        y = elman.deer(step, torch.zeros(2, 3), (x, m), report=told.append)
        elman.deer(step, torch.zeros(2, 3), (x, m), guess=y, report=told.append)
        elman.deer(step, torch.zeros(2, 3), (x, m), guess="zeros", report=told.append)
        assert told[1].iterations == 0 < told[0].iterations <= told[2].iterations + 1

    def test_chaos(self):
        """Run sequentially, with a warning that says what was tried."""
        torch.manual_seed(0)
        W = torch.randn(8, 8, dtype=torch.float64) * 3
        x, y0 = torch.randn(150, 2, 8, dtype=torch.float64), torch.randn(2, 8, dtype=torch.float64)
        told = []

        def step(y, x):
            return torch.tanh(y @ W + x)

        with pytest.warns(UserWarning, match="newton: .*residual"):
            y = elman.deer(step, y0, x, solver="newton", report=told.append)
        assert told[0].solver == "sequential"
        before = torch.cat((y0[None], y[:-1]))
        assert_close(y, torch.tanh(before @ W + x), "step")

    def test_refusals(self):
        """Every wrong argument is named."""
        x, y0 = torch.randn(5, 2, 3), torch.zeros(2, 3)

        def step(y, x):
            return y + x

        for kind, wrong, match in (
            (InputError, {"y0": y0.long()}, "float32 or float64"),
            (InputError, {"solver": "magic"}, "no solver 'magic'"),
            (InputError, {"guess": "best"}, "guess"),
            (InputError, {"x": "text"}, "tensor"),
            (ShapeError, {"y0": torch.zeros(1, 2, 3)}, "y0 must be"),
            (ShapeError, {"x": torch.randn(5, 3, 3)}, "x is"),
            (ShapeError, {"x": x[:0]}, "no steps"),
            (ShapeError, {"guess": y0}, "guess"),
            (ShapeError, {"step": lambda y, x: y[:, :2]}, "must return"),
            (InputError, {"x": x + 1j}, "x is torch.complex64; it must be real"),
        ):
            arguments = {"step": step, "y0": y0, "x": x, **wrong}
            with pytest.raises(kind, match=match):
                elman.deer(**arguments)


def long_run(cell, T, dtype=torch.float64):
    """Output, last states and gradients at a long T: engine c judges, the oracle judges it."""
    case = random_case(cell, Sizes(T=T, B=2, I=3, H=4), 3, dtype)
    return run(cell, case, "c"), run(cell, case, "deer")


def assert_long(want, got, T):
    for name, value in want.items():
        assert_same(name, got[name], value, torch.float64, T)


@pytest.mark.slow
@pytest.mark.parametrize(
    "cell, T",
    some_of(
        [cells.gru, cells.lstm, cells.paragru, cells.mingru, cells.lru],
        [2001, 8000, 16_323],
        together=1,
    ),
)
def test_long_sequences(cell, T):
    """Odd and even lengths, in windows where memory asks for them."""
    need_engine("c")
    assert_long(*long_run(cell, T), T)


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("T", [33_753, 100_000])
@pytest.mark.parametrize("cell", [c for c in cells.CORE if c is not cells.indrnn])
def test_very_long_sequences(cell, T):
    """The lengths of raw recordings; relu units whose weight is above 1 would grow without end."""
    need_engine("c")
    assert_long(*long_run(cell, T), T)


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_memory_is_bounded(tmp_path):
    """Dense Jacobians of T = 100 000, n = 32, B = 16 would take 6 GiB; windows take the budget."""
    text = (
        "import resource, torch, elman\n"
        "from elman import cells, compiler\n"
        "from elman.engines.deer.solvers import IN_CACHE\n"
        "from calls import forward\n"
        "from elman.plan.spec import Spec\n"
        "from elman.tuning.kernels import kernel_of\n"
        "torch.manual_seed(0)\n"
        "x = torch.randn(100_000, 16, 32)\n"
        "spec = Spec((('H', 32), ('I', 32)), training=False)\n"
        "kernel = kernel_of(compiler.job(cells.gru, spec), 'deer')\n"
        "w = [torch.randn(s) / 8 for s in ((96, 32), (96, 32), (96,), (96,))]\n"
        "run = lambda x: forward(kernel, ([x], [torch.zeros(16, 32)], w))\n"
        "run(x[:100])\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024\n"
        "run(x)\n"
        "more = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before\n"
        "assert kernel.fallbacks == 0, kernel.last.tried\n"
        "arrays = 5 * x.nbytes  # states, outputs and their pieces: they grow with T\n"
        "print(more, IN_CACHE, arrays)\n"
        "assert more < 2 * IN_CACHE + arrays\n"
    )
    run_script(text, tmp_path, 3000)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:engine deer ran:UserWarning")  # one may run in sequence
@pytest.mark.parametrize("cell", [cell for cell in VECTORS if cell not in cells.CORE])
def test_the_rest_of_the_library(cell):
    """Output, last states and every gradient of cells with constants, times, spikes, groups."""
    case = random_case(cell, sizes_of(cell, 10, 3), 0, torch.float64)
    assert_all_same(run(cell, case, "deer"), oracle(case), case.dtype, case.T)

"""Newton's iteration in kernels, beside the same by torch ops."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from elman import cell, cells
from elman.engines import registry
from elman.engines.deer import convergence, solvers
from elman.engines.deer.equations import before, before_window
from elman.engines.deer.kernel import DeerKernel
from elman.engines.deer.problem import Formula, Problem
from elman.engines.deer.solvers import BUDGET
from elman.engines.group_step import Progress
from elman.engines.triton.all_steps import newton, scans
from elman.engines.triton.all_steps.newton import Newton, ScannedNewton
from elman.engines.triton.device import limits
from elman.engines.triton.device.source import function
from elman.engines.triton.engine import ENGINE
from elman.frontend.cell import Cell
from elman.ops import sigmoid, tanh
from helpers import Case, Sizes, assert_close, job_of, random_case
from offline import facts
from products import some_of


def _cell(function: Any) -> Cell:
    """h is one group of states, k another."""
    made = cell(input="x[I]", state="h[H], k[H]", weights="W[H, I], V[H, I], u[H], v[H], R[H, H]")
    return made(function)


@_cell
def twins(x, h, k, W, V, u, v, R):
    """Two groups of one kind, whose units do not mix."""
    return tanh(W @ x + u * h), tanh(V @ x + v * k)


@_cell
def pair(x, h, k, W, V, u, v, R):
    """Groups of two kinds."""
    return tanh(W @ x + R @ h), tanh(V @ x + v * k)


@_cell
def unlike(x, h, k, W, V, u, v, R):
    """Two groups of one kind, of other formulas."""
    return tanh(W @ x + u * h), sigmoid(V @ x + v * k)


@cell(input="x[I]", static="s[H]", state="h[H]", weights="W[H, I], R[H, H], u[H]")
def given(x, s, h, W, R, u):
    """A value per sequence, which a state holds."""
    return tanh(W @ x + sigmoid(u * s) * (R @ h))


SMALL = [
    *((cells.gru, H) for H in (1, 2, 4)),
    (cells.gru_before, 3),
    (cells.lstm, 2),
    (cells.lem, 2),
    (cells.lstm_layernorm, 2),
    (cells.rnn, 3),
    (cells.paragru, 5),
    (cells.paralstm, 3),
    (cells.mgu, 4),
    *((cells.gru.with_heads(heads), H) for heads, H in ((2, 4), (3, 3), (12, 24))),
    (cells.lstm.with_heads(2), 4),
    (twins, 2),
    (pair, 2),
    (given, 2),
    (given.with_heads(2), 10),
    *((cells.gru, H) for H in (5, 8)),
    (cells.gru_before, 5),
    (cells.lstm, 4),
    (cells.rnn, 7),
    (cells.gru.with_heads(2), 10),
    (cells.slstm.with_heads(2), 4),
]
NAMES = [f"{cell.name}-{cell.heads}x{H // cell.heads}" for cell, H in SMALL]
UNLIKE = {"gru-2x2", "twins-1x2"}  # heads, groups; one, held and many take as long again


def _guess(problem: Problem, rows: slice) -> tuple[torch.Tensor, ...]:
    """The first iterate by torch ops."""
    return solvers._initial_guess(problem, "first", problem.start, rows)


def problem_of(case: Case) -> Problem:
    return Problem(Formula(job_of(case)), case.inputs, case.states, case.weights)


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """A CPU has them too, in the interpreter."""
    monkeypatch.setattr(registry, "newton", lambda device: ENGINE.newton())


@pytest.mark.interpreted
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("of, lead", some_of(SMALL, [(21, 3), (1, 1)], together=1))
def test_one_iteration(
    of: tuple[Cell, int], lead: tuple[int, int], kernels: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next iterate and the residual, in one block of steps and in several; in a window."""
    (cell, H), (T, B) = of, lead
    monkeypatch.setattr(limits, "SCAN_ELEMENTS", dict.fromkeys(range(1, 5), 32))
    problem = problem_of(random_case(cell, Sizes(T, B, 3, H)))
    source = torch.Generator().manual_seed(1)
    y = tuple(torch.randn(T, *start.shape, generator=source) / 3 for start in problem.start)
    for rows in (slice(0, T), slice(T // 3, T)):
        own = tuple(part[rows] for part in y)
        values, jacobians = problem.linearised(before(problem.start, own), rows)
        method = solvers.METHODS["newton"]
        want = solvers._solved(problem, method, 1.0, values, jacobians, own)
        assert problem.iterations is not None
        notes = problem.iterations.notes(1)
        got = problem.iterations.improved(own, problem.start, rows, Progress(notes))
        for a, b in zip(got, want, strict=True):
            assert_close(a, b)
        for a, b in zip(problem.iterations.guess(rows), _guess(problem, rows), strict=True):
            assert_close(a, b)
        far = max(float((a - b).abs().max()) for a, b in zip(own, values, strict=True))
        largest = max(1.0, *(float(value.abs().max()) for value in values))
        (worst, scale), *_ = notes.tolist()
        assert worst / max(1.0, scale) == pytest.approx(far / largest, rel=1e-4)
        along = problem.iterations.jacobian(own, problem.start, rows, problem.leaves(own, rows))
        for a, b in zip(along, jacobians, strict=True):
            assert_close(a, b)


@pytest.mark.interpreted
@pytest.mark.parametrize(
    "cell, H", [(cells.gru, 2), (given, 3), (pair, 2), (cells.gru.with_heads(3), 15)]
)
def test_residuals_and_distances_are_those_by_torch_ops(
    cell: Cell, H: int, kernels: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Residuals of windows, and distances of sequential runs, are those by torch ops."""
    monkeypatch.setattr(limits, "GROUP_WINDOWS", 2)
    problem = problem_of(random_case(cell, Sizes(40, 2, 3, H)))
    assert problem.iterations is not None
    assert bool(problem.formula.held) == (cell is given)
    source = torch.Generator().manual_seed(1)
    y = tuple(torch.randn(40, *start.shape, generator=source) / 3 for start in problem.start)
    budget = 25 * problem.row_bytes
    by_kernels: Any = problem.iterations
    whole, parts = (tuple(convergence.errors(problem, y, size)) for size in (BUDGET, budget))
    f = by_kernels.judged(y, slice(25, 40), by_kernels.notes(1)[0])
    problem.iterations = None
    want = tuple(convergence.errors(problem, y, budget))
    assert whole == pytest.approx(want, rel=1e-4)
    assert parts[0] == pytest.approx(want[0], rel=1e-4)
    assert parts[1] >= whole[1] / 2, "more windows, and others"
    rows = slice(25, 40)
    for a, b in zip(f, problem.values(before_window(problem.start, y, rows), rows), strict=True):
        assert_close(a, b)


@pytest.mark.interpreted
@pytest.mark.parametrize("cell, H", [(cells.gru, 2), (cells.paralstm, 3)])
def test_solver_runs_the_kernels(cell: Cell, H: int, kernels: None) -> None:
    """The solver goes through the kernels, to the trajectory of a sequential run."""
    problem = problem_of(random_case(cell, Sizes(40, 2, 3, H)))
    found = solvers.solve(problem, ("newton",))
    assert found.y is not None, found.attempts
    assert problem.iterations is not None
    monkey = problem_of(random_case(cell, Sizes(40, 2, 3, H)))
    monkey.formula._newtons = {("cpu", torch.float32): ""}
    want = solvers.solve(monkey, ("newton",))
    assert want.y is not None
    assert_close(found.y[0], want.y[0])


@pytest.mark.interpreted
def test_what_is_not_finite(kernels: None) -> None:
    """Neither NaN nor infinity stays in an iterate; the residual is infinite."""
    case = random_case(cells.gru, Sizes(6, 1, 3, 2))
    case.inputs["x"][3] = float("nan")
    problem = problem_of(case)
    assert problem.iterations is not None
    y, rows = (torch.zeros(6, *problem.start[0].shape),), slice(0, 6)
    notes = problem.iterations.notes(3)
    made = problem.iterations.iterated(y, problem.start, rows, notes[:1], 1e-6)
    assert made[0].isfinite().all()
    assert problem.iterations.guess(rows)[0].isfinite().all()
    convergence.note_errors(problem.iterations, y, rows, notes[1:])
    assert notes[:, 0].tolist() == [float("inf")] * 3
    assert solvers.first_near(notes.tolist(), 1e-6) is None


@pytest.mark.interpreted
@pytest.mark.parametrize("cell, H", [(cells.gru, 2), (pair, 2), (cells.gru, 5)])
def test_iterations_end_where_they_were_near_enough(cell: Cell, H: int, kernels: None) -> None:
    """The result is that of the first iterate near enough, however many iterations were
    launched."""
    problem = problem_of(random_case(cell, Sizes(10, 2, 3, H)))
    assert problem.iterations is not None
    rows, found = slice(0, 10), []
    for count in (8, 10):
        notes = problem.iterations.notes(count)
        first = problem.iterations.guess(rows)
        y = problem.iterations.iterated(first, problem.start, rows, notes, 1e-3)
        found.append((y, notes.tolist()))
    k = solvers.first_near(found[0][1], 1e-3)
    assert k is not None
    assert k < 7, "there are iterations to spare"
    for y, notes in found:
        assert solvers.first_near(notes, 1e-3) == k
        assert notes[k:] == [notes[k]] * (len(notes) - k)
        for a, b in zip(y, found[0][0], strict=True):
            assert torch.equal(a, b)
    fewer = problem.iterations.notes(k + 1)
    y = problem.iterations.iterated(problem.iterations.guess(rows), problem.start, rows, fewer, 0.0)
    for a, b in zip(y, found[0][0], strict=True):
        assert torch.equal(a, b)


def formula_of(cell: Cell, H: int, dtype: torch.dtype = torch.float32) -> Formula:
    return Formula(job_of(random_case(cell, Sizes(2, 1, 2, H)).to(dtype)))


@pytest.mark.parametrize(
    "cell, H, dtype, reason",
    [
        (cells.gru, 9, torch.float32, "9 states of a group depend on each other, and its kernels"),
        (cells.gru, 2, torch.float64, "its kernels compute in float32, not float64"),
        (unlike, 2, torch.float32, "its groups of states are not alike"),
        (
            cells.gru.with_heads(2),
            16,
            torch.float32,
            "its kernels would load weights in 392 places",
        ),
    ],
)
def test_what_has_no_kernel(cell: Cell, H: int, dtype: torch.dtype, reason: str) -> None:
    """Torch ops, with the reason."""
    made = formula_of(cell, H, dtype)._iterations(newton.newton, dtype)
    assert isinstance(made, str)
    assert made.startswith(reason)


def test_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who asks what runs hears of kernels, or why there are none."""
    job = job_of(random_case(cells.gru, Sizes(2, 1, 2, 9)))
    assert "iterations" not in DeerKernel(job, "deer").describe()
    monkeypatch.setattr(registry, "newton", lambda device: ENGINE.newton())
    told = DeerKernel(job, "deer").describe()["iterations"]
    assert told.startswith("by torch's operations (9 states of a group depend on each other")
    job = job_of(random_case(cells.gru.with_heads(3), Sizes(2, 1, 2, 6)))
    assert DeerKernel(job, "deer").describe()["iterations"] == "in kernels"


@pytest.mark.parametrize("heads", [2, 12])
def test_heads_share_their_kernels(heads: int) -> None:
    """As many lines for many heads as for few, each lane with its head's weights."""
    few: Any
    own: Any
    (few,) = formula_of(cells.gru.with_heads(2), 4)._iterations(newton.newton, torch.float32)
    (own,) = formula_of(cells.gru.with_heads(heads), 2 * heads)._iterations(
        newton.newton, torch.float32
    )
    text = own.scan.steps_text
    assert text.count("\n") == few.scan.steps_text.count("\n")
    assert f") * {heads} + group)" in text


@pytest.mark.parametrize(
    "cell, H",
    [
        pytest.param(cell, H, id=name, marks=() if name in UNLIKE else pytest.mark.long)
        for (cell, H), name in zip(SMALL, NAMES)
    ],
)
def test_compiled(cell: Cell, H: int) -> None:
    """Nothing spills, at the blocks that are launched."""
    made = formula_of(cell, H)._iterations(newton.newton, torch.float32)
    for one in made:
        assert isinstance(one, Newton)
        evaluated = ("guess", "jacobian", "values")
        shapes: dict[str, tuple[int, int]] = dict.fromkeys(
            evaluated, scans.shape(limits.GROUP_ELEMENTS, 1)
        )
        shapes["strayed"] = limits.GROUP_WINDOWS, scans.shape(limits.GROUP_ELEMENTS, 1)[1]
        if isinstance(one, ScannedNewton):
            shapes |= dict.fromkeys(("totals", "steps"), scans.block(one.n, 1))
        for name, (steps, channels) in shapes.items():
            of = getattr(one, "scan", one) if name in ("totals", "steps") else one
            kernel = function(name, getattr(of, f"{name}_text"))
            constants = {"STEPS": steps, "CHANNELS": channels}
            if name == "strayed":
                constants |= {"LENGTH": convergence.WINDOW, "WINDOWS": convergence.WINDOWS}
            types = {
                name: {"T": "i32", "N": "i32", "k": "i32", "demanded": "fp32"}.get(name, "*fp32")
                for name in kernel.arg_names
                if name not in constants
            }
            found = facts(kernel, types, constants, "sm_90", warps=4, stages=1)
            assert not found.spilled, (name, found)

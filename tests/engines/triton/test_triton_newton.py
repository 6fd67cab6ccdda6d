"""Newton's iteration in kernels, beside the same by torch ops."""

from __future__ import annotations

import pytest
import torch

from elman import cells
from elman.engines import registry
from elman.engines.deer import solvers
from elman.engines.deer.equations import before
from elman.engines.deer.problem import Formula, Problem
from elman.engines.triton import newton, scans
from elman.engines.triton.engine import ENGINE
from elman.engines.triton.newton import Newton
from elman.engines.triton.offline import facts
from elman.engines.triton.source import function
from elman.frontend.cell import Cell
from helpers import Case, Sizes, assert_close, job_of, random_case

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
]
NAMES = [f"{cell.name}-{H}" for cell, H in SMALL]


def problem_of(case: Case) -> Problem:
    return Problem(Formula(job_of(case)), case.inputs, case.states, case.weights)


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """A CPU has them too, in the interpreter."""
    monkeypatch.setattr(registry, "newton", lambda device: ENGINE.newton())


@pytest.mark.interpreted
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("cell, H", SMALL, ids=NAMES)
@pytest.mark.parametrize("T, B", [(1, 1), (21, 3)])
def test_one_iteration(
    cell: Cell, H: int, T: int, B: int, kernels: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next iterate and the residual, in one block of steps and in several; in a window."""
    monkeypatch.setattr(scans, "_ELEMENTS", dict.fromkeys(range(1, 5), 32))
    problem = problem_of(random_case(cell, Sizes(T, B, 3, H)))
    (start,) = problem.start
    y = torch.randn(T, *start.shape, generator=torch.Generator().manual_seed(1)) / 3
    for rows in (slice(0, T), slice(T // 3, T)):
        own = y[rows]
        given = before((start,), (own,))
        values, jacobians = problem.linearised(given, rows)
        method = solvers.METHODS["newton"]
        (want,) = solvers._solved(problem, method, 1.0, values, jacobians, (own,))
        found = problem.improved((own,), (start,), rows)
        assert found is not None
        (got,), off = found
        assert_close(got, want)
        largest = max(1.0, float(values[0].abs().max()))
        assert off == pytest.approx(float((own - values[0]).abs().max()) / largest, rel=1e-4)


@pytest.mark.interpreted
@pytest.mark.parametrize("cell, H", [(cells.gru, 2), (cells.paralstm, 3)])
def test_solved(cell: Cell, H: int, kernels: None) -> None:
    """The solver goes through the kernels, to the trajectory of a sequential run."""
    problem = problem_of(random_case(cell, Sizes(40, 2, 3, H)))
    found = solvers.solve(problem, ("newton",))
    assert found.y is not None, found.told
    assert problem._window is not None
    monkey = problem_of(random_case(cell, Sizes(40, 2, 3, H)))
    monkey.formula._newtons = {("cpu", torch.float32): None}
    want = solvers.solve(monkey, ("newton",))
    assert want.y is not None
    assert_close(found.y[0], want.y[0])


@pytest.mark.interpreted
def test_what_is_not_finite(kernels: None) -> None:
    """Neither NaN nor infinity stays in an iterate; the residual is infinite."""
    case = random_case(cells.gru, Sizes(6, 1, 3, 2))
    case.inputs["x"][3] = float("nan")
    problem = problem_of(case)
    found = problem.improved((torch.zeros(6, *problem.start[0].shape),), problem.start, slice(0, 6))
    assert found is not None
    assert found[0][0].isfinite().all()
    assert found[1] == float("inf")


def test_what_has_no_kernel() -> None:
    """Five states that mix, several groups, float64: torch ops."""
    for cell, H, dtype in ((cells.gru, 5, torch.float32), (cells.gru, 2, torch.float64)):
        formula = Formula(job_of(random_case(cell, Sizes(2, 1, 2, H)).to(dtype)))
        assert formula._iteration(newton.newton, dtype) is None
    heads = Formula(job_of(random_case(cells.gru.with_heads(2), Sizes(2, 1, 2, 4))))
    assert len(heads.state_groups[0].groups) == 2


@pytest.mark.parametrize("cell, H", SMALL, ids=NAMES)
def test_compiled(cell: Cell, H: int) -> None:
    """Nothing spills, at the blocks that are launched."""
    formula = Formula(job_of(random_case(cell, Sizes(2, 1, 2, H))))
    made = formula._iteration(newton.newton, torch.float32)
    assert isinstance(made, Newton)
    steps, channels = scans.block(made.n, 1)
    constants = {"STEPS": steps, "CHANNELS": channels}
    for name, text in (("totals", made.totals_text), ("steps", made.steps_text)):
        kernel = function(name, text)
        types = {
            name: "i32" if name in ("T", "N") else "*fp32"
            for name in kernel.arg_names
            if name not in constants
        }
        found = facts(kernel, types, constants, "sm_90", warps=4, stages=1)
        assert not found.spilled, (name, found)

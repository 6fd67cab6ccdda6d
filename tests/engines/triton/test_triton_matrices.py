"""Matrices per sample by engine triton: in Triton's interpreter, and on a GPU."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from triton import knobs

import elman
from calls import call
from elman import cells
from elman.engines.base import Job
from elman.engines.triton.device import limits
from elman.engines.triton.engine import ENGINE
from elman.errors import EngineError
from elman.frontend.cell import Cell
from elman.ops import maximum, mean, outer, rows, sigmoid, where
from elman.tuning.kernels import kernel_of
from helpers import Case, Sizes, assert_all_same, job_of, need, oracle, random_case
from kernels import case_of, ill_conditioned
from library_sizes import matrix_sizes
from matrix_parts import hedgehog, random_features, stacked
from packed_rows import alone, together
from random_cells import Drawn
from random_matrices import linear_matrix_cells, matrix_cells

DEVICE = "cpu" if knobs.runtime.interpret else "cuda"  # Triton decides once per process
MULTIPLIED = {cells.plastic_rnn, cells.lstmn, cells.mc_lstm}  # weights times vectors in a step
CUT_IN_ROWS = [cells.mamba, cells.mamba2, cells.longhorn]
PACKED = [cells.gated_delta_net, cells.mlstm, cells.retention]
OFFERED = [cell for cell in cells.MATRIX if cell not in MULTIPLIED]
OFFERED += [hedgehog, random_features]  # vectors of parts along their rows
CHECKS = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture]  # fixtures are settings
pytestmark = [
    pytest.mark.usefixtures("device"),
    # numpy's, of units beyond the last: they are computed and thrown away
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
]


@elman.cell(input="q[K], k[K], v[V], g", state="S[K, V], n[K], e", output="y[V]")
def weighed(q: Any, k: Any, v: Any, g: Any, S: Any, n: Any, e: Any) -> Any:
    """A matrix that vectors and numbers decay which are states, too."""
    e = maximum(0.5 * e, g) + 0.1
    decay = sigmoid(e + mean(n) - n)
    n = where(k > 0.0, 0.5 * n / (1.0 + e * e), k - n)
    S = rows(decay * sigmoid(e)) * S + outer(k * n, v)
    return S.T @ q, S, n, e


@pytest.fixture(autouse=True)
def chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several chunks in few steps, the last of them shorter; shares of small matrices."""
    monkeypatch.setattr(limits, "MATRIX_STEPS", 4)
    monkeypatch.setattr(limits, "MATRIX_SHARES", (128, 256, 1024))


def drawn(cell: Cell, T: int, V: int, rows: int = 5) -> Case:
    """A case whose matrices do not grow."""
    case = random_case(cell, replace(matrix_sizes(cell, T, V), I=rows), T)
    for values in (case.inputs, case.states):
        values.update({name: 0.3 * x for name, x in values.items()})
    return case


def job(case: Case, **options: Any) -> Job:
    return job_of(case.to(DEVICE), **options)


def agree(case: Case, **options: Any) -> None:
    """Values and every gradient by each schedule, twice from one forward."""
    want, of = oracle(case), job(case, **options)
    assert ENGINE.supports(of) is None
    for schedule in ENGINE.schedules(of, case.T, 3):
        got = call(kernel_of(of, "triton", schedule), case, backwards=2)
        assert_all_same(got, want, case.dtype, case.T)


@pytest.mark.parametrize("cell", OFFERED, ids=lambda cell: cell.name)
def test_cells(cell: Cell) -> None:
    """Every cell of the library that is offered, over three chunks, and in shares of eight."""
    agree(drawn(cell, 10, 19))


@pytest.mark.parametrize("cell", CUT_IN_ROWS, ids=lambda cell: cell.name)
def test_cut_rows(cell: Cell) -> None:
    """A sum over a matrix is partial in each program, and what is linear in it; the last program
    has fewer rows."""
    case = drawn(cell, 10, 5, rows=19)
    assert "loop/1/1/8" in ENGINE.schedules(job(case), 10, 3)
    agree(case)


def test_memory_of_partial_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many rows are divided over fewer programs."""
    of = job(drawn(cells.gla, 2, 64))
    monkeypatch.setattr(limits, "PARTIAL_BYTES", 1 << 20)
    names = [ENGINE.schedules(of, steps, 3) for steps in (1, 1000, 100_000)]
    assert names == [names[0], names[0][1:], names[0][2:]]
    assert len(names[0]) == 3


def test_partial_sums() -> None:
    """In a backward: added, multiplied, chosen, carried to the first step."""
    case = drawn(weighed, 6, 19)
    assert "loop/1/1/8" in ENGINE.schedules(job(case), 6, 3)
    agree(case)


@pytest.mark.parametrize("T, V", [(1, 1), (4, 16), (5, 40)])
def test_sizes(T: int, V: int) -> None:
    """A step, a chunk, a step more; columns that fill a block, and that do not."""
    agree(drawn(cells.gated_delta_net, T, V))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.half])
def test_half_precision(dtype: torch.dtype) -> None:
    """Matrices are float32 all the while."""
    agree(drawn(cells.gla, 10, 7).to(dtype))


def test_evaluation() -> None:
    """Without gradients nothing is kept."""
    case = drawn(cells.mlstm, 6, 7)
    of = job(case, training=False)
    kernel = kernel_of(of, "triton", ENGINE.schedules(of, 6, 3)[0])
    want = {name: value for name, value in oracle(case).items() if name[0] != "d"}
    got = {name: value for name, value in call(kernel, case).items() if name in want}
    assert_all_same(got, want, torch.float32, 6)


@pytest.mark.parametrize("cell", PACKED, ids=lambda cell: cell.name)
def test_packed_rows(cell: Cell) -> None:
    """Sequences of several lengths: each as if it were alone."""
    lengths = (10, 9, 4)
    case = drawn(cell, 10, 19)
    of = job(case)
    kernel = kernel_of(of, "triton", ENGINE.schedules(of, 10, 3)[-1])
    got = together(kernel, case, lengths)
    assert_all_same(got, alone(case, lengths), torch.float32, 10)


@pytest.mark.parametrize(
    "cell, sizes, reason",
    [
        (cells.plastic_rnn, None, "its steps multiply a matrix of weights with a vector"),
        (stacked, None, "it has no kernel for place of matrices per sample"),
        (cells.m2rnn, Sizes(T=2, B=1, I=512, H=512), "do not fit into the registers of a program"),
    ],
)
def test_what_has_no_kernel(cell: Cell, sizes: Sizes | None, reason: str) -> None:
    """The engine says why."""
    case = random_case(cell, sizes or matrix_sizes(cell, 2, 7))
    assert reason in (ENGINE.supports(job(case)) or "")


@settings(max_examples=12, deadline=None, suppress_health_check=CHECKS)
@given(drawn=st.one_of(linear_matrix_cells(), matrix_cells()), T=st.integers(1, 9))
def test_random_cells(drawn: Drawn, T: int) -> None:
    """Cells nobody has written: their values and gradients, or a reason."""
    case = case_of(drawn, T, 3, torch.float32)
    of = job(case)
    if ENGINE.supports(of) is not None:
        return
    want = oracle(case)
    bad = ill_conditioned(case, want)
    schedules = ENGINE.schedules(of, T, 3)
    for schedule in dict.fromkeys((schedules[0], schedules[-1])):
        got = call(kernel_of(of, "triton", schedule), case)
        judged = {name: value for name, value in want.items() if name not in bad}
        assert_all_same({n: v for n, v in got.items() if n not in bad}, judged, case.dtype, T)


@elman.cell(input="q[K], k[K], v[V]", state="S[K, V], P[K, V]", output="y[V]")
def delayed(q: Any, k: Any, v: Any, S: Any, P: Any) -> Any:
    """A matrix, and what it was a step before, which decays it."""
    now = 0.5 * S + outer(k, v) - 0.25 * P
    return now.T @ q, now, S


@elman.cell(input="q[K], k[K], v[V]", state="S[K, V], P[K, V]", output="y[V]")
def swapped(q: Any, k: Any, v: Any, S: Any, P: Any) -> Any:
    """Two matrices that change places."""
    return (S * P).T @ q, P, 0.5 * S + outer(k, v)


@pytest.mark.parametrize("cell", [delayed, swapped], ids=lambda cell: cell.name)
@pytest.mark.parametrize("engine", ["triton", "c"])
def test_states_that_become_others(cell: Cell, engine: str) -> None:
    """The backward computes all of them again, each from what was before the step."""
    case = drawn(cell, 10, 19)
    if engine == "c":
        need("c", job_of(case))
        assert_all_same(call(kernel_of(job_of(case), "c"), case), oracle(case), case.dtype, case.T)
    else:
        agree(case)


@pytest.mark.parametrize("schedule", ["loop/16/4", "grid/16/4/16", "steps", "loop/1/1/8"])
def test_schedules_that_are_refused(schedule: str) -> None:
    """Those of vectors, and shares where a step multiplies matrices."""
    of = job(drawn(cells.m2rnn, 2, 19))
    with pytest.raises(EngineError, match=r"m2rnn has no schedule .* there are loop/1/2$"):
        ENGINE.compile(of, schedule)

"""Engine c against the oracle: every cell, awkward sizes, unseen cells, odd tensors."""

from __future__ import annotations

import dataclasses
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from calls import call
from elman import cells
from elman.engines.c.engine import ENGINE
from helpers import AWKWARD, Case, assert_all_same, job_of, need_engine, oracle, random_case
from kernels import c_kernel, scheduled
from unseen import UNSEEN

F32, F64 = torch.float32, torch.float64
MIDDLE = AWKWARD[1]  # its kernels serve most tests below
EVERY_SIZE = [cells.gru, cells.lstm_layernorm]  # one with blocks of its matrices alone, and sums
SCHEDULES = [("one", 1, 100), ("batch", 2, 100), ("units", 2, 100), ("units", 3, 2)]


every_cell = pytest.mark.parametrize("cell", cells.CORE)
both_dtypes = pytest.mark.parametrize("dtype", [F32, F64])


def compiled(cases, **options):
    """Kernels of several cases, compiled at the same time."""
    with ThreadPoolExecutor(4) as threads:
        return list(threads.map(lambda case: c_kernel(case, **options), cases))


def middle(cell, dtype=F64, T=MIDDLE.T, B=MIDDLE.B, seed=1):
    """A case whose kernel other tests have compiled already."""
    return random_case(cell, dataclasses.replace(MIDDLE, T=T, B=B), seed, dtype)


def agree(monkeypatch, kernel, case: Case):
    """Every way of sharing the work gives the oracle's results; a tape that is kept survives."""
    want = oracle(case)
    assert_all_same(call(kernel, case, backwards=2), want, case.dtype, case.T)
    for schedule in SCHEDULES:
        with monkeypatch.context() as patch:
            scheduled(patch, kernel, *schedule)
            assert_all_same(call(kernel, case), want, case.dtype, case.T)


@pytest.mark.parametrize("name", ["units/384/rows-3/k-4", "batch/batched_rows-2"])
def test_blocks_that_a_schedule_names(name):
    """They are compiled into a text of their own, that all its schedules share."""
    need_engine("c")
    case = middle(cells.gru)
    job = job_of(case)
    kernel, usual = ENGINE.compile(job, name), ENGINE.compile(job, name.partition("/")[0])
    assert kernel.describe()["schedule"] == name
    assert {each.fingerprint() for each in kernel.stressed()} == {kernel.fingerprint()}
    assert kernel.fingerprint() == ENGINE.compile(job, name).fingerprint() != usual.fingerprint()
    assert_all_same(call(kernel, case), oracle(case), F64, case.T)


@pytest.mark.parametrize(
    "cell, flags",
    [*((cell, "") for cell in cells.CORE), *((cell, "as_users") for cell in EVERY_SIZE)],
)
def test_cells_agree_in_float32(cell, flags, request, monkeypatch):
    """Output, last states and every gradient, on awkward sizes, under every split.

    Each size is a kernel to compile: the test marked ``long`` has those that are left out here, and
    most cells run with units that fill no vector in float64.
    """
    if flags:
        request.getfixturevalue(flags)
    chosen = AWKWARD if cell in EVERY_SIZE and not flags else AWKWARD[3:4]
    cases = [random_case(cell, sizes, 0, F32) for sizes in chosen]
    for kernel, case in zip(compiled(cases), cases):
        agree(monkeypatch, kernel, case)


@every_cell
def test_cells_agree_in_float64(cell, monkeypatch):
    """As in float32; one size, since only the width of vectors differs."""
    case = random_case(cell, MIDDLE, 0, F64)
    agree(monkeypatch, c_kernel(case), case)


@pytest.mark.long
@both_dtypes
@every_cell
def test_cells_agree_on_all_sizes(cell, dtype, monkeypatch):
    """The sizes that the tests above leave out."""
    cases = [random_case(cell, sizes, 0, dtype) for sizes in AWKWARD]
    for kernel, case in zip(compiled(cases), cases):
        agree(monkeypatch, kernel, case)


@pytest.mark.parametrize(
    "cell, dtype",
    [
        *((cell, F64) for cell in UNSEEN),
        *(
            pytest.param(cell, F32, marks=[pytest.mark.long] * (k % 4 > 0))
            for k, cell in enumerate(UNSEEN)
        ),
    ],
)
def test_unseen_cells_agree(cell, dtype, monkeypatch):
    """Cells that nobody has prepared for."""
    case = random_case(cell, UNSEEN[cell], 2, dtype)
    agree(monkeypatch, c_kernel(case), case)


@both_dtypes
@pytest.mark.parametrize("split", ["one", "batch", "units"])
def test_results_repeat_bit_for_bit(dtype, split, monkeypatch):
    """The same call gives the same bits, however threads are scheduled."""
    case = middle(cells.lstm, dtype, T=40, B=6)
    kernel = c_kernel(case)
    scheduled(monkeypatch, kernel, split, 2, 16)
    first = call(kernel, case)
    for _ in range(5):
        again = call(kernel, case)
        for name in first:
            assert torch.equal(first[name], again[name]), name


@pytest.mark.parametrize("T, B", [(140, 3), (3, 100), (40, 30), (1, 3), (2, 1), (130, 1), (1, 400)])
@pytest.mark.parametrize("cell, dtype", [(cells.gru, F64), (cells.lstm_layernorm, F32)])
def test_long_and_wide_batches(cell, T, B, dtype):
    """More rows than a chunk, more samples than a block of rows, and single ones."""
    case = middle(cell, dtype, T=T, B=B)
    assert_all_same(call(c_kernel(case), case), oracle(case), dtype, T)


def test_odd_states_weights_and_masks():
    """Transposed weights, expanded states, an expanded and a transposed scalar input."""
    cell = next(cell for cell in UNSEEN if cell.name == "reset")
    case = random_case(cell, UNSEEN[cell], 2, F64)
    for m in (case.inputs["m"].T.contiguous().T, case.inputs["m"][:1].expand(7, 3)):
        odd = dataclasses.replace(
            case,
            inputs={"x": case.inputs["x"], "m": m},
            states={"h": case.states["h"][:1].expand(3, 17)},
            weights={n: w.T.contiguous().T for n, w in case.weights.items() if w.dim() == 2}
            | {"b": case.weights["b"][:1].expand(17)},
            d_last={"h": case.d_last["h"].T.contiguous().T},
        )
        assert_all_same(call(c_kernel(case), odd), oracle(odd), F64, case.T)


@pytest.mark.parametrize("cell", [cells.lstm, cells.lem, cells.rnn])
def test_no_gradient_of_some_results(cell):
    """A result that nobody differentiates: its gradient is None, and counts as zero."""
    case = middle(cell)
    kernel = c_kernel(case)
    states = len(case.states)
    zero = dataclasses.replace(case, d_output=torch.zeros_like(case.d_output))
    assert_all_same(call(kernel, case, d_output=None), oracle(zero), F64, case.T)
    last = {name: torch.zeros_like(d) for name, d in case.d_last.items()}
    zero = dataclasses.replace(case, d_last=last)
    assert_all_same(call(kernel, case, d_last=(None,) * states), oracle(zero), F64, case.T)


ODD = {"nan": float("nan"), "inf": float("inf"), "-inf": float("-inf")}


@pytest.mark.parametrize("value", ODD)
@every_cell
def test_nan_and_infinity_go_where_they_go_in_torch(cell, value):
    """One odd number in x: every result is odd in the same places, other samples are untouched."""
    case = middle(cell, F64)
    case.inputs["x"][2, 1, 3] = ODD[value]
    got, want = call(c_kernel(case), case), oracle(case)
    assert not want["out"][3:, 1].isfinite().all() or value != "nan"
    assert_all_same(got, want, F64, case.T)
    others = [0, 2]
    assert got["out"][:, others].isfinite().all()
    assert got["dx"][:, others].isfinite().all()


def test_an_empty_batch():
    """No samples: results of the right shapes, gradients of the weights are zero."""
    case = middle(cells.lstm, F32, B=2)
    empty = dataclasses.replace(
        case,
        inputs={"x": case.inputs["x"][:, :0]},
        states={name: value[:0] for name, value in case.states.items()},
        d_output=case.d_output[:, :0],
        d_last={name: value[:0] for name, value in case.d_last.items()},
    )
    got = call(c_kernel(case), empty)
    assert got["out"].shape == (7, 0, 13)
    assert not got["dR"].any()


@pytest.mark.parametrize(
    "cell, dtype",
    [
        *zip(cells.CORE, [F32, F64] * 99),
        *(
            pytest.param(cell, (F32, F64)[k // 2 % 2], marks=[pytest.mark.long] * (k % 2))
            for k, cell in enumerate(UNSEEN)
        ),
    ],
)
def test_kernels_without_a_backward(cell, dtype, monkeypatch):
    """They keep two rows of their states, and give the same values; calls of so few rows use the
    weights as they lie: the same as on panels."""
    sizes = UNSEEN.get(cell, MIDDLE)
    case = random_case(cell, dataclasses.replace(sizes, T=2, B=2), 2, dtype)
    kernel = c_kernel(case, wants=frozenset(), training=False)
    assert kernel._plan(2, 2).forward_entry is kernel._direct
    want = oracle(case)
    got = call(kernel, case)
    assert_all_same(got, {name: want[name] for name in got}, dtype, 2)
    long = random_case(cell, dataclasses.replace(sizes, T=5, B=3), 2, dtype)
    assert kernel._plan(5, 3).forward_entry is kernel._forward
    want = {name: value for name, value in oracle(long).items() if not name.startswith("d")}
    for schedule in (None, *SCHEDULES):
        with monkeypatch.context() as patch:
            if schedule:
                scheduled(patch, kernel, *schedule)
            assert_all_same(call(kernel, long), want, dtype, 5)

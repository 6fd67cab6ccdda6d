"""States that only hold a value on engine triton: one row per sample, in every schedule."""

from __future__ import annotations

import pytest
import torch
import triton

from calls import call, forward, given_of
from elman.engines.triton.kernel import TritonKernel
from elman.frontend.cell import Cell
from elman.tuning.kernels import kernel_of
from helpers import Case, Sizes, assert_all_same, job_of, oracle, random_case
from packed_rows import alone, drawn, together
from products import some_of
from unseen import HOLDING, epilogue, half, holding, output

DEVICE = "cpu" if triton.knobs.runtime.interpret else "cuda"
SCHEDULES = ["loop/16/4/1", "grid/16/2/3/1", "grid/2/2/3/2", "steps"]
pytestmark = [
    pytest.mark.usefixtures("device"),
    # numpy's, of units beyond the last: they are computed and thrown away
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
]


def made(case: Case, schedule: str) -> TritonKernel:
    found = kernel_of(job_of(case.to(DEVICE)), "triton", schedule)
    assert isinstance(found, TritonKernel)
    return found


def sizes(cell: Cell) -> Sizes:
    return Sizes(T=4, B=3, I=3, H=6, more=(("P", 2),) if cell is epilogue else ())


@pytest.mark.parametrize(
    "cell, schedule",
    [*((cell, SCHEDULES[0]) for cell in HOLDING), *some_of(HOLDING, SCHEDULES[1:], together=1)],
    ids=lambda value: getattr(value, "name", value),
)
def test_agreement(cell: Cell, schedule: str) -> None:
    """Values and every gradient."""
    case = random_case(cell, sizes(cell))
    want = oracle(case)
    assert_all_same(call(made(case, schedule), case), want, case.dtype, case.T)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_half_precision(schedule: str) -> None:
    """Steps go on in float32 beside what is kept; the third call is replayed."""
    case = random_case(epilogue, sizes(epilogue)).to(torch.bfloat16)
    kernel, want = made(case, schedule), oracle(case)
    for _ in range(3):
        assert_all_same(call(kernel, case), want, case.dtype, case.T)


@pytest.mark.parametrize(
    "cell, schedule",
    some_of([holding, half, output], SCHEDULES, together=1),
    ids=lambda value: getattr(value, "name", value),
)
def test_packed_rows(cell: Cell, schedule: str) -> None:
    """Sequences of several lengths: what each gives alone."""
    lengths = (4, 3, 3, 1)
    case = drawn(cell, lengths, torch.float32, H=8)
    found = together(made(case, schedule), case.to(DEVICE), lengths)
    assert_all_same(found, alone(case, lengths), torch.float32, 4)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_one_row_per_sample(schedule: str) -> None:
    """What a forward keeps for the backward."""
    for cell, count in zip(HOLDING, (2, 1, 1, 0), strict=True):
        case = random_case(cell, sizes(cell))
        *sequences, _, _ = forward(made(case, schedule), given_of(case.to(DEVICE))).saved
        rows = [sequence.shape[0] for sequence in sequences]
        assert sorted(rows) == [1] * count + [5] * (len(rows) - count), cell.name

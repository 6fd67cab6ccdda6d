"""Random cells by engine triton, in every schedule and with every tape: values and gradients are
the oracle's."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import triton
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from calls import call
from copies import drawn_copies
from elman.tuning.kernels import kernel_of
from helpers import Case, assert_all_same, job_of, oracle
from kernels import case_of, ill_conditioned
from random_cells import Drawn, drawn_cells, reusing_cells

MANY = 200  # cells of the test marked ``long``: three seconds each in the interpreter
DEVICE = "cpu" if triton.knobs.runtime.interpret else "cuda"  # Triton decides once per process
SCHEDULES = ["loop/16/4", "steps", "grid/16/2/3", "grid/2/2/3", "grid/4/2/8"]
GIVEN = {
    "drawn": st.one_of(drawn_cells(), reusing_cells()),
    "T": st.integers(1, 4),
    "B": st.integers(1, 5),
    "schedule": st.sampled_from(SCHEDULES),
    "tape": st.sampled_from(["auto", "save", "recompute"]),
    "training": st.sampled_from([True, True, True, False]),
}
CHECKS = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture]  # the fixture is one setting
pytestmark = [
    pytest.mark.usefixtures("device"),
    # numpy's, of units beyond the last: they are computed and thrown away
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
]


def check(drawn: Drawn, T: int, B: int, **options: Any) -> None:
    """A kernel of engine triton against the oracle."""
    judge(case_of(drawn, T, B, torch.float32), **options)


def judge(case: Case, schedule: str, tape: str, training: bool) -> None:
    """The same for a case; its backward runs twice."""
    want = oracle(case)
    bad = ill_conditioned(case, want)
    made = kernel_of(job_of(case.to(DEVICE), tape=tape, training=training), "triton", schedule)
    got = call(made, case, backwards=2)
    asked = {name for name in want if training or name[0] != "d"}
    assert asked <= got.keys()
    judged = {name: want[name] for name in asked - bad}
    found = {name: value for name, value in got.items() if name not in bad}
    assert_all_same(found, judged, case.dtype, case.T)


@settings(max_examples=4, deadline=None, suppress_health_check=CHECKS)
@given(**GIVEN)
def test_random_cells(**drawn):
    """Cells nobody has written."""
    check(**drawn)


@settings(max_examples=4, deadline=None, suppress_health_check=CHECKS)
@given(heads=st.integers(2, 3), numbers=st.booleans(), **GIVEN)
def test_heads_of_random_cells(drawn, heads, numbers, T, B, **options):
    """The same in heads, which ``tests/nn/test_copies.py`` compares with copies of the cell."""
    judge(drawn_copies(drawn, heads, numbers).case(T, B, torch.float32), **options)


@pytest.mark.long
@pytest.mark.timeout(7200)
@settings(max_examples=MANY, deadline=None, suppress_health_check=CHECKS)
@given(**GIVEN)
def test_many_random_cells(**drawn):
    """The same, of more of them."""
    check(**drawn)

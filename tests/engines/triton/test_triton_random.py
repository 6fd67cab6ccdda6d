"""Random cells by engine triton, in every schedule and with every tape: values and gradients are
the oracle's."""

from __future__ import annotations

import pytest
import torch
import triton
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from calls import call
from elman.tuning.kernels import kernel_of
from helpers import assert_all_same, job_of, oracle
from kernels import case_of, ill_conditioned
from random_cells import Drawn, drawn_cells, reusing_cells

MANY = 200  # cells of the test marked ``long``: three seconds each in the interpreter
DEVICE = "cpu" if triton.knobs.runtime.interpret else "cuda"  # Triton decides once per process
SCHEDULES = ["loop/16/4/1", "steps", "grid/16/2/3/1", "grid/2/2/3/2", "grid/4/2/8/3"]
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


def check(drawn: Drawn, T: int, B: int, schedule: str, tape: str, training: bool) -> None:
    """A kernel of engine triton against the oracle; its backward runs twice."""
    case = case_of(drawn, T, B, torch.float32)
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


@pytest.mark.long
@pytest.mark.timeout(7200)
@settings(max_examples=MANY, deadline=None, suppress_health_check=CHECKS)
@given(**GIVEN)
def test_many_random_cells(**drawn):
    """The same, of more of them."""
    check(**drawn)

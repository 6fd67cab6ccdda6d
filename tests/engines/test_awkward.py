"""Every elementwise function of a cell on awkward numbers: value and gradients are torch's."""

from __future__ import annotations

import pytest
import torch

from awkward import DOUBLE, SINGLE, double, single
from elman import ops
from helpers import Case, job_of, need, run

pytestmark = pytest.mark.usefixtures("as_users")  # what is rounded


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("engine", ["reference", "c"])
@pytest.mark.parametrize("functions", [single, double], ids=["one value", "two values"])
def test_functions(functions, engine, dtype):
    """On engines of the CPU; engine triton: ``triton/test_triton_awkward.py``."""

    def compute(case: Case) -> dict[str, torch.Tensor]:
        need(engine, job_of(case))
        return run(case.cell, case, engine)

    functions(compute, dtype)


def test_no_function_is_left_out():
    """A new elementwise function needs torch's here."""
    reducing = {"concat", "split", "layer_norm", "rms_norm", "softmax", "mean", "sum", "var"}
    reducing |= {"amax", "hardmax", "cumsum", "spread"}  # test_groups.py
    other = {"dropout", "zoneout", "noise", "uniform"}  # test_draws.py
    other |= {"spike", "straight_through", "clip_gradient"}  # test_spikes.py
    assert set(ops.__all__) - reducing - other <= SINGLE.keys() | DOUBLE.keys()

"""Every elementwise function of a cell on awkward numbers: value and gradients are torch's."""

from __future__ import annotations

import pytest
import torch

from awkward import DOUBLE, SINGLE, double, single
from elman import cell, ops
from helpers import Case, Sizes, job_of, need, random_case, run

pytestmark = pytest.mark.usefixtures("as_users")  # what is rounded


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("engine", ["reference", "c"])
@pytest.mark.parametrize("functions", [single, double], ids=["one value", "two values"])
def test_functions(functions, engine, dtype):
    """On engines of the CPU; engine triton: ``triton/test_triton_agreement.py``."""

    def compute(case: Case) -> dict[str, torch.Tensor]:
        need(engine, job_of(case))
        return run(case.cell, case, engine)

    functions(compute, dtype)


@pytest.mark.parametrize("engine", ["reference", "c"])
def test_a_quotient_is_rounded_once(engine):
    """A number over a number is no product with a reciprocal, which floor would tell."""

    @cell(input="x[H]", state="h[H]")
    def whole(x, h):
        return ops.floor(x / 49.0) + 0 * h

    case = random_case(whole, Sizes(1, 1, 100, 100), 0, torch.float64)
    count = torch.arange(100, dtype=torch.float64)
    case.inputs["x"][:] = 49.0 * count
    need(engine, job_of(case))
    assert torch.equal(run(whole, case, engine)["out"][0, 0], count)


def test_no_function_is_left_out():
    """A new elementwise function needs torch's here."""
    reducing = {"concat", "split", "layer_norm", "rms_norm", "softmax", "mean", "sum", "var"}
    reducing |= {"amax", "hardmax", "cumsum", "spread"}  # test_groups.py
    other = {"dropout", "zoneout", "noise", "uniform"}  # test_draws.py
    other |= {"outer", "rows", "columns", "shift"}  # test_matrices.py
    other |= {"spike", "straight_through", "clip_gradient"}  # test_spikes.py
    assert set(ops.__all__) - reducing - other <= SINGLE.keys() | DOUBLE.keys()

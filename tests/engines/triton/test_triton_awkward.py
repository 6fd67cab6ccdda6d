"""Every elementwise function of a cell on awkward numbers, by engine triton: value and gradients
are torch's."""

from __future__ import annotations

import pytest
import torch

from awkward import double, single
from calls import call
from elman.tuning.kernels import kernel_of
from helpers import Case, job_of

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy's, in the interpreter


@pytest.mark.parametrize("functions", [single, double], ids=["one value", "two values"])
def test_functions(functions, device):
    """The same table as of the engines of the CPU."""

    def compute(case: Case) -> dict[str, torch.Tensor]:
        case = case.to(device)
        made = call(kernel_of(job_of(case), "triton", "steps"), case)
        return {name: value.cpu() for name, value in made.items()}

    functions(compute, torch.float32)

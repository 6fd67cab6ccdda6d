"""Work of weight rate in half precision: rounded once, at its end."""

from __future__ import annotations

import pytest
import torch

from elman import cells
from elman.engines.weights import WeightRate
from elman.ir.types import shape_size
from helpers import Sizes, job_of, random_case

SIZES = Sizes(T=1, B=1, I=5, H=64)


@pytest.mark.parametrize("heads", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(dtype: torch.dtype, heads: bool) -> None:
    """What lru makes of nu and theta, and the gradients that go back through it, are of float32:
    rounded at each of their operations they are off by a hundredth."""
    case = random_case(cells.lru, SIZES).to(dtype)
    job = job_of(case)
    rate, draw = WeightRate(job), torch.Generator().manual_seed(0)
    lead = (1,) if heads else ()
    sums = {
        target: torch.randn(*lead, *shape_size(target.shape, job.spec.sizes), generator=draw)
        for target in rate.targets
    }
    weights = [weight.expand(*lead, *weight.shape) for weight in case.weights.values()]
    wide = [weight.double() for weight in weights]
    vectors = [target for target in rate.targets if target not in job.pair.step.weights]

    values, exact = (rate.values(of, vectors, heads=heads) for of in (weights, wide))
    for vector in vectors:
        torch.testing.assert_close(values[vector].double(), exact[vector], rtol=1e-5, atol=1e-6)

    wide_sums = {target: value.double() for target, value in sums.items()}
    gradients = rate.gradients(sums, weights, heads=heads)
    for got, want in zip(gradients, rate.gradients(wide_sums, wide, heads=heads), strict=True):
        assert got is not None
        assert want is not None
        assert got.dtype == dtype
        torch.testing.assert_close(got.double(), want, rtol=torch.finfo(dtype).eps, atol=1e-6)

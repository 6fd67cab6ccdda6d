"""The guard that kernels are compared by: what it refuses beside numbers that are off."""

from __future__ import annotations

from itertools import product
from math import inf, nan

import pytest
import torch

from elman.tuning.agreement import disagreement

ODD = {"inf": inf, "-inf": -inf, "nan": nan, "1": 1.0}


def results(name: str, value: float) -> dict[str, torch.Tensor]:
    return {name: torch.tensor([0.5, value, 2.0])}


@pytest.mark.parametrize("got, want", [*product(ODD, repeat=2)])
def test_infinities_by_sign_and_nan_by_place(got, want):
    """Of values and of gradients; a result in the kernel's own dtype may have what the oracle
    lacks."""
    for name in ("output", "gradient of x"):
        a, b = results(name, ODD[got]), results(name, ODD[want])
        assert (disagreement(a, b, "float32", 1) is None) == (got == want)
        finite = results(name, 1.0)
        assert (disagreement(a, finite, "float32", 1, [b]) is None) == (got in (want, "1"))


@pytest.mark.parametrize("got, want", [*product(ODD, repeat=2)])
def test_a_sum_over_rows_may_be_infinite_where_each_term_is_nan(got, want):
    """Infinity times a sum, and the sum of infinity times each: the oracle's is NaN if any is."""
    a, b = results("gradient of w", ODD[got]), results("gradient of w", ODD[want])
    alike = got == want or (want == "nan" and got != "1")
    assert (disagreement(a, b, "float32", 1, sums={"gradient of w"}) is None) == alike

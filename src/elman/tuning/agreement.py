"""Agreement of two engines: a guard against wrong kernels, not a judge of rounding."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence

import torch
from torch import Tensor

from elman.engines.precision import precision

# Ten times the tolerances of the tests: a wrong kernel is off by far more, and unlucky rounding
# must not cost the user the faster engine.
_VALUES = {"float32": 1e-4, "float64": 1e-10, "float16": 1e-2, "bfloat16": 5e-2}
_GRADIENTS = {"float32": 1e-3, "float64": 1e-9, "float16": 1e-1, "bfloat16": 2e-1}
_ROUNDED_AS = {"tf32": "float16"}  # products of float32 on a GPU: as many bits as float16 has
_LOST = 4.0  # multiple of the oracle's own rounding error in the dtype that is accepted …
_MOST_LOST = 0.1  # … if that error is at most this share of the result, or of 1
_FINITE, _NAN = 0.0, 2.0  # kinds of elements; ±1: infinities
_COMPARED, _SPAN = 1 << 20, 64  # most elements that are compared; of larger results, spans

Results = Mapping[str, Tensor]


def disagreement(
    actual: Results,
    expected: Results,
    dtype: str,
    steps: int,
    rounded: Sequence[Results] = (),
    sums: Collection[str] = (),
    ignored: Collection[str] = (),
) -> str | None:
    """Compare results: None if all agree, else the name of the first that does not, and its error.

    NaN agrees with NaN only, an infinity with an infinity of the same sign, at the same place.

    Args:
        actual, expected: results by name; ``expected`` may be in float64 and have more gradients.
        dtype: of the computation; a dtype without tolerances of its own has those of float32.
        steps: T: errors of values grow with its square root.
        rounded: ``expected`` computed in ``dtype``; ``actual`` may lose as much to rounding.
        sums: names of results that are sums over all rows, such as a weight's gradient: an infinite
            factor may come before or after the sum, so ``actual`` may be infinite where
            ``expected`` is NaN.
        ignored: names of results that are not compared.
    """
    if dtype == "float32" and any(value.is_cuda for value in actual.values()):
        dtype = _ROUNDED_AS.get(precision(), dtype)
    values = _VALUES.get(dtype, _VALUES["float32"]) * math.sqrt(steps)
    gradients = _GRADIENTS.get(dtype, _GRADIENTS["float32"])
    for name in (actual.keys() & expected.keys()).difference(ignored):
        if actual[name].shape != expected[name].shape:
            return f"{name} has shape {list(actual[name].shape)}, not {list(expected[name].shape)}"
        a, b = _subsample(actual[name]), _subsample(expected[name])
        near = [_subsample(result[name]) for result in rounded]
        kind, kinds = _classify(a), torch.stack([_classify(value) for value in (b, *near)])
        alike = (kind == kinds).any(0)
        if name in sums:
            alike |= ((kinds == _NAN) & ~a.isfinite()).any(0)
        if not alike.all():
            return f"{name} has NaN or infinities in other places"
        finite = (kinds == _FINITE).all(0)
        a, b, near = a[finite], b[finite], [value[finite] for value in near]
        if not b.numel():
            continue
        gradient = name.startswith("gradient")
        error = _distance(a, b, gradient)
        loss, size = _loss(b, near, gradient)
        allowed = gradients * max(size, 1e-3) if gradient else values * max(1.0, size)
        if loss <= _MOST_LOST * max(size, 1.0):
            allowed = max(allowed, _LOST * loss)
        if not error <= allowed:
            return f"{name} is off by {error:.2g} (at most {allowed:.2g})"
    return None


def lost_in_rounding(expected: Results, rounded: Sequence[Results]) -> frozenset[str]:
    """Names of results that rounding makes too inaccurate to judge a kernel by.

    An example is a sum of cancelling cotangents that grow from step to step.
    """
    names: list[str] = []
    for name in expected.keys() & rounded[0].keys():
        b, near = _subsample(expected[name]), [_subsample(result[name]) for result in rounded]
        finite = torch.stack([value.isfinite() for value in (b, *near)]).all(0)
        near = [value[finite] for value in near]
        if finite.any():
            loss, size = _loss(b[finite], near, name.startswith("gradient"))
            if loss > _MOST_LOST * max(size, 1.0):
                names.append(name)
    return frozenset(names)


def finite(results: Results) -> bool:
    """Whether the compared elements of every result are finite."""
    return all(bool(_subsample(value).isfinite().all()) for value in results.values())


def _classify(value: Tensor) -> Tensor:
    """Classify each element: finite, NaN, or the sign of an infinity."""
    odd = value.nan_to_num(_NAN, posinf=1.0, neginf=-1.0)
    return torch.where(value.isfinite(), _FINITE, odd)


def _loss(expected: Tensor, rounded: Sequence[Tensor], gradient: bool) -> tuple[float, float]:
    """Largest rounding error of a result, and the result's size."""
    loss = max((_distance(result, expected, gradient) for result in rounded), default=0.0)
    return loss, _rms(expected) if gradient else float(expected.abs().max())


def _distance(a: Tensor, b: Tensor, gradient: bool) -> float:
    return _rms(a - b) if gradient else float((a - b).abs().max())


def _rms(value: Tensor) -> float:
    return float(value.square().mean().sqrt()) if value.numel() else 0.0


def _subsample(value: Tensor) -> Tensor:
    """At most ``_COMPARED`` elements, in float64: all, or short spans of a large result."""
    flat = value.detach().reshape(-1)
    stride = -(-flat.numel() // _COMPARED)
    if stride > 1:
        length = flat.numel() // _SPAN * _SPAN
        # an odd stride, so that spans do not all fall at the same place of rows
        flat = flat[:length].view(-1, _SPAN)[:: stride | 1].reshape(-1)
    return flat.double()

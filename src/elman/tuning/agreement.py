"""Whether two engines computed the same: a guard against wrong kernels, not a judge of rounding."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from elman.engines.precision import precision

# Ten times what the tests allow: a wrong kernel is off by far more, and a rounding that is merely
# unlucky must not cost the user the faster engine.
_VALUES = {"float32": 1e-4, "float64": 1e-10, "float16": 1e-2, "bfloat16": 5e-2}
_GRADIENTS = {"float32": 1e-3, "float64": 1e-9, "float16": 1e-1, "bfloat16": 2e-1}
_ROUNDED_AS = {"tf32": "float16"}  # products of float32 on a GPU: as many bits as float16 has


def _rms(value: Tensor) -> float:
    return float(value.square().mean().sqrt()) if value.numel() else 0.0


def disagreement(
    got: Mapping[str, Tensor], want: Mapping[str, Tensor], dtype: str, steps: int
) -> str | None:
    """None if all values agree, else which one is off, and by how much.

    Args:
        got, want: results by name; ``want`` may be in float64, and may name more gradients.
        dtype: of the computation; one without a row is held to float32's.
        steps: T: errors of values grow with its root.
    """
    if dtype == "float32" and any(value.is_cuda for value in got.values()):
        dtype = _ROUNDED_AS.get(precision(), dtype)
    values = _VALUES.get(dtype, _VALUES["float32"]) * math.sqrt(steps)
    gradients = _GRADIENTS.get(dtype, _GRADIENTS["float32"])
    for name in got.keys() & want.keys():
        a, b = got[name].detach().double(), want[name].detach().double()
        if a.shape != b.shape:
            return f"{name} has shape {list(a.shape)}, not {list(b.shape)}"
        finite = b.isfinite()
        if not torch.equal(finite, a.isfinite()):
            return f"{name} is not finite in other places"
        a, b = a[finite], b[finite]
        if not b.numel():
            continue
        if name.startswith("gradient"):
            error, allowed = _rms(a - b), gradients * max(_rms(b), 1e-3)
        else:
            error, allowed = float((a - b).abs().max()), values * max(1.0, float(b.abs().max()))
        if not error <= allowed:
            return f"{name} is off by {error:.2g} (at most {allowed:.2g})"
    return None

"""Surrogates of a spike's derivative, by the names that snnTorch, Norse and SpikingJelly use.

Each takes v, which is what is compared with 0, and gives the derivative. Formulas as of snnTorch
0.9 (``snntorch.surrogate``), Norse 1.1 (``norse.torch.functional.threshold``, ``superspike``) and
SpikingJelly 0.0.0.0.14 (``spikingjelly.activation_based.surrogate``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import pi
from types import MappingProxyType
from typing import Any

from elman.frontend import functions as f


def fast_sigmoid(v: Any, slope: Any = 25.0) -> Any:
    """1 / (1 + slope |v|)²: snnTorch's ``fast_sigmoid``, Norse's ``superspike`` (slope 100 there).

    Source: Zenke & Ganguli 2018, arXiv:1705.11146v2, section 2.3.
    """
    return 1.0 / (1.0 + slope * f.abs(v)) ** 2


def atan(v: Any, alpha: Any = 2.0) -> Any:
    """alpha / 2 / (1 + (π / 2 · alpha · v)²): ``atan`` of snnTorch, ``ATan`` of SpikingJelly.

    Source: Fang et al. 2021, arXiv:2007.05785v5.
    """
    return 0.5 * alpha / (1.0 + (0.5 * pi * alpha * v) ** 2)


def sigmoid(v: Any, slope: Any = 25.0) -> Any:
    """slope · σ(slope v) (1 - σ(slope v)): ``sigmoid`` of snnTorch, ``Sigmoid`` of SpikingJelly
    (slope 4 there, called alpha)."""
    s = f.sigmoid(slope * v)
    return slope * s * (1.0 - s)


def triangular(v: Any, height: Any = 1.0, width: Any = 1.0) -> Any:
    """height · max(0, 1 - |v| / width): Norse's ``tent`` (width 1), SpikingJelly's
    ``PiecewiseQuadratic`` of α (height α, width 1 / α).

    Bellec et al. 2018 (arXiv:1803.09574v4) take height 0.3 of a v in units of the threshold.
    snnTorch's ``triangular`` is something else.
    """
    return height * f.relu(1.0 - f.abs(v) / width)


SURROGATES: Mapping[str, Callable[..., Any]] = MappingProxyType(
    {one.__name__: one for one in (fast_sigmoid, atan, sigmoid, triangular)}
)

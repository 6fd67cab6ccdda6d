"""Layer and group normalisation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from elman.frontend import functions as f
from elman.steps.arrays import arithmetic, views
from elman.steps.arrays.arithmetic import combine
from elman.steps.arrays.array import Array, refuse
from elman.steps.operations.table import op_named, row


def _normalised(a: Array, axes: Sequence[int], eps: float) -> tuple[Array, Array, Array]:
    mean = arithmetic.reduced("mean", a, axes, True)
    off = combine(op_named("sub"), a, mean)
    var = arithmetic.reduced("var", a, axes, True)
    scale = combine(lambda v: 1.0 / f.sqrt(v + eps), var)
    return combine(op_named("mul"), off, scale), mean, scale


def _affine(value: Array, weight: Array | None, bias: Array | None) -> Array:
    if weight is not None:
        value = combine(op_named("mul"), value, weight)
    return value if bias is None else combine(op_named("add"), value, bias)


@row("native_layer_norm")
def _layer_norm(
    a: Array, shape: Sequence[int], weight: Any, bias: Any, eps: float
) -> tuple[Array, Array, Array]:
    axes = [*range(len(a.shape) - len(shape), len(a.shape))]
    value, mean, scale = _normalised(a, axes, eps)
    return _affine(value, weight, bias), mean, scale


@row("native_group_norm")
def _group_norm(a: Array, weight: Any, bias: Any, *sizes: Any) -> tuple[Array, Array, Array]:
    _, channels, pixels, groups, eps = sizes
    if a.batch != 0 or a.shape[0] != 1:
        raise refuse("samples are not the first axis")
    apart = views.reshape(a, (1, groups, channels // groups * pixels), 0)
    value, mean, scale = _normalised(apart, [2], eps)
    value = views.reshape(value, a.shape, 0)
    ones = (1,) * (len(a.shape) - 2)
    wide = [
        None if w is None else views.reshape(w, (channels, *ones), None) for w in (weight, bias)
    ]
    return _affine(value, *wide), mean, scale

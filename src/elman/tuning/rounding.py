"""The effect of a dtype's rounding: the oracle in float64 with a random rounding error in every
value and every cotangent."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd import Function

from elman.engines.base import Job, Kernel
from elman.engines.reference.engine import Change, ReferenceKernel, change_of
from elman.ir.graph import Node
from elman.ir.ops import FLAT, OPS, STAND_INS

_EXACT = (
    *FLAT,
    *STAND_INS,
    "where",
    "const",
    "count",
    "transpose",
    "neg",
    "spread",
    "uniform",
)
# whose arguments' cotangents are the result's: nothing is multiplied, so nothing is rounded
_PASSED_BACK = ("add", "sub", "relu", "abs", "minimum", "maximum", "sum", "amax")


class _RoundedBack(Function):
    """``apply(v, error)``: v; its cotangent is off by a relative error."""

    @staticmethod
    def forward(ctx: Any, v: Tensor, error: Tensor) -> Tensor:
        """The value."""
        ctx.save_for_backward(error)
        return v.view_as(v)

    @staticmethod
    def backward(ctx: Any, d: Tensor) -> Any:  # type: ignore[override]
        """The cotangent times 1 + error."""
        (error,) = ctx.saved_tensors
        return d * (1.0 + error), None


def _each(change: Change, node: Node, compute: Callable[..., Tensor], *args: Tensor) -> Tensor:
    return change(node, compute, [*args])


def unsteady(job: Job, seed: int = 0) -> Kernel:
    """The oracle of a job with :func:`rounding_errors` of its dtype.

    Sums that cancel, recurrences that amplify, and their derivatives, show by how much they do:
    d / g - d * (g / g) / g is 0 but for the rounding of either term.
    """
    errors, products = rounding_errors(job.spec.dtype, seed), change_of(job)

    def with_errors(node: Node, compute: Callable[..., Tensor], args: list[Tensor]) -> Tensor:
        if products is None:
            return errors(node, compute, args)
        return errors(node, partial(_each, products, node, compute), args)

    return ReferenceKernel(job.graph, dict(job.spec.dims), with_errors)


def rounding_errors(dtype: str, seed: int = 0) -> Change:
    """A change of the oracle: a random rounding error of a dtype in each result of an op, and in
    each product of a cotangent and a derivative. ``seed`` is of the errors.
    """
    numbers = torch.finfo(getattr(torch, dtype))
    eps, least = numbers.eps, numbers.eps * numbers.tiny  # the least is subnormal
    source = np.random.default_rng(seed)

    def error(of: Tensor) -> Tensor:
        return torch.from_numpy(source.uniform(-eps, eps, tuple(of.shape))).to(of)

    def perturb(node: Node, compute: Callable[..., Tensor], args: list[Tensor]) -> Tensor:
        if node.op in _EXACT or OPS[node.op].kind == "move":
            return compute(*args)
        if node.op not in _PASSED_BACK:
            args = [_RoundedBack.apply(arg, error(arg)) for arg in args]
        value = compute(*args)
        last = torch.from_numpy(source.integers(-1, 2, tuple(value.shape))).to(value) * least
        return value * (1.0 + error(value)) + torch.where(value == 0, 0.0, last)

    return perturb

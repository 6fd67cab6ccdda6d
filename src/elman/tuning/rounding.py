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

from elman.engines.arrays import Arrays
from elman.engines.base import Job, Kernel
from elman.engines.reference.engine import Change, ReferenceKernel, change_of, steps
from elman.ir.evaluate import units_of
from elman.ir.graph import Graph, Node
from elman.ir.ops import COMPARISONS, FLAT, OF_PARTS, OPS, STAND_INS
from elman.tuning.trial import Trial

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
    *OF_PARTS,
)
# ops that pass the result's cotangent on without a product, hence without rounding
_PASSED_BACK = ("add", "sub", "relu", "abs", "minimum", "maximum", "sum", "amax")


class _PerturbedBack(Function):
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


def _apply(change: Change, node: Node, compute: Callable[..., Tensor], *args: Tensor) -> Tensor:
    return change(node, compute, [*args])


def unsteady(job: Job, seed: int = 0) -> Kernel:
    """The oracle of a job with :func:`rounding_errors` of its dtype.

    Its results show how far cancelling sums and amplifying recurrences carry rounding errors:
    d / g - d * (g / g) / g is 0 except for the rounding of its terms.
    """
    errors, products = rounding_errors(job.spec.dtype, seed), change_of(job)

    def with_errors(node: Node, compute: Callable[..., Tensor], args: list[Tensor]) -> Tensor:
        if products is None:
            return errors(node, compute, args)
        return errors(node, partial(_apply, products, node, compute), args)

    return ReferenceKernel(job.graph, dict(job.spec.dims), with_errors)


def rounding_errors(dtype: str, seed: int = 0) -> Change:
    """A change of the oracle: a random rounding error of a dtype in each result of an op, and in
    each product of a cotangent and a derivative. ``seed``: of the errors."""
    numbers = torch.finfo(getattr(torch, dtype))
    eps, least = numbers.eps, numbers.eps * numbers.tiny  # the least is subnormal
    source = np.random.default_rng(seed)

    def error(of: Tensor) -> Tensor:
        return torch.from_numpy(source.uniform(-eps, eps, tuple(of.shape))).to(of)

    def perturb(node: Node, compute: Callable[..., Tensor], args: list[Tensor]) -> Tensor:
        if node.op in _EXACT or OPS[node.op].kind == "move":
            return compute(*args)
        if node.op not in _PASSED_BACK:
            args = [_PerturbedBack.apply(arg, error(arg)) for arg in args]
        value = compute(*args)
        last = torch.from_numpy(source.integers(-1, 2, tuple(value.shape))).to(value) * least
        return value * (1.0 + error(value)) + torch.where(value == 0, 0.0, last)

    return perturb


# a gap is near a threshold if it is at most so many spacings of numbers near 1, and at most so many
# times the largest error among _SEEDS runs with random rounding errors
_ROUNDING = 100.0
_MOVED, _SEEDS = 30.0, 4
_KINKS = ("relu", "abs", "sign")  # thresholds at 0
_TIED = ("minimum", "maximum", *COMPARISONS)  # thresholds where both operands are equal
_JUMPS = {"floor": 0.0, "round": 0.5, "remainder": 0.0}  # thresholds at whole numbers plus this
_LARGEST = ("amax", "argmax")  # thresholds where the two largest units are equal
_ARRAYS = Arrays(torch.float64, torch.device("cpu"))


def has_ties(graph: Graph) -> bool:
    """Whether a value or a derivative of a step jumps anywhere."""
    return any(_operands(value) for value in graph.walk())


def near_ties(trial: Trial) -> Tensor:
    """Find the samples of a trial that rounding may move across a threshold.

    Args:
        trial: in float64; nearness is judged in its job's dtype.

    Returns:
        [B], bool. A gap of exactly 0 does not count: the formula makes it 0, not chance.
    """
    job, dims = trial.job, dict(trial.job.spec.dims)
    eps = torch.finfo(getattr(torch, job.spec.dtype)).eps
    close = torch.zeros(trial.call.sizes[1], dtype=torch.bool)
    kinked = [value for value in job.graph.walk() if _operands(value)]
    changes = (None, *(rounding_errors(job.spec.dtype, seed) for seed in range(_SEEDS)))
    runs = [steps(job.graph, dims, trial.call, change) for change in changes]
    with torch.no_grad():
        for exact, *rounded in zip(*runs, strict=True):
            for kink in kinked:
                gap, size = _gap(kink, exact[0], dims)
                near = (gap != 0) & (gap.abs() <= _ROUNDING * eps * _largest(size).clamp(min=1.0))
                if not near.any():
                    continue
                off = [(_gap(kink, values, dims)[0] - gap).abs() for values, _, _ in rounded]
                near &= ~(gap.abs() > _MOVED * (torch.stack(off).amax(0) + eps * size))
                if near.dim() and near.shape[0] == len(close):
                    close |= near.flatten(1).any(1) if near.dim() > 1 else near
    return close


def _largest(size: Tensor) -> Tensor:
    return size.max() if size.numel() else size.sum()


def _gap(kink: Node, values: dict[Node, Tensor], dims: dict[str, int]) -> tuple[Tensor, Tensor]:
    """The difference that decides at a threshold, and the size of its operands, unit by unit."""
    if kink.op in _LARGEST:
        return _lead(units_of(_ARRAYS, kink, tuple(values[arg] for arg in kink.args), dims))
    parts = [
        values[arg].unsqueeze(-1) if kink.shape and not arg.shape else values[arg]
        for arg in _operands(kink)
    ]
    if kink.op == "remainder":
        parts = [parts[0] / parts[1]]  # the quotient is whole where the remainder jumps
    sizes = [part.abs() for part in parts]
    size = sizes[0] if len(sizes) == 1 else torch.maximum(sizes[0], sizes[1])
    if kink.op in _JUMPS:
        offset = parts[0] - _JUMPS[kink.op]
        return offset - offset.round(), size
    return (parts[0] if len(parts) == 1 else parts[0] - parts[1]), size


def _lead(units: Tensor) -> tuple[Tensor, Tensor]:
    """The gap between the two largest numbers of the last axis, and the size of the numbers."""
    first = units.topk(min(2, units.shape[-1]), -1).values
    return first[..., 0] - first[..., -1], first.abs().amax(-1)


def _operands(value: Node) -> tuple[Node, ...]:
    """The values whose difference, or value, decides at a threshold; none if they depend on weights
    alone, so that kernel and oracle decide equally."""
    if value.op in (*_KINKS, *_TIED, *_JUMPS, *_LARGEST):
        operands = value.args
    elif value.op == "where" and value.args[0].op not in COMPARISONS:
        operands = value.args[:1]
    else:
        return ()
    return operands if any(arg.rate for arg in operands) else ()

"""What a dtype may lose: the oracle in float64, every value off by as much as rounding may; and
samples so near to a threshold that rounding decides on which side they are.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from elman.engines.arrays import Arrays
from elman.engines.base import Job, Kernel
from elman.engines.reference.engine import ReferenceKernel, steps
from elman.ir.evaluate import units_of
from elman.ir.graph import Graph, Node
from elman.ir.ops import COMPARISONS, FLAT, OPS, STAND_INS
from elman.tuning.trial import Trial

_EXACT = (*FLAT, *STAND_INS, "where", "const", "count", "transpose", "neg", "spread", "uniform")


def unsteady(job: Job, seed: int = 0) -> Kernel:
    """The oracle of a job, each result of an op off by one random rounding error of its dtype.

    Sums that cancel, recurrences that amplify, and their derivatives, show by how much they do.
    ``seed`` is of the errors.
    """
    numbers = torch.finfo(getattr(torch, job.spec.dtype))
    eps, least = numbers.eps, numbers.eps * numbers.tiny  # the least is subnormal
    source = np.random.default_rng(seed)

    def rounded(node: Node, value: Tensor) -> Tensor:
        if node.op in _EXACT or OPS[node.op].kind == "move":
            return value
        error = torch.from_numpy(source.uniform(-eps, eps, tuple(value.shape)))
        last = torch.from_numpy(source.integers(-1, 2, tuple(value.shape))).to(value) * least
        return value * (1.0 + error.to(value)) + torch.where(value == 0, 0.0, last)

    return ReferenceKernel(job.graph, dict(job.spec.dims), rounded)


_ROUNDING = 100.0  # times the spacing of numbers near 1: what a few steps may be off by
_KINKS = ("relu", "abs", "sign")  # at 0
_TIED = ("minimum", "maximum", *COMPARISONS)  # where both operands are equal
_JUMPS = {"floor": 0.0, "round": 0.5, "remainder": 0.0}  # at every whole number and this
_LARGEST = ("amax", "argmax")  # where the two largest units are equal
_ARRAYS = Arrays(torch.float64, torch.device("cpu"))


def has_ties(graph: Graph) -> bool:
    """Whether a value or a derivative of a step jumps anywhere."""
    return any(_operands(value) for value in graph.walk())


def near_ties(trial: Trial) -> Tensor:
    """Find the samples of a trial that rounding may send to another side of a threshold.

    Args:
        trial: in float64; the threshold of nearness follows its job's dtype.

    Returns:
        [B], bool. A difference of exactly 0 is none: it is so by the formula, not by chance.
    """
    job, dims = trial.job, dict(trial.job.spec.dims)
    close = _ROUNDING * torch.finfo(getattr(torch, job.spec.dtype)).eps
    found = torch.zeros(trial.call.sizes[1], dtype=torch.bool)
    kinked = [value for value in job.graph.walk() if _operands(value)]
    with torch.no_grad():
        for values, _, _ in steps(job.graph, dims, trial.call):
            for kink in kinked:
                gap, scale = _gap(kink, values, dims)
                near = (gap != 0) & (gap.abs() <= close * max(1.0, scale))
                if near.dim() and near.shape[0] == len(found):
                    found |= near.flatten(1).any(1) if near.dim() > 1 else near
    return found


def _gap(kink: Node, values: dict[Node, Tensor], dims: dict[str, int]) -> tuple[Tensor, float]:
    """What decides at a threshold, and the size of the numbers that it is a difference of."""
    if kink.op in _LARGEST:
        return _lead(units_of(_ARRAYS, kink, tuple(values[arg] for arg in kink.args), dims))
    parts = [
        values[arg].unsqueeze(-1) if kink.shape and not arg.shape else values[arg]
        for arg in _operands(kink)
    ]
    if kink.op == "remainder":
        parts = [parts[0] / parts[1]]  # which is whole where it jumps
    scale = max(float(part.abs().max()) if part.numel() else 0.0 for part in parts)
    if kink.op in _JUMPS:
        offset = parts[0] - _JUMPS[kink.op]
        return offset - offset.round(), scale
    return (parts[0] if len(parts) == 1 else parts[0] - parts[1]), scale


def _lead(units: Tensor) -> tuple[Tensor, float]:
    """By how much the largest of the last axis leads, and how large the numbers are."""
    first = units.topk(min(2, units.shape[-1]), -1).values
    scale = float(first.abs().max()) if first.numel() else 0.0
    return first[..., 0] - first[..., -1], scale


def _operands(value: Node) -> tuple[Node, ...]:
    """The values whose difference (or whose one value) decides; weights alone decide alike."""
    if value.op in (*_KINKS, *_TIED, *_JUMPS, *_LARGEST):
        operands = value.args
    elif value.op == "where" and value.args[0].op not in COMPARISONS:
        operands = value.args[:1]
    else:
        return ()
    return operands if any(arg.rate for arg in operands) else ()

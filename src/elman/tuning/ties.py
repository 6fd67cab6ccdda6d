"""Samples so near to a threshold that rounding decides on which side they are."""

from __future__ import annotations

import torch
from torch import Tensor

from elman.engines.arrays import Arrays
from elman.engines.reference.engine import steps
from elman.ir.evaluate import units_of
from elman.ir.graph import Graph, Node
from elman.ir.ops import COMPARISONS
from elman.tuning.rounding import rounding_errors
from elman.tuning.trial import Trial

_ROUNDING = 100.0  # times the spacing of numbers near 1: what a few steps may be off by at most …
_MOVED, _SEEDS = 30.0, 4  # … if that is no more than so often what runs with errors are off by
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
        parts = [parts[0] / parts[1]]  # which is whole where it jumps
    sizes = [part.abs() for part in parts]
    size = sizes[0] if len(sizes) == 1 else torch.maximum(sizes[0], sizes[1])
    if kink.op in _JUMPS:
        offset = parts[0] - _JUMPS[kink.op]
        return offset - offset.round(), size
    return (parts[0] if len(parts) == 1 else parts[0] - parts[1]), size


def _lead(units: Tensor) -> tuple[Tensor, Tensor]:
    """The lead of the largest number of the last axis, and the size of the numbers."""
    first = units.topk(min(2, units.shape[-1]), -1).values
    return first[..., 0] - first[..., -1], first.abs().amax(-1)


def _operands(value: Node) -> tuple[Node, ...]:
    """The values whose difference (or whose one value) decides; weights alone decide alike."""
    if value.op in (*_KINKS, *_TIED, *_JUMPS, *_LARGEST):
        operands = value.args
    elif value.op == "where" and value.args[0].op not in COMPARISONS:
        operands = value.args[:1]
    else:
        return ()
    return operands if any(arg.rate for arg in operands) else ()

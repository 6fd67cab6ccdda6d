"""What a dtype may lose: the oracle in float64, every value off by as much as rounding may."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from elman.engines.base import Job, Kernel
from elman.engines.reference.engine import ReferenceKernel
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

"""What a dtype may lose: the oracle in float64, every value off by as much as rounding may."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from elman.engines.base import Job, Kernel
from elman.engines.reference.engine import ReferenceKernel
from elman.ir.evaluate import apply
from elman.ir.graph import Node, walk
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


def unsteady(job: Job) -> Kernel:
    """The oracle of a job, each result of an op off by one random rounding error of its dtype.

    Sums that cancel, recurrences that amplify, and their derivatives, show by how much they do.
    """
    eps = torch.finfo(getattr(torch, job.spec.dtype)).eps
    source = np.random.default_rng(0)

    def evaluated(
        xp: Any, roots: tuple[Node, ...], values: dict[Node, Tensor], dims: Mapping[str, int]
    ) -> tuple[Tensor, ...]:
        for value in walk(roots, stop=lambda node: node in values):
            if value in values:
                continue
            result = apply(xp, value, tuple(values[arg] for arg in value.args), dims)
            if value.op not in _EXACT and OPS[value.op].kind != "move":
                error = torch.from_numpy(source.uniform(-eps, eps, tuple(result.shape)))
                result = result * (1.0 + error.to(result))
            values[value] = result
        return tuple(values[root] for root in roots)

    return ReferenceKernel(job.graph, dict(job.spec.dims), evaluated)

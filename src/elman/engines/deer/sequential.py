"""Sequential runs: by another engine's kernel if possible, else by torch ops."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from elman.engines import deadline, registry
from elman.engines.base import Job, Kernel
from elman.engines.call import Call
from elman.engines.deer.equations import Equations
from elman.engines.deer.iterations import Trajectory
from elman.ir.graph import Node


def sequential_kernel(job: Job) -> Kernel | None:
    """A kernel that keeps the rows of all states, if the sequential engine has one for this job."""
    engine = registry.find("c")
    options = replace(job.spec.options, tape="recompute")
    spec = replace(job.spec, training=True, options=options)
    taped = Job(job.name, job.graph, job.pair, spec)
    return engine.compile(taped) if engine.supports(taped) is None else None


def rows_by_kernel(kernel: Kernel, call: Call, states: Sequence[Node]) -> list[Tensor]:
    """Rows [T + 1, B, n] of every state; [T + 1, B] of a scalar."""
    saved = kernel.forward(call).saved
    return [
        rows if leaf.shape else rows.squeeze(-1) for rows, leaf in zip(saved, states, strict=False)
    ]


def run_sequentially(equations: Equations) -> Trajectory:
    """All states by torch ops, a step at a time."""
    state = equations.start
    computed: list[Trajectory] = []
    for t in range(equations.steps):
        deadline.check()
        states = tuple(part.unsqueeze(0) for part in state)
        values = equations.values(states, slice(t, t + 1))
        computed.append(values)
        state = tuple(part[0] for part in values)
    return tuple(torch.cat(pieces) for pieces in zip(*computed, strict=True))

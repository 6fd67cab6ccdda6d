"""Kernels of engine c called directly: with any prices, blocks and schedule, and no tuning."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from calls import Results
from elman import compiler
from elman.engines.c.engine import PRICES
from elman.engines.c.run.kernel import CKernel
from elman.frontend.cell import Cell
from elman.frontend.trace import Tracer
from elman.ir.graph import node
from elman.ir.types import names_in
from elman.plan.build import program
from elman.plan.prices import Prices
from elman.plan.schedule import SPLITS, USUAL_BLOCKS, Blocks, Bound
from helpers import GRADIENT, VALUE, Case, Sizes, need, random_case, run
from random_cells import Drawn
from specs import spec_of

_kernels: dict[object, CKernel] = {}


def c_kernel(
    case: Case, *, prices: Prices = PRICES, blocks: Blocks = USUAL_BLOCKS, **options: Any
) -> CKernel:
    """The kernel of engine c for a case, made once; ``options`` override fields of Spec."""
    wants = frozenset((*case.inputs, *case.weights))
    fields = {"dtype": str(case.dtype).removeprefix("torch."), "wants": wants, **options}
    spec = spec_of(case.dims.items(), **fields)
    key = (case.cell, spec, prices, blocks)
    if key not in _kernels:
        job = compiler.job(case.cell, spec)
        need("c", job)
        _kernels[key] = CKernel(job, program(job.pair, spec, prices), blocks)
    return _kernels[key]


def scheduled(
    monkeypatch: pytest.MonkeyPatch, kernel: CKernel, split: str, workers: int, chunk: int
) -> None:
    """Fix how every call of a kernel runs, for one test."""
    fixed = Bound(SPLITS.index(split) if workers > 1 else 0, workers, chunk)
    monkeypatch.setattr(kernel, "schedule", lambda T, B: fixed)
    monkeypatch.setattr(kernel, "_plans", {})  # what was planned under another schedule


def ill_conditioned(case: Case, want: Results) -> set[str]:
    """Results that float32 cannot give within the table: the oracle itself, in float32, misses it.

    Sums that cancel (a bias before a softmax has no gradient at all) say nothing about a kernel.
    """
    if case.dtype is torch.float64:
        return set()
    return unlike(run(case.cell, case, "reference"), want, case.dtype)


def unlike(found: Results, want: Results, dtype: torch.dtype) -> set[str]:
    """Results that are off by more than a tenth of what the table allows."""
    bad: set[str] = set()
    for name, value in found.items():
        error = (value.double() - want[name]).square().mean().sqrt().item()
        scale = want[name].square().mean().sqrt().item()
        allowed = GRADIENT[dtype] * scale if name[0] == "d" else VALUE[dtype]
        if not error <= 0.1 * allowed:
            bad.add(name)
    return bad


def unit(like: Tracer, at: float = 0.0) -> Tracer:
    """A vector that is 1 at one place, which a constant tells, and 0 elsewhere. There is no such
    function for authors; steps in torch pick rows by it."""
    return Tracer(node("one_hot", (node("const", (), (at,)),), (), like.node.shape))


def cell_from(text: str) -> Cell:
    """The cell that a text defines under the name ``drawn``; :func:`unit` is a name there, too."""
    import linecache

    from elman import cell, ops

    file = "<drawn>"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    names = {"cell": cell, "unit": unit, **{name: getattr(ops, name) for name in ops.__all__}}
    exec(compile(text, file, "exec"), names)
    return names["drawn"]


def case_of(drawn: Drawn, T: int, B: int, dtype: torch.dtype) -> Case:
    """Random arguments for a drawn cell."""
    cell = cell_from(drawn.text)
    declared = (*cell.inputs, *cell.states, *cell.weights)
    names = {name for entry in declared for name in names_in(entry.shape)}
    more = (("P", drawn.P),) if "P" in names else ()
    return random_case(cell, Sizes(T, B, drawn.I, drawn.H, more), 1, dtype)

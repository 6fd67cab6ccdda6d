"""Random cells with a matrix per sample on engine c, against engine reference in float64.

    python benchmarks/robustness/random_matrix_cells.py --seeds 0:1000

A seed draws a cell (tests/random_matrices.py), its sizes, and how it runs: for training or not, one
step at a time or merged, over how many samples and steps, by how many threads. Values, last states
and every gradient are compared. Every fifth cell also trains as a module, with random numbers and
options of a module; every tenth has second derivatives; every tenth is exported to C. Forked
processes of some cells each do the work. ELMAN_ISA names another instruction set, such as avx2.
Kernels are kept in ELMAN_CACHE if that is set, else for this run.
"""

from __future__ import annotations

import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from forking import Ended, forked
from seeds import run_seeds
from torch import Tensor
from torch.utils._pytree import tree_leaves

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))

import elman
from calls import call
from elman.ir.types import axes_of, is_matrix
from elman.tuning.kernels import kernel_of
from exported_c import check as check_exported
from helpers import assert_all_same, assert_close, job_of, oracle
from kernels import case_of, cell_from
from random_cells import Drawn
from random_matrices import cell_of_weights, linear_matrix_cell, matrix_cell

CELLS, LIMIT_S = 25, 600.0  # of a process; of a cell
F64 = torch.float64
OPTIONS: dict[str, Sequence[Any]] = {
    "bidirectional": (False, False, True),
    "batch_first": (False, True),
    "learn_initial": (False, True),
    "zoneout": (0.0, 0.0, 0.3, {"S": 0.4}),
    "clip_gradient": (None, None, 0.05),
    "plan": tuple(elman.PlanOptions(checkpoint=k) for k in (None, None, 2)),
}


def kernel_agrees(drawn: Drawn, draw: random.Random) -> None:
    """A kernel in some schedule, called directly."""
    case = case_of(drawn, draw.choice([1, 2, 5, 8, 11, 19]), draw.choice([1, 2, 3, 4]), F64)
    training = draw.random() < 0.7
    tape = draw.choice(["auto", "auto", "save", "recompute"])
    job = job_of(case, training=training, tape=tape)
    schedule = draw.choice(["one", "batch", "units"])
    if job.several is not None and draw.random() < 0.7:
        schedule = f"4-steps/{draw.choice(['one', 'batch'])}"
    found = call(kernel_of(job, "c", schedule), case)
    want = oracle(case)
    if not training:
        want = {name: value for name, value in want.items() if name[0] != "d"}
    assert_all_same(found, want, F64, case.T)


def module_of(drawn: Drawn, **options: Any) -> tuple[Any, Callable[[int], tuple[Tensor, ...]]]:
    """A module of the cell, and what draws its inputs of so many steps."""
    cell = cell_from(drawn.text)
    torch.manual_seed(0)
    net = elman.Recurrent(cell, drawn.I, drawn.H, K=drawn.I, V=drawn.H, dtype=F64, **options)
    for value in net._initial():
        torch.nn.init.normal_(value, std=0.5)
    dims = dict(next(iter(net.runners.values())).dims)
    axes = [
        (axes_of(x.shape[0][0], dims) if is_matrix(x) else None) or size
        for x, (_, size) in zip(cell.inputs, net.runtime.signature.inputs, strict=True)
    ]

    def inputs(steps: int, batch: int = 3) -> tuple[Tensor, ...]:
        lead = (batch, steps) if net.batch_first else (steps, batch)
        source = torch.Generator().manual_seed(1)
        return tuple(
            torch.randn(*lead, *size, generator=source, dtype=F64).requires_grad_() for size in axes
        )

    return net, inputs


def results(net: Any, x: tuple[Tensor, ...], order: int, **more: Any) -> list[Tensor]:
    """Values of a call, and gradients up to an order, of whatever requires one."""
    torch.manual_seed(2)
    values = tree_leaves(net(x if len(x) > 1 else x[0], **more))
    found, wanted = list(values), [*x, *net.parameters()]
    for _ in range(order):
        source = torch.Generator().manual_seed(3)
        weighed = [v * torch.randn(v.shape, generator=source, dtype=F64) for v in values]
        loss = torch.cat([v.flatten() for v in (*weighed, *(0 * leaf for leaf in wanted))]).sum()
        values = torch.autograd.grad(loss, wanted, create_graph=order > 1)
        found += values
    return found


def module_agrees(drawn: Drawn, draw: random.Random, order: int = 1) -> None:
    """A module in training, with random numbers, and gradients up to an order."""
    options = (
        {name: draw.choice(choices) for name, choices in OPTIONS.items()} if order == 1 else {}
    )
    net, inputs = module_of(drawn, **options)
    steps = draw.choice([1, 3, 5, 9]) if order == 1 else 3
    x, more = inputs(steps), {}
    if order == 1 and draw.random() < 0.4:
        more["reset"] = torch.rand(x[0].shape[:2]) < 0.3
    expected: list[Tensor] | None = None
    for engine in ("reference", "c"):
        net.engine = engine
        found = results(net, x, order, **more)
        if expected is not None:
            for got, want in zip(found, expected, strict=True):
                assert_close(got, want)
        expected = found


def exported_agrees(drawn: Drawn, draw: random.Random) -> None:
    """Exported C, by vectors of some width."""
    cell = cell_from(drawn.text)
    torch.manual_seed(0)
    net = elman.Recurrent(cell, drawn.I, drawn.H, K=drawn.I, V=drawn.H, learn_initial=True)
    for value in net._initial():
        torch.nn.init.normal_(value)
    with tempfile.TemporaryDirectory() as folder:
        check_exported(net, Path(folder), draw.choice([1, 4, 8, 16]), atol=1e-4)


def checked(seed: int) -> list[str]:
    """Texts of what went wrong with the cell of a seed, if anything did."""
    draw = random.Random(seed)
    make = draw.choice([matrix_cell, matrix_cell, linear_matrix_cell, linear_matrix_cell])
    drawn = cell_of_weights(draw.choice) if seed % 100 == 99 else make(draw.choice)
    kinds: list[tuple[str, Callable[[], None]]] = [
        ("kernel", lambda: kernel_agrees(drawn, draw)),
    ]
    if seed % 5 == 0:
        kinds.append(("module", lambda: module_agrees(drawn, draw)))
    if seed % 10 == 1:
        kinds.append(("second derivatives", lambda: module_agrees(drawn, draw, order=2)))
    if seed % 10 == 2:
        kinds.append(("exported C", lambda: exported_agrees(drawn, draw)))
    texts: list[str] = []
    for kind, agrees in kinds:
        try:
            agrees()
        except Exception as error:  # whatever it is, it is a failure
            texts.append(f"{kind}: {type(error).__name__}: {error}")
    return [repr(drawn), *texts] if texts else []


def campaign(seeds: Sequence[int], workers: int) -> int:
    """The cells of some seeds, in processes of some each; how many failed."""
    failed, start = 0, time.perf_counter()
    rows: Iterator[tuple[int, Any]] = forked(
        seeds, checked, batch=CELLS, workers=workers, limit_s=lambda seed: LIMIT_S
    )
    for count, (seed, texts) in enumerate(rows, 1):
        if isinstance(texts, Ended):
            texts = ["the process", str(texts)]
        if texts:
            failed += 1
            print(f"seed {seed}:", *texts, sep="\n    ", flush=True)
        if count % (4 * CELLS) == 0:
            hourly = count / (time.perf_counter() - start) * 3600
            print(f"{count} cells, {failed} failed, {hourly:.0f} an hour", flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(run_seeds(__doc__, "cells", campaign, workers=1))

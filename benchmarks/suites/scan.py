"""Suite ``scan``: how fast are linear recurrences over all steps at once?"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from benchmarks.cases import OURS, Case, Effort, Suite, Way, sized
from benchmarks.measures.training import measure_steps
from benchmarks.peers.libraries import facts_of, library, tensor_of
from benchmarks.problem import Contestant, Problem, Results, gradients, trained
from elman.engines.deer.api import linear_scan

_VECTORS, _FACTORS = 5, 3  # arrays like b: b y; y dy db. Like a: a; a da. Each counted once
_ELEMENTS = 1 << 26  # of each array of the bandwidth's measurement, far beyond all caches
_TRIES = 9


def draw_scan(case: Case, seed: int = 0) -> Problem:
    """Factors sigmoid(N(0, 1)), or matrices of norm 1 at most; b and dy from N(0, 1)."""
    source = torch.Generator().manual_seed(seed)
    dtype = getattr(torch, case.dtype)

    size, moved = (case.T, case.B, case.H, *([case.I] if case.I else [])), scanned_bytes(case)

    def normal(*sizes: int) -> Tensor:
        return torch.randn(*size, *sizes, dtype=dtype, generator=source)

    if not case.I:
        return Problem(case, normal(), normal(), {"a": torch.sigmoid(normal())}, moved=moved)
    a = normal(case.I)
    norm = torch.linalg.matrix_norm(a, ord="fro", keepdim=True)
    return Problem(case, normal(), normal(), {"a": a / norm}, moved=moved)


def _contestant(problem: Problem, scan: Any) -> Contestant:
    a = problem.weights["a"].clone().requires_grad_()
    b = problem.x.clone().requires_grad_()

    def forward() -> tuple[tuple[Tensor], Tensor, Tensor]:
        y = scan(a, b)
        return (y,), y, problem.dy

    return trained(forward, {"a": a, "b": b}, name=lambda y: {"output": y.detach()})


def scanned_bytes(case: Case) -> int:
    """Bytes that a forward and a backward read and write, each array counted once."""
    values = case.T * case.B * case.H * max(1, case.I)
    factors = values * max(1, case.I)
    return (_VECTORS * values + _FACTORS * factors) * getattr(torch, case.dtype).itemsize


def loop_scan(problem: Problem) -> Contestant:
    """A loop over torch ops, a step at a time."""

    def loop(a: Tensor, b: Tensor) -> Tensor:
        y, steps = torch.zeros_like(b[0]), []
        for scale, offset in zip(a.unbind(0), b.unbind(0), strict=True):
            y = applied(scale, y) + offset
            steps.append(y)
        return torch.stack(steps)

    return _contestant(problem, loop)


def applied(a: Tensor, y: Tensor) -> Tensor:
    """A factor per channel times y, or a matrix times its last axis."""
    return a * y if a.dim() == y.dim() else (a @ y.unsqueeze(-1)).squeeze(-1)


def torch_associative(problem: Problem) -> Contestant | str:
    """torch's own associative scan (a prototype in 2.13), eager, any joining function."""
    try:
        from torch._higher_order_ops.associative_scan import associative_scan
    except ImportError:
        return "this torch has no associative scan"

    def join(first: Any, second: Any) -> Any:
        a, b = second
        product = a * first[0] if not problem.case.I else a @ first[0]
        return product, applied(a, first[1]) + b

    def scan(a: Tensor, b: Tensor) -> Tensor:
        return associative_scan(join, (a, b), 0, combine_mode="generic")[1]

    return _contestant(problem, scan)


def jax_associative(problem: Problem) -> Contestant | str:
    """``jax.lax.associative_scan``, jitted with its gradient."""
    modules = library("jax", "jax.numpy")
    if isinstance(modules, str):
        return modules
    jax, jnp = modules

    def join(first: Any, second: Any) -> Any:
        if not problem.case.I:
            return second[0] * first[0], second[0] * first[1] + second[1]
        return second[0] @ first[0], (second[0] @ first[1][..., None])[..., 0] + second[1]

    def forward(a: Any, b: Any) -> Any:
        return jax.lax.associative_scan(join, (a, b))[1]

    def training(a: Any, b: Any, dy: Any) -> Any:
        y, pull = jax.vjp(forward, a, b)
        return y, pull(dy)

    compiled = jax.jit(training)
    arrays = [jnp.asarray(v.numpy()) for v in (problem.weights["a"], problem.x, problem.dy)]

    def run() -> Any:
        return jax.block_until_ready(compiled(*arrays))

    def results() -> Results:
        y, grads = run()
        return {"output": tensor_of(y)} | gradients("ab", map(tensor_of, grads))

    return Contestant(run, results, ("a", "b"), partial(facts_of, "jax"))


def measure_bandwidth(case: Case, effort: Effort) -> dict[str, Any]:
    """What memory gives at most: c = a + b over arrays beyond all caches (GB/s, each counted
    once)."""
    del effort
    a, b, c = (torch.ones(_ELEMENTS) for _ in range(3))
    best = float("inf")
    for _ in range(_TRIES):
        start = time.perf_counter()
        torch.add(a, b, out=c)
        best = min(best, time.perf_counter() - start)
    return {"bandwidth_gbs": round(3 * 4 * _ELEMENTS / best / 1e9, 2), "threads": case.threads}


SCANS: dict[str, Callable[[Problem], Contestant | str]] = {
    "loop": loop_scan,
    "jax": jax_associative,
    "torch": torch_associative,
    "elman": partial(_contestant, scan=linear_scan),
}


def enter_scan(name: str, problem: Problem) -> Contestant | str:
    """One of :data:`SCANS`, or why it is absent."""
    return SCANS[name](problem)


WORK = Way("scan", measure_steps, draw_scan, enter_scan, apart=("jax",))
BANDWIDTH = Way("bandwidth", measure_bandwidth)


def _scan(sizes: str, n: int = 0, looped: bool = True, **fields: Any) -> Case:
    """Forward and backward of ``elman.linear_scan``: H channels, or H matrices of n x n; beside a
    loop over torch ops, unless that takes minutes."""
    contestants = ("loop", OURS, "torch", "jax")[not looped :]
    name = f"scan {sizes}" + (f" of {n} x {n}" if n else "")
    fields |= {} if looped else {"baseline": "torch"}
    return sized(name, WORK, *contestants, cell="mingru", I=n, **fields)


SCAN = Suite(
    "scan",
    "How fast are linear recurrences over all steps at once?",
    (
        Case("bandwidth", BANDWIDTH, quick=True),
        _scan("10000,8,256", ratio=10.0),
        _scan("100000,1,64"),
        _scan("1000000,1,4", looped=False),
        _scan("10000,1,8", quick=True),
        _scan("10000,8,64", 2),
        _scan("10000,8,16", 4),
        _scan("10000,1,8", 8),
        _scan("1000,16,1", 32),
    ),
    seconds=2.0,
)

"""Contestants of a whole training step: forward, squared error, gradients of the weights alone.

The model of all of them is ``custom_cells.tanh_readout``: h[t] = tanh(W x[t] + R h[t-1]) from
h[-1] = 0, y[t] = tanh(V h[t]); the loss is the sum of (y - target)² over all elements,
``Problem.dy`` the target.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812  # torch's own habit

import elman.nn
from benchmarks.cases import Case, Way
from benchmarks.contestants import draw_layer, elman_module, leaves_of
from benchmarks.measures.phases import fitting_job
from benchmarks.measures.training import measure_steps
from benchmarks.peers.libraries import facts_of, library
from benchmarks.peers.numpy_bptt import contestant, numpy_bptt, quadratic_bptt
from benchmarks.problem import Contestant, Problem, trained
from elman.engines.c.run.kernel import CKernel
from elman.engines.call import Call
from elman.folders import VARIABLE
from elman.nn.autograd.function import BoundKernel
from elman.plan.build import program
from elman.tuning.kernels import kernel_of

SWITCHES = ("tiling", "simd", "threads")
Forward = Callable[[Tensor], tuple[Tensor, Tensor]]  # x to outputs and the last state


def combination(used: tuple[str, ...]) -> str:
    """The name of engine c with some of :data:`SWITCHES`: ``serial``, ``tiling+simd`` …"""
    return "elman-c" if used == SWITCHES else "+".join(used) or "serial"


COMBINATIONS = {  # name -> what is left out
    combination(tuple(s for s, on in zip(SWITCHES, switched, strict=True) if on)): tuple(
        s for s, on in zip(SWITCHES, switched, strict=True) if not on
    )
    for switched in product((False, True), repeat=len(SWITCHES))
}
WITHOUT = {f"without {name}": (name,) for name in ("specialization", "fusion")}


def draw_fit(case: Case) -> Problem:
    """Draw a layer's problem; the gradient of x is not wanted."""
    return replace(draw_layer(case), wants_x=False)


def fitted(name: str, problem: Problem) -> Contestant | str:
    """A contestant of :data:`FITTERS`, or why it is absent."""
    return FITTERS[name](problem)


def _trained(
    problem: Problem,
    forward: Forward,
    weights: Mapping[str, Tensor],
    facts: Callable[[], dict[str, Any]] = dict,
) -> Contestant:
    """Whatever autograd differentiates."""

    def run() -> tuple[tuple[Tensor, Tensor], Tensor, None]:
        output, last = forward(problem.x)
        return (output, last), (output - problem.dy).square().sum(), None

    return trained(run, weights, facts)


def _elman(problem: Problem, engine: str, without: tuple[str, ...] = ()) -> Contestant:
    """elman's, on an engine, all optimizations used or some left out."""
    module = elman_module(problem, engine=engine, plan=elman.PlanOptions(without=without))
    facts = partial(elman.nn.choices, module)
    return _trained(problem, module, dict(module.named_parameters()), facts)


def _called_per_step(problem: Problem) -> Contestant:
    """Engine c called once for each time step."""
    module = elman_module(problem, engine="c")

    def forward(x: Tensor) -> tuple[Tensor, Tensor]:
        outputs, state = [], None
        for step in x.split(1):
            output, state = module(step, state)
            outputs.append(output)
        assert isinstance(state, Tensor)
        return torch.cat(outputs), state

    return _trained(problem, forward, dict(module.named_parameters()))


@contextmanager
def _empty_cache() -> Iterator[None]:
    """Nothing that was compiled before is found."""
    with (
        tempfile.TemporaryDirectory(prefix="elman-bench-") as folder,
        patch.dict(os.environ, {VARIABLE: folder}),
    ):
        yield


def _compiled_per_run(problem: Problem) -> Contestant:
    """Engine c, compiled anew for each run, as by a compiler that keeps nothing."""
    case, weights, job = problem.case, leaves_of(problem), fitting_job(problem.case)
    start = problem.x.new_zeros(case.B, case.H)
    oracle = partial(kernel_of, job, "reference")

    def forward(x: Tensor) -> tuple[Tensor, Tensor]:
        with _empty_cache():
            kernel = CKernel(job, program(job.pair, job.spec))
        called = Call((x,), (start,), tuple(weights.values()))
        output, last = BoundKernel(kernel, oracle, True).run(called).values
        return output, last

    return _trained(problem, forward, weights)


def _step(row: Tensor, h: Tensor, R: Tensor) -> Tensor:
    return torch.tanh(torch.addmm(row, h, R.t()))


def _readout(states: Tensor, V: Tensor) -> Tensor:
    return torch.tanh(F.linear(states, V))


def _torch(problem: Problem, compiled: bool = False) -> Contestant:
    """A loop over torch ops, eager or its step and its readout by torch.compile; all products of x
    are one."""
    weights = leaves_of(problem)
    step, readout = (
        (torch.compile(_step), torch.compile(_readout)) if compiled else (_step, _readout)
    )

    def forward(x: Tensor) -> tuple[Tensor, Tensor]:
        W, R, V = weights.values()
        h, states = x.new_zeros(x.shape[1], R.shape[0]), []
        for row in F.linear(x, W).unbind(0):
            h = step(row, h, R)
            states.append(h)
        return readout(torch.stack(states), V), h

    return _trained(problem, forward, weights)


def _jax(problem: Problem) -> Contestant | str:
    """JAX: the loop as ``lax.scan``, forward and gradients jitted as one function."""
    modules = library("jax", "jax.numpy")
    if isinstance(modules, str):
        return modules
    jax, jnp = modules

    def loss(weights: Any, x: Any, target: Any) -> Any:
        W, R, V = weights

        def step(h: Any, row: Any) -> tuple[Any, Any]:
            h = jnp.tanh(row + h @ R.T)
            return h, h

        last, states = jax.lax.scan(step, jnp.zeros((x.shape[1], len(R)), x.dtype), x @ W.T)
        output = jnp.tanh(states @ V.T)
        return jnp.square(output - target).sum(), (output, last)

    compiled = jax.jit(jax.grad(loss, has_aux=True))
    weights = [jnp.asarray(value.numpy()) for value in problem.weights.values()]
    arguments = weights, jnp.asarray(problem.x.numpy()), jnp.asarray(problem.dy.numpy())

    def run() -> tuple[Any, ...]:
        slopes, results = jax.block_until_ready(compiled(*arguments))
        return (*results, *slopes)

    return contestant(problem, run, facts_of("jax"))


FITTERS: dict[str, Callable[[Problem], Contestant | str]] = {
    "torch": _torch,
    "compiled": partial(_torch, compiled=True),
    "jax": _jax,
    "numpy": numpy_bptt,
    "quadratic": quadratic_bptt,
    "elman": partial(_elman, engine="auto"),
    **{n: partial(_elman, engine="c", without=out) for n, out in (COMBINATIONS | WITHOUT).items()},
    "per-step": _called_per_step,
    "per-run": _compiled_per_run,
}
FIT = Way(
    "fit",
    *(measure_steps, draw_fit, fitted),
    dense=True,
    apart=("jax", "numpy", "quadratic"),
)

"""JAX's ``lax.scan`` of a report's step, with torch's values."""

from __future__ import annotations

from importlib import import_module
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch.utils._pytree import tree_map

from benchmarks.steps.reported import Problem, Report, Tree, leaves


def absent() -> str:
    """Why JAX cannot run here; "" if it can."""
    try:
        import_module("jax")
    except ImportError as error:
        return f"jax is not installed: {error}"
    return ""


def version() -> str:
    """JAX's; "" where it is not installed."""
    return "" if absent() else import_module("jax").__version__


def names(jax: Any) -> SimpleNamespace:
    """What a step calls, by torch's names."""
    num = jax.numpy

    def linear(x: Any, w: Any, bias: Any) -> Any:
        return x @ w.T + bias

    def gru_cell(x: Any, h: Any, w_x: Any, w_h: Any, b_x: Any, b_h: Any) -> Any:
        by_x, by_h = (num.split(linear(*a), 3, -1) for a in ((x, w_x, b_x), (h, w_h, b_h)))
        r, z = (jax.nn.sigmoid(by_x[k] + by_h[k]) for k in range(2))
        n = num.tanh(by_x[2] + r * by_h[2])
        return n + z * (h - n)

    def lstm_cell(x: Any, s: Any, w_x: Any, w_h: Any, b_x: Any, b_h: Any) -> tuple[Any, Any]:
        h, c = s
        i, f, g, o = num.split(linear(x, w_x, b_x) + linear(h, w_h, b_h), 4, -1)
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * num.tanh(g)
        return jax.nn.sigmoid(o) * num.tanh(c), c

    return SimpleNamespace(
        cat=lambda arrays, axis: num.concatenate(arrays, axis),
        clamp=num.clip,
        clone=lambda x: x,
        exp=num.exp,
        gru_cell=gru_cell,
        log=num.log,
        lstm_cell=lstm_cell,
        outer=num.outer,
        sigmoid=jax.nn.sigmoid,
        sin=num.sin,
        sqrt=num.sqrt,
        tanh=num.tanh,
    )


class InJax:
    """A report's program, compiled by JAX.

    Args:
        report: to run.
        problem: its values, torch's.
        cotangents: of the leaves of (outputs, last carries) that are floating-point numbers.
    """

    def __init__(self, report: Report, problem: Problem, cotangents: list[torch.Tensor]) -> None:
        self._jax = jax = import_module("jax")
        jax.config.update("jax_enable_x64", True)  # numbers have the dtype that torch gives them
        program = report.program(names(jax), jax.lax.scan)
        self._problem: Problem = tree_map(self._taken, problem)
        init = self._problem.init
        weights_of_values = [self._taken(c) for c in cotangents]

        def loss(weights: Tree, xs: Tree) -> Any:
            values = program(weights, init, xs)
            floats = [leaf for leaf in leaves(values) if leaf.dtype.kind == "f"]
            return sum((v * w).sum() for v, w in zip(floats, weights_of_values)), values

        self._forward = jax.jit(lambda weights, xs: program(weights, init, xs))
        self._both = jax.jit(jax.grad(loss, argnums=(0, 1), has_aux=True))

    def forward(self) -> Tree:
        """Outputs and last carries."""
        return self._jax.block_until_ready(self._forward(self._problem.weights, self._problem.xs))

    def train(self) -> tuple[Tree, Tree]:
        """(outputs, last carries), gradients of weights and inputs."""
        grads, values = self._both(self._problem.weights, self._problem.xs)
        return self._jax.block_until_ready((values, grads))

    def _taken(self, value: torch.Tensor) -> Any:
        return self._jax.numpy.asarray(value.detach().numpy())


def given_back(tree: Tree) -> Tree:
    """JAX's arrays as torch's."""

    def convert(leaf: Any) -> torch.Tensor:
        return torch.from_numpy(np.array(leaf))

    return tree_map(convert, tree)

"""Backpropagation through time of ``custom_cells.tanh_readout`` by hand in NumPy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

from benchmarks.peers.libraries import facts_of
from benchmarks.problem import Contestant, Problem, Results, gradients, named

Array = Any


@dataclass(frozen=True, eq=False)
class Arrays:
    """A problem as arrays: x [T, B, I], target [T, B, H], W [H, I], R [H, H], V [H, H]."""

    x: Array
    target: Array
    W: Array
    R: Array
    V: Array

    @staticmethod
    def of(problem: Problem) -> Arrays:
        """NumPy views of a problem's tensors, without copies."""
        tensors = (problem.x, problem.dy, *problem.weights.values())
        return Arrays(*(value.numpy() for value in tensors))


Step = Callable[[], tuple[Array, ...]]  # y, the last h, gradients of W, R and V


def contestant(problem: Problem, step: Step, facts: dict[str, Any]) -> Contestant:
    """A training step that gives arrays."""

    def results() -> Results:
        output, last, *grads = (torch.from_numpy(np.array(value)) for value in step())
        return named(output, last) | gradients(problem.weights, grads)

    return Contestant(step, results, tuple(problem.weights), lambda: facts)


def forward(data: Arrays) -> tuple[Array, Array, Array]:
    """All states h [T + 1, B, H] from zero, y, and the loss's derivative by V h [T, B, H]."""
    x, W, R, V = data.x, data.W, data.R, data.V
    T, B, _ = x.shape
    h = np.zeros((T + 1, B, len(R)), x.dtype)
    p = flat(x) @ W.T
    for t, row in enumerate(p.reshape(T, B, -1)):
        row += h[t] @ R.T
        np.tanh(row, out=h[t + 1])
    y = flat(h[1:]) @ V.T
    np.tanh(y, out=y)
    y = y.reshape(T, B, -1)
    np.square(y - data.target).sum()
    return h, y, 2 * (y - data.target) * (1 - y * y)


def flat(value: Array) -> Array:
    """[T·B, n] of [T, B, n]."""
    return value.reshape(-1, value.shape[-1])


def linear(data: Arrays) -> tuple[Array, ...]:
    """A step back per time step, batched; what the weights gather is one product each."""
    h, y, d = forward(data)
    R, V = data.R, data.V
    dV = flat(d).T @ flat(h[1:])
    dh = (flat(d) @ V).reshape(d.shape)
    for t in reversed(range(len(dh))):
        if t + 1 < len(dh):
            dh[t] += dh[t + 1] @ R
        dh[t] *= 1 - h[t + 1] * h[t + 1]
    return y, h[-1], flat(dh).T @ flat(data.x), flat(dh).T @ flat(h[:-1]), dV


def quadratic(data: Arrays) -> tuple[Array, ...]:
    """From every step back to the first one, as the tutorial does it that the report began with."""
    h, y, d = forward(data)
    R, V, x = data.R, data.V, data.x
    dW, dR, dV = np.zeros_like(data.W), np.zeros_like(R), np.zeros_like(V)
    for last in range(len(d)):
        dV += d[last].T @ h[last + 1]
        delta = (d[last] @ V) * (1 - h[last + 1] ** 2)
        for t in reversed(range(last + 1)):
            dR += delta.T @ h[t]
            dW += delta.T @ x[t]
            if t:
                delta = (delta @ R) * (1 - h[t] ** 2)
    return y, h[-1], dW, dR, dV


def numpy_bptt(problem: Problem) -> Contestant:
    """Batched NumPy, linear in T."""
    return contestant(problem, partial(linear, Arrays.of(problem)), facts_of("numpy"))


def quadratic_bptt(problem: Problem) -> Contestant:
    """Batched NumPy, quadratic in T."""
    return contestant(problem, partial(quadratic, Arrays.of(problem)), facts_of("numpy"))

"""Formulas of torch's fused layers, one cell each, with which jobs are compared.

They repeat ``elman.cells`` on purpose: these cells say what *torch* computes. If the library's gru
changes, its graph differs from this one and the engine refuses it; if the engine took the library's
cell, it would claim that torch computes the changed formula.
Source: the formulas in the documentation of torch.nn.RNN, GRU and LSTM.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

from elman.frontend.cell import Cell, cell
from elman.frontend.functions import relu, sigmoid, split, tanh
from elman.ir.build import Builder
from elman.ir.pair import Step
from elman.passes import rewritten
from elman.passes.canonical import canonical
from elman.passes.digest import digest


def _rnn(activation: Callable[[Any], Any], x: Any, h: Any, W: Any, R: Any, b: Any) -> Any:
    return activation(W @ x + R @ h + b)


def _gru(x: Any, h: Any, W: Any, R: Any, b: Any, c: Any) -> Any:
    xr, xz, xn = split(W @ x + b, 3)
    hr, hz, hn = split(R @ h + c, 3)
    z = sigmoid(xz + hz)
    return (1 - z) * tanh(xn + sigmoid(xr + hr) * hn) + z * h


def _lstm(x: Any, h: Any, c: Any, W: Any, R: Any, b: Any) -> Any:
    i, f, g, o = split(W @ x + R @ h + b, 4)
    c = sigmoid(f) * c + sigmoid(i) * tanh(g)
    return sigmoid(o) * tanh(c), c


@cell(input="x[I]", state="h[H]", weights="W[H, I], R[H, H], b[H]")
def rnn_tanh(x, h, W, R, b):
    """torch.rnn_tanh; its two biases are one."""
    return _rnn(tanh, x, h, W, R, b)


@cell(input="x[I]", state="h[H]", weights="W[H, I], R[H, H]")
def rnn_tanh_plain(x, h, W, R):
    """torch.rnn_tanh without biases."""
    return _rnn(tanh, x, h, W, R, 0.0)


@cell(input="x[I]", state="h[H]", weights="W[H, I], R[H, H], b[H]")
def rnn_relu(x, h, W, R, b):
    """torch.rnn_relu; its two biases are one."""
    return _rnn(relu, x, h, W, R, b)


@cell(input="x[I]", state="h[H]", weights="W[H, I], R[H, H]")
def rnn_relu_plain(x, h, W, R):
    """torch.rnn_relu without biases."""
    return _rnn(relu, x, h, W, R, 0.0)


@cell(input="x[I]", state="h[H]", weights="W[3H, I], R[3H, H], b[3H], c[3H]")
def gru(x, h, W, R, b, c):
    """torch.gru: b is added to W @ x, c to R @ h, which the reset gate multiplies."""
    return _gru(x, h, W, R, b, c)


@cell(input="x[I]", state="h[H]", weights="W[3H, I], R[3H, H]")
def gru_plain(x, h, W, R):
    """torch.gru without biases."""
    return _gru(x, h, W, R, 0.0, 0.0)


@cell(input="x[I]", state="h[H], c[H]", weights="W[4H, I], R[4H, H], b[4H]")
def lstm(x, h, c, W, R, b):
    """torch.lstm; its two biases are one."""
    return _lstm(x, h, c, W, R, b)


@cell(input="x[I]", state="h[H], c[H]", weights="W[4H, I], R[4H, H]")
def lstm_plain(x, h, c, W, R):
    """torch.lstm without biases."""
    return _lstm(x, h, c, W, R, 0.0)


@dataclass(frozen=True)
class Formula:
    """One of torch's layers: the function that runs it, its cell, its canonical step."""

    function: str
    cell: Cell
    step: Step

    @property
    def two_biases(self) -> bool:
        """Whether the formula distinguishes the biases."""
        return len(self.cell.weights) == 4


@cache
def formulas() -> dict[str, Formula]:
    """Digest of the canonical step -> which of torch's layers it is."""
    by_digest: dict[str, Formula] = {}
    for function, cells in (
        ("rnn_tanh", (rnn_tanh, rnn_tanh_plain)),
        ("rnn_relu", (rnn_relu, rnn_relu_plain)),
        ("gru", (gru, gru_plain)),
        ("lstm", (lstm, lstm_plain)),
    ):
        for torch_cell in cells:
            step = canonical(rewritten(torch_cell.graph), Builder())
            by_digest[digest(step)] = Formula(function, torch_cell, step)
    return by_digest

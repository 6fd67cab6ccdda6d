"""One step of torch's cells for peers that take a function of arrays: the same text for each peer.

The input projection of all steps is one product outside, as one writes it where speed counts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

Array = Any
States = tuple[Array, ...]


@dataclass(frozen=True)
class Ops:
    """Functions of an array library that the steps call."""

    sigmoid: Callable[[Array], Array]
    tanh: Callable[[Array], Array]
    split: Callable[[Array, int], Any]  # along the last axis, into so many equal parts


TORCH = Ops(torch.sigmoid, torch.tanh, lambda v, n: v.chunk(n, -1))


def rnn(ops: Ops, p: Array, states: States, R: Array, d: Array) -> States:
    """torch.nn.RNN with tanh; p is W x + b."""
    (h,) = states
    return (ops.tanh(p + h @ R.T + d),)


def gru(ops: Ops, p: Array, states: States, R: Array, d: Array) -> States:
    """torch.nn.GRU."""
    (h,) = states
    pr, pz, pn = ops.split(p, 3)
    hr, hz, hn = ops.split(h @ R.T + d, 3)
    z = ops.sigmoid(pz + hz)
    n = ops.tanh(pn + ops.sigmoid(pr + hr) * hn)
    return (n + z * (h - n),)


def lstm(ops: Ops, p: Array, states: States, R: Array, d: Array) -> States:
    """torch.nn.LSTM."""
    h, c = states
    i, f, g, o = ops.split(p + h @ R.T + d, 4)
    c = ops.sigmoid(f) * c + ops.sigmoid(i) * ops.tanh(g)
    return ops.sigmoid(o) * ops.tanh(c), c


STEPS = {"rnn": (rnn, 1), "gru": (gru, 1), "lstm": (lstm, 2)}  # step, number of states

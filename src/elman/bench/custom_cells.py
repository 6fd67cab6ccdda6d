"""Cells that elman does not have: what a user might bring."""

from __future__ import annotations

import elman.cells
from elman.errors import InputError
from elman.frontend.cell import Cell, cell
from elman.ops import relu, sigmoid, split, tanh


@cell(input="x[I]", state="h[H], m[H]", weights="W[3H, I], R[3H, H], b[3H]")
def leaky_memory(x, h, m, W, R, b):
    """A slow memory that leaks, and an output that lets some of it through."""
    f, i, g = split(W @ x + R @ h + b, 3)
    f, i = sigmoid(f), sigmoid(i)
    m = f * m + (1 - f) * tanh(g)
    h = i * relu(m) + (1 - i) * h
    return h, m


@cell(
    input="x[I]",
    state="h[H]",
    weights="W[H, I], R[H, H], V[H, H]",
    output="y[H]",
    source="Han & Uboweja 2016, Parallel Training of Recurrent Neural Networks, section 2.1",
)
def tanh_readout(x, h, W, R, V):
    """A tanh network without biases, and what another tanh reads out of it."""
    h = tanh(W @ x + R @ h)
    return tanh(V @ h), h


@cell(input="x[I]", state="h[H]", weights="W[H, I]")
def projected(x, h, W):
    """A product alone; nothing is remembered."""
    return W @ x


OWN = {"leaky_memory": leaky_memory, "tanh_readout": tanh_readout, "projected": projected}


def find_cell(name: str) -> Cell:
    """A cell of elman's, or one of those above. Raises InputError for a name that is neither."""
    found = OWN.get(name) or getattr(elman.cells, name, None)
    if not isinstance(found, Cell):
        raise InputError(f"no cell {name!r}")
    return found

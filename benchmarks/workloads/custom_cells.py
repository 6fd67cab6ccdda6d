"""Cells that elman does not have: what a user might bring."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any

import elman.cells
from benchmarks.cases import Case
from elman.compiler import pair_of
from elman.errors import InputError
from elman.frontend.cell import Cell, cell
from elman.ops import relu, sigmoid, spike, split, tanh, where
from elman.plan.spec import Spec
from elman.plan.two_valued import two_valued


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


# Neurons alone: cells.lif and rlif have the layer that makes the current in them, in every step.
@cell(input="x[H]", state="s[H], m[H]", weights="V[H, H], c[H]", source="snnTorch 0.9, RLeaky")
def rleaky(x, s, m, V, c, *, beta=0.5, threshold=1.0):
    """Leaky neurons whose spikes return through a matrix; the threshold is subtracted."""
    reset = where(m > threshold, threshold, 0.0)
    m = beta * m + x + (V @ s + c) - reset
    return spike(m - threshold), m


@cell(input="x[H]", state="m[H]", output="s[H]", source="snnTorch 0.9, Leaky")
def leaky(x, m, *, beta=0.5, threshold=1.0):
    """Leaky neurons; the threshold is subtracted a step after the spike."""
    m = beta * m + x - where(m > threshold, threshold, 0.0)
    return spike(m - threshold), m


CUSTOM = {
    formula.name: formula for formula in (leaky_memory, tanh_readout, projected, rleaky, leaky)
}


@cache
def spiking(name: str) -> bool:
    """Whether a cell gives values that are 0 or 1 alone: products with them are sums of few rows,
    and no measure of arithmetic. False for a name that is none of ours."""
    try:
        step = pair_of(find_cell(name)).step
    except InputError:
        return False
    binary = two_valued(step)
    return any(value in binary for value in step.roots)


def spec_of(case: Case, wants: Iterable[str], **options: Any) -> Spec:
    """The sizes and dtype of a case's cell, the gradients that are wanted, and what else a
    :class:`Spec` has."""
    dims = find_cell(case.cell).bind(case.input_size, case.H)
    return Spec(tuple(sorted(dims.items())), case.dtype, wants=frozenset(wants), **options)


def find_cell(name: str) -> Cell:
    """A cell of elman's, or one of those above. Raises InputError for a name that is neither."""
    cell_of_name = CUSTOM.get(name) or getattr(elman.cells, name, None)
    if not isinstance(cell_of_name, Cell):
        raise InputError(f"no cell {name!r}")
    return cell_of_name

"""Work and bytes of a program, counted by hand for the GRU and the LSTM."""

from __future__ import annotations

import pytest

from elman import cells, compiler
from elman.plan.build import program
from elman.plan.cost import backward_work, forward_work, state_bytes, tape_bytes
from specs import spec_of

H, I = 32, 8


def made(cell, **options):
    dims = tuple(sorted(cell.bind(I, H).items()))
    wants = frozenset(entry.name for entry in (*cell.inputs, *cell.weights))
    return program(compiler.pair_of(cell), spec_of(dims, **{"wants": wants, **options}))


@pytest.mark.parametrize("cell, gates", [(cells.gru, 3), (cells.lstm, 4), (cells.rnn, 1)])
def test_products(cell, gates):
    """Two FLOP per weight forward, four backward: one product for the operand, one for itself."""
    of = made(cell)
    once = 2 * gates * H * (I + H)
    assert forward_work(of).products == once
    assert backward_work(of).products == 2 * once


def test_only_what_is_wanted_is_counted():
    """Without gradients of the weights and of x, the backward is one product with the states."""
    of = made(cells.lstm, wants=frozenset())
    assert backward_work(of).products == 2 * 4 * H * H


@pytest.mark.parametrize("dtype, item", [("float32", 4), ("float64", 8)])
def test_tape_and_state_bytes_of_an_lstm(dtype, item):
    """An LSTM tapes four vectors and keeps two states."""
    of = made(cells.lstm, dtype=dtype)
    assert tape_bytes(of) == 4 * H * item
    assert state_bytes(of) == 2 * H * item


def test_no_backward_is_no_work():
    """Without training there is nothing to count."""
    of = made(cells.gru, training=False)
    assert backward_work(of).products == 0
    assert tape_bytes(of) == 0

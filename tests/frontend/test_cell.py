"""Cells as objects: options, inlining, copies, and the lines that values remember."""

from __future__ import annotations

import copy
import math
import pickle

import pytest
import torch

from elman import cell, cells
from elman.errors import TraceError
from elman.frontend.cell import Cell
from elman.ops import relu, sigmoid, sqrt, tanh
from helpers import Sizes, need_engine, random_case, run


@cell(input="x[I]", state="h[H]", weights="W[H, I], R[H, H]", init={"R": "orthogonal"})
def inner(x, h, W, R, *, squash=tanh, gain=1.0):
    """A cell to be used in others."""
    return squash(gain * (W @ x + R @ h))


@cell(input="x[I]", state="h[H], s[H]", weights="W[H, I], R[H, H], V[H, H]", source="here")
def outer(x, h, s, W, R, V):
    h = inner(x, h, W, R)
    return h, inner(h, s, V, R, squash=sigmoid)


def ops_of(made: Cell) -> list[str]:
    return [value.op for value in made.graph.walk()]


def test_a_cell_keeps_what_it_was_given():
    """Name, declared arguments, initialisers, source, docstring."""
    assert (inner.name, inner.__doc__) == ("inner", "A cell to be used in others.")
    assert [str(entry) for entry in inner.weights] == ["W[H, I]", "R[H, H]"]
    assert dict(inner.init) == {"R": "orthogonal"}
    assert (outer.source, outer.__doc__) == ("here", "")
    assert inner.defaults == {"squash": tanh, "gain": 1.0}
    with pytest.raises(TypeError):
        inner.init["R"] = 0


def test_cells_are_inlined():
    """A cell called with traced values is its formula, with its options."""
    assert ops_of(outer).count("matmul") == 4
    assert {"tanh", "sigmoid"} <= set(ops_of(outer))
    assert [root.op for root in outer.graph.next_states] == ["tanh", "sigmoid"]


def test_values_remember_their_lines():
    """Also those of an inlined cell, and of a cell of the library."""
    (root,) = inner.graph.next_states
    assert root.where.startswith("test_cell.py:")
    assert root.where.endswith("return squash(gain * (W @ x + R @ h))")
    assert "gru.py:" in cells.gru.graph.next_states[0].where


def test_a_user_may_have_a_folder_called_torch():
    """Only torch's own modules are passed over, not files that lie in a folder of that name."""
    text = "def step(x, h):\n    if h > 0:\n        return h\n"
    names = {"__name__": "mine"}
    exec(compile(text, "/home/me/torch/numpy/mine.py", "exec"), names)
    with pytest.raises(TraceError, match=r"at    mine\.py:2:"):
        cell(input="x[H]", state="h[H]")(names["step"])


def test_options_make_another_cell():
    """Bound by keyword; the cell itself stays as it is."""
    rectified = inner.with_options(squash=relu, gain=2.0)
    assert "relu" in ops_of(rectified)
    assert "tanh" in ops_of(inner)
    assert rectified.options == {"squash": relu, "gain": 2.0}
    assert inner.with_options() is inner


def test_copies_and_pickles_are_the_same_cell():
    """Found again by name, so that modules can be copied and saved."""
    assert copy.deepcopy(cells.lstm) is cells.lstm
    again = pickle.loads(pickle.dumps(cells.rnn.with_options(activation=relu)))
    assert (again.name, again.options) == ("rnn", {"activation": relu})
    assert ops_of(again) == ops_of(cells.rnn.with_options(activation=relu))


def test_every_cell_of_the_library_says_where_it_is_from():
    """A source, a docstring, and a formula that traces."""
    for made in cells.CORE:
        assert made.source, made.name
        assert made.__doc__, made.name
        assert made.graph.next_states, made.name
        assert getattr(cells, made.name) is made


@pytest.mark.parametrize("engine", ["reference", "c"])
def test_sizes_are_values(engine):
    """``h.shape`` gives the number of units, of names as of numbers."""

    @cell(input="x[I]", state="h[2H], s[5]", weights="W[2H, I], b[2H], g[5]")
    def counted(x, h, s, W, b, g):
        (units,) = h.shape
        rows, columns = W.shape
        assert g.shape[0] == s.shape[-1] == 5
        h = tanh(W @ x * (1 / sqrt(columns)) + rows * h / (4 + units) + b / units)
        return h, s / s.shape[0] + g * W.shape[1]

    if engine == "c":
        need_engine("c")
    case = random_case(counted, Sizes(1, 2, 3, 8), 0, torch.float64)
    got = run(counted, case, engine)
    x, h, s = case.inputs["x"][0], case.states["h"], case.states["s"]
    w = case.weights
    want = torch.tanh(x @ w["W"].T / math.sqrt(3) + 8 * h / 12 + w["b"] / 8)
    torch.testing.assert_close(got["last h"], want)
    torch.testing.assert_close(got["last s"], s / 5 + w["g"] * 3)
    d = case.d_output[0] + case.d_last["h"]
    torch.testing.assert_close(got["db"], ((1 - want**2) * d / 8).sum(0))

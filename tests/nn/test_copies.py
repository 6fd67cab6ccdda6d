"""heads=N is N copies of a cell: values and gradients are those of N cells run one by one."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import elman
from copies import Copies, drawn_copies, of_inputs
from elman import cells, ops
from elman.errors import ShapeError
from elman.frontend.cell import Cell
from elman.ir.types import shape_size
from elman.tuning.kernels import refusal
from helpers import assert_all_same, assert_close, job_of, need_engine, run
from library_sizes import VECTORS
from random_cells import Drawn, drawn_cells, reusing_cells


def check(copies: Copies, engine: str, T: int = 4, B: int = 2) -> None:
    """A cell with heads by an engine against its copies by engine reference."""
    case = copies.case(T, B)
    assert_all_same(run(copies.cell, case, engine), copies.run(case), case.dtype, T)


def check_random(drawn: Drawn, heads: int, numbers: bool, engine: str, T: int, B: int) -> None:
    copies = drawn_copies(drawn, heads, numbers)
    case = copies.case(T, B)
    assume(refusal(engine, job_of(case)) is None)
    assert_all_same(run(copies.cell, case, engine), copies.run(case), case.dtype, T)


GIVEN = {
    "drawn": st.one_of(drawn_cells(), drawn_cells(whole=True).map(of_inputs), reusing_cells()),
    "heads": st.integers(2, 3),
    "numbers": st.sampled_from([False, False, True]),
    "T": st.integers(1, 4),
    "B": st.integers(1, 3),
}


@pytest.mark.slow
@given(**GIVEN)
def test_random_cells(**drawn):
    """Cells nobody has written, with reductions, scans, groups and several outputs."""
    check_random(engine="reference", **drawn)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["c", "deer", "scan-backward"])
@settings(max_examples=max(4, settings().max_examples // 5))
@given(**GIVEN)
def test_random_cells_by_engine(engine, **drawn):
    """The same by what does not run the graph as it is written."""
    check_random(engine=engine, **drawn)


SIZES = {"I": 4, "H": 6, "M": 3, "U": 5, "D": 3}
LIBRARY = [cell for cell in VECTORS if not cell.static and not cell.division.elementwise]
REDUCING = [cells.lstm_layernorm, cells.gru_layernorm, cells.onlstm_chunked, cells.lmu]


@pytest.mark.parametrize(
    "cell, engine",
    [
        *((cell, "reference") for cell in LIBRARY),
        *((cell, engine) for cell in REDUCING for engine in ("c", "deer", "scan-backward")),
    ],
)
def test_cells_of_the_library(cell, engine):
    """Whatever a cell reduces, scans or counts, it does so in each head."""
    copies = Copies(cell, 2, SIZES)
    reason = refusal(engine, job_of(copies.case(1, 1)))
    if reason is not None:
        pytest.skip(reason)
    check(copies, engine)


def cell_of(formula: Callable[..., Any], states: str = "h[H]", output: str | None = None) -> Cell:
    """A cell of x [I], its states, W [H, I], R [H, H] and a gain g [H]."""
    names = re.sub(r"\[\w+\]", "", states)
    text = f"def own(x, {names}, W, R, g): return formula(x, {names}, W, R, g)"
    scope: dict[str, Any] = {"formula": formula}
    exec(text, scope)
    declare = elman.cell(
        input="x[I]", state=states, weights="W[H, I], R[H, H], g[H]", output=output
    )
    return declare(scope["own"])


VALUES: dict[str, Callable[[Any], Any]] = {  # of a vector v: what reads other units than its own
    "sum": lambda v: ops.tanh(v * ops.sum(v)),
    "exp of a sum": lambda v: v * ops.exp(-ops.sum(v * v)),
    "where": lambda v: ops.where(ops.sum(v) > 0, v, -0.5 * v),
    "mean": lambda v: v - ops.mean(v),
    "var": lambda v: v / (1 + ops.var(v)),
    "amax": lambda v: v - ops.amax(v),
    "layer_norm": lambda v: ops.layer_norm(v, eps=0.1),
    "layer_norm in groups": lambda v: ops.layer_norm(v, groups=3, eps=0.1),
    "layer_norm of gates": lambda v: ops.split(ops.layer_norm(ops.concat(v, 2 * v)), 2)[0],
    "rms_norm": lambda v: ops.rms_norm(v, eps=0.1),
    "softmax": ops.softmax,
    "hardmax": lambda v: v * ops.hardmax(v),
    "hardmax of gates": lambda v: v * ops.split(ops.hardmax(ops.concat(v, 2 * v)), 2)[1],
    "cumsum": ops.cumsum,
    "cumsum of gates": lambda v: ops.split(ops.cumsum(ops.concat(v, 0.5 * v)), 2)[1],
    "spread": lambda v: v * ops.spread(ops.amax(v, groups=3), v),
    "spread of one": lambda v: v * ops.spread(ops.sum(v), v),
    "count": lambda v: v / ops.sqrt(v.shape[0]),
    "part of units": lambda v: v * (v.shape[0] / (1 + v.shape[0])),
    "spike": lambda v: ops.spike(v - ops.mean(v)),
}


def test_what_reads_other_units_in_one_kernel():
    """Every op that is not elementwise, of states and of weights, as an output of one cell."""

    def formula(x, h, W, R, g):
        inner = [ops.tanh(W @ x + R @ value(h)) + value(g) for value in VALUES.values()]
        return *inner, ops.tanh(W @ x + R @ h)

    need_engine("c")
    outputs = ", ".join(f"y{k}[H]" for k in range(len(VALUES)))
    check(Copies(cell_of(formula, output=outputs), 2, {"I": 4, "H": 6}), "c")


@pytest.mark.parametrize(
    "engine, heads", [pytest.param("c", 2, marks=pytest.mark.long), ("reference", 3)]
)
@pytest.mark.parametrize("name", VALUES)
def test_what_reads_other_units(name, heads, engine):
    """Every op that is not elementwise, of states, of weights and of an input that heads share."""
    value = VALUES[name]
    plain = cell_of(lambda x, h, W, R, g: ops.tanh(W @ x + R @ value(h)) + value(g))
    if engine == "c":
        need_engine("c")
    check(Copies(plain, heads, {"I": 4, "H": 6}), engine)


@pytest.mark.parametrize("name", VALUES)
def test_what_reads_other_units_of_an_input(name):
    """An input that heads share is read as a whole by each of them."""
    value = VALUES[name]
    plain = cell_of(lambda x, h, W, R, g: ops.tanh(W @ value(x) + R @ h) * g)
    check(Copies(plain, 2, {"I": 6, "H": 3}), "reference")


SCALARS = {  # formula, states, outputs, shapes of states and outputs with 2 heads of 3 units
    "a state of each head": (
        lambda x, h, m, W, R, g: (ops.tanh(W @ x + R @ h * m), 0.5 * m + ops.mean(h * g)),
        ("h[H], m", None),
        [(6,), (2,)],
        [(6,)],
    ),
    "a state that all share": (
        lambda x, h, t, W, R, g: (ops.tanh(W @ x + R @ h) * g / (1 + t), t + ops.mean(x)),
        ("h[H], t", None),
        [(6,), ()],
        [(6,)],
    ),
    "one by way of another": (
        lambda x, h, m, n, W, R, g: (ops.tanh(W @ x + R @ h * m) * g, n, ops.sum(h)),
        ("h[H], m, n", None),
        [(6,), (2,), (2,)],
        [(6,)],
    ),
    "outputs of each head": (
        lambda x, h, W, R, g: (ops.sum(h), x * ops.mean(h * g), ops.tanh(W @ x + R @ h)),
        ("h[H]", "y, z[I]"),
        [(6,)],
        [(2,), (8,)],
    ),
    "outputs that all share": (
        lambda x, h, W, R, g: (ops.sum(x), 2 * x, ops.tanh(W @ x + R @ h) * g),
        ("h[H]", "y, z[I]"),
        [(6,)],
        [(), (4,)],
    ),
    "the only output, a scalar": (
        lambda x, h, W, R, g: (ops.amax(h), ops.tanh(W @ x + R @ h) * g),
        ("h[H]", "y"),
        [(6,)],
        [(2,)],
    ),
}


@pytest.mark.parametrize("engine", ["reference", "c", "deer", "scan-backward"])
@pytest.mark.parametrize("name", SCALARS)
def test_scalars(name, engine):
    """A scalar state or output is one for each head where heads differ, and one for all else."""
    formula, declared, states, outputs = SCALARS[name]
    copies = Copies(cell_of(formula, *declared), 2, {"I": 4, "H": 3})
    graph, sizes = copies.cell.graph, copies.sizes
    assert [shape_size(state.shape, sizes) for state in graph.states] == states
    assert [shape_size(value.shape, sizes) for value in graph.outputs] == outputs
    reason = refusal(engine, job_of(copies.case(1, 1)))
    if reason is not None:
        pytest.skip(reason)
    check(copies, engine)


@pytest.mark.parametrize("engine", ["reference", "c"])
def test_modules_of_scalars(engine):
    """States and outputs of each head are the module's; layers above read them all."""
    if engine == "c":
        need_engine("c")
    formula, declared, *_ = SCALARS["a state of each head"]
    net = elman.Recurrent(
        cell_of(formula, *declared), 4, 6, 2, heads=2, engine=engine, learn_initial=True
    )
    x = torch.randn(5, 3, 4)
    out, (h, m) = net(x)
    assert (out.shape, h.shape, m.shape) == ((5, 3, 6), (2, 3, 6), (2, 3, 2))
    first, state = net(x[:2])
    second, last = net(x[2:], state)
    assert_close(torch.cat((first, second)), out)
    assert_close(last[1], m)
    formula, declared, *_ = SCALARS["outputs of each head"]
    net = elman.Recurrent(cell_of(formula, *declared), 4, 6, heads=2, engine=engine)
    y, z, _ = (*net(x)[0], net(x)[1])
    assert (y.shape, z.shape) == ((5, 3, 2), (5, 3, 8))


def test_random_numbers_are_each_heads_own():
    """No two heads draw the same, of their units, of an input that they share, or of a scalar."""

    def noisy(x, h, m, W, R, g):
        return ops.uniform(h) * g, ops.uniform(m)

    net = elman.Recurrent(cell_of(noisy, "h[H], m"), 4, 6, heads=3, engine="reference")
    with torch.no_grad():
        net.g_l0.fill_(1.0)
    out, (_, m) = net(torch.zeros(50, 2, 4))
    assert out.unique().numel() == 50 * 2 * 6
    assert m.shape == (1, 2, 3)
    assert m.unique().numel() == 6

    need_engine("c")
    torch.manual_seed(3)
    want = net(torch.zeros(5, 2, 4))
    net.engine = "c"
    torch.manual_seed(3)
    got = net(torch.zeros(5, 2, 4))
    assert_close(got[0], want[0])
    assert_close(got[1][1], want[1][1])

    dropping = cell_of(lambda x, h, W, R, g: W @ ops.dropout(x, 0.5) + 0 * (R @ h) * g)
    net = elman.Recurrent(dropping, 20, 2, heads=2, engine="reference")
    with torch.no_grad():
        net.W_l0.copy_(torch.ones(2, 20) * 2.0 ** torch.arange(20))
    out, _ = net(torch.ones(30, 1, 20))
    assert (out[..., 0] != out[..., 1]).all()
    expected = net.eval()(torch.ones(30, 1, 20))[0]
    assert (expected[..., 0] == expected[..., 1]).all()


def test_units_by_themselves_need_no_heads():
    """What computes each unit from its own past is its own copies, whatever its size."""
    apart = cell_of(lambda x, h, W, R, g: ops.tanh(W @ x + g * h))
    assert apart.with_heads(4) is apart
    for reading in (
        lambda x, h, W, R, g: ops.tanh(W @ x + g * h) / h.shape[0],
        lambda x, h, W, R, g: ops.tanh(W @ x + g * ops.layer_norm(h)),
        lambda x, h, W, R, g: W @ x + h * ops.softmax(g),
        lambda x, h, W, R, g: h + R @ (W @ x),
    ):
        assert cell_of(reading).with_heads(4).heads == 4


def test_what_is_no_copy():
    """Said where heads are asked for, with the size of one head."""
    grouped = cell_of(lambda x, h, W, R, g: ops.tanh(W @ x + R @ ops.layer_norm(h, groups=4)))
    with pytest.raises(ShapeError) as told:
        elman.Recurrent(grouped, 3, 12, heads=2)
    text = str(told.value)
    assert "H = 6 in each of 2 heads is not a multiple of its 4 groups" in text, text
    assert "hint  H = 8 in each of 2 heads is one" in text, text

    @elman.cell(input="x[I]", state="h[12]", weights="R[12, 12]")
    def numbered(x, h, R):
        return R @ ops.softmax(h, groups=4) + ops.sum(x)

    with pytest.raises(ShapeError) as told:
        elman.Recurrent(numbered, 3, 12, heads=2)
    text = str(told.value)
    assert text.startswith("in one of 2 heads: cannot form 4 equal groups of [6]"), text
    mixed = cell_of(
        lambda x, h, W, R, g: (ops.concat(h, x), ops.tanh(W @ x + R @ h) * g), output="y[H+I]"
    )
    with pytest.raises(ShapeError, match=r"heads divide a part of y\[H\+I\] only, and not I; ret"):
        elman.Recurrent(mixed, 3, 12, heads=2)

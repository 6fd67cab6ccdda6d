"""Cells of the library with a matrix as their state, against loops in torch that know nothing of
elman."""

from __future__ import annotations

import pickle
from functools import partial

import pytest
import torch
from torch import Tensor

import elman
from benchmarks.peers.matrix_steps import STEPS
from elman import cells
from elman.errors import TraceError
from elman.frontend.cell import Cell
from elman.ir.types import axes_of, dim_size, names_in
from helpers import assert_same, need_engine
from products import every

F64, F32 = torch.float64, torch.float32
CHUNKS = 70  # steps of more than one chunk of the replay, which has 64 at most
SIZES = [(5, 7, 6, 3), (8, 21, CHUNKS, 3)]  # of each cell; T is no number of a kernel's
MORE_SIZES = [(1, 1, 1, 3), (16, 16, 5, 2), (3, 31, 4, 1)]  # one of every third cell, in turn
ROWS, COLUMNS = ("K", "D", "P", "I"), ("V", "N", "R", "H")  # what the dims of states are called
SHARES = ("a", "b", "w", "f", "eta", "theta", "alpha", "decay", "dt", "trap")  # between 0 and 1


def same(v):
    """Its argument."""
    return v


class Drawn:
    """Random arguments of a cell, each in the range that it is meant for: ``inputs`` [T, B, ..],
    ``static`` and ``states`` [B, ..], ``weights`` by name, ``constants``, which are masks;
    ``sizes`` of the module."""

    def __init__(self, cell: Cell, K: int, V: int, T: int, B: int, seed: int = 0) -> None:
        dims = dict.fromkeys(ROWS, K) | dict.fromkeys(COLUMNS, V) | {"M": 3}
        source = torch.Generator().manual_seed(seed)
        sizes = dict(dims)

        def value(name: str, entry_shape: tuple, *lead: int) -> Tensor:
            axes = axes_of(entry_shape[0][0], sizes) if entry_shape else ()
            shape = axes or tuple(dim_size(dim, sizes) for dim in entry_shape)
            drawn = torch.randn((*lead, *shape), generator=source, dtype=F64)
            if name in SHARES and not (cell.name == "mlstm" and name == "f"):
                return torch.sigmoid(drawn)
            if name == "A":
                return -drawn.exp()
            if name == "kk":
                return torch.nn.functional.normalize(drawn, dim=-1)
            return drawn / max(1, shape[-1] if shape else 1) ** 0.5

        self.inputs = {e.name: value(e.name, e.shape, T, B) for e in cell.inputs}
        self.static = {e.name: value(e.name, e.shape, B) for e in cell.static}
        drawn = {e.name: value(e.name, e.shape) for e in cell.weights}
        masks = [name for name in drawn if name in cell.constants]
        self.constants = {name: (drawn.pop(name) > 0).to(F64) for name in masks}
        self.weights = drawn
        self.states = {e.name: 0.5 * value(e.name, e.shape, B) for e in cell.states}
        if cell is cells.linear_attention:
            self.states["z"].abs_()  # a sum of features
        if cell is cells.mc_lstm:
            self.inputs["m"].abs_()
            self.states["c"].abs_()
        first, state = cell.inputs[0].shape, cell.states[0].shape[0][0]
        last = state[1] if isinstance(state, tuple) else state
        self.size = dim_size(first[0], sizes), dim_size((last,), sizes)
        named = set[str]().union(*(names_in(e.shape) for e in (*cell.inputs, *cell.states)))
        given = names_in(first) | names_in(((last,),))
        self.more = {name: dims[name] for name in named - given}

    def leaves(self, dtype: torch.dtype) -> list[list[Tensor]]:
        """Inputs, static inputs and states that gradients are asked of."""
        groups = (self.inputs, self.static, self.weights, self.states)
        return [[x.to(dtype).requires_grad_() for x in group.values()] for group in groups]


def by_loop(cell: Cell, drawn: Drawn) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
    """Outputs and last states of the paper's loop; cotangents; gradients of all arguments."""
    inputs, static, weights, states = drawn.leaves(F64)
    rows, now = list[Tensor](), tuple(states)
    for row in zip(*inputs, strict=True):
        output, now = STEPS[cell.name](row, (*static, *weights, *drawn.constants.values()), now)
        rows.append(output)
    results = [torch.stack(rows), *now]
    source = torch.Generator().manual_seed(9)
    cotangents = [torch.randn(r.shape, generator=source, dtype=F64) for r in results]
    grads = torch.autograd.grad(results, [*inputs, *static, *weights, *states], cotangents)
    return results, cotangents, list(grads)


def by_module(
    cell: Cell, drawn: Drawn, engine: str, dtype: torch.dtype, cotangents: list[Tensor]
) -> tuple[list[Tensor], list[Tensor]]:
    """The same of a module on an engine."""
    given = {**drawn.more, **drawn.constants}
    net = elman.Recurrent(cell, *drawn.size, dtype=dtype, engine=engine, **given)
    inputs, static, weights, states = drawn.leaves(dtype)
    with torch.no_grad():
        for parameter, weight in zip(net.parameters(), weights, strict=True):
            parameter.copy_(weight)
    more = {"static": tuple(static) if len(static) > 1 else static[0]} if static else {}
    begin = tuple(state[None] for state in states)
    out, last = net(tuple(inputs), begin if len(begin) > 1 else begin[0], **more)
    ends = last if isinstance(last, tuple) else (last,)
    results = [out, *(end[0] for end in ends)]
    leaves = [*inputs, *static, *net.parameters(), *states]
    grads = torch.autograd.grad(results, leaves, [c.to(dtype) for c in cotangents])
    return results, list(grads)


@pytest.mark.parametrize(
    ("cell", "K", "V", "T", "B"),
    [
        pytest.param(cell, *sizes, marks=() if at == number % 9 or at > 2 else pytest.mark.long)
        for number, cell in enumerate(cells.MATRIX)
        for at, sizes in enumerate((*MORE_SIZES, *SIZES))
    ],
)
def test_cells_are_the_papers_loops(cell, K, V, T, B):
    """Outputs, last states and every gradient by name."""
    check(cell, Drawn(cell, K, V, T, B), ("c", F64), *[("reference", F64)] * (T == 6))


@pytest.mark.parametrize("cell", every(3, cells.MATRIX))
def test_cells_in_float32(cell):
    """The same in float32."""
    check(cell, Drawn(cell, *SIZES[0]), ("c", F32))


def check(cell: Cell, drawn: Drawn, *ways: tuple[str, torch.dtype]) -> None:
    """A module, by engines and types of numbers, against the loop."""
    need_engine("c")
    want, cotangents, want_grads = by_loop(cell, drawn)
    names = [*drawn.inputs, *drawn.static, *drawn.weights, *drawn.states]
    T = len(want[0])
    for engine, dtype in ways:
        got, grads = by_module(cell, drawn, engine, dtype, cotangents)
        for name, *pair in zip(["out", *drawn.states], got, want, strict=True):
            assert_same(f"{name} on {engine}", *(value.detach() for value in pair), dtype, T)
        for name, *pair in zip(names, grads, want_grads, strict=True):
            assert_same(f"d{name} on {engine}", *pair, dtype, T)


def test_every_cell_has_a_loop():
    assert STEPS.keys() == {cell.name for cell in cells.MATRIX}


@pytest.mark.parametrize("cell", cells.MATRIX)
def test_cells_are_drawn_and_explained(cell):
    """With the paper they come from."""
    assert cell.source
    drawn = Drawn(cell, 4, 4, 1, 1)
    sizes = {"input_size": drawn.size[0], "hidden_size": drawn.size[1], **drawn.more}
    assert cell.source in elman.explain(cell, measure=False, **sizes).all
    assert "<svg" in elman.draw(cell, **sizes).svg


def test_they_are_the_cells_with_matrices():
    """Engines and exports of vectors alone are tested on all others."""
    assert [*cells.MATRIX] == [cell for cell in cells.ALL if cell.graph.has_matrices]


def test_wirings_of_ltc():
    """Without masks all synapses are there; one that is not has no gradient."""
    drawn = Drawn(cells.ltc, 4, 5, 6, 2)
    layer = partial(elman.Recurrent, cells.ltc, *drawn.size, dtype=F64, engine="reference")
    full = layer().state_dict()
    assert all((full[f"{mask}_l0"] == 1).all() for mask in ("mask", "mask_x"))
    wired = layer(**drawn.constants)
    wired(tuple(drawn.inputs.values()))[0].sum().backward()
    for mask, names in {"mask": ("mu", "w", "erev"), "mask_x": ("sigma_x", "w_x")}.items():
        for name in names:
            grad = wired.get_parameter(f"{name}_l0").grad
            assert torch.equal(grad != 0, drawn.constants[mask] > 0)


def test_explicit_constraints_of_ltc():
    """ncps' implicit_param_constraints of False: weights are what softplus makes of others."""
    drawn = Drawn(cells.ltc, 4, 5, 6, 2)
    layer = partial(elman.Recurrent, cells.ltc, *drawn.size, dtype=F64, engine="reference")
    x, options = tuple(drawn.inputs.values()), {"unfolds": 3, "epsilon": 1e-3}
    implicit, explicit = layer(**options), layer(**options, implicit=False)
    weights = implicit.state_dict()
    for name in ("w_l0", "w_x_l0", "cm_l0", "gleak_l0"):
        weights[name] = torch.nn.functional.softplus(weights[name])
    explicit.load_state_dict(weights)
    torch.testing.assert_close(explicit(x)[0], implicit(x)[0])
    for option in options:
        other = layer(**{key: value for key, value in options.items() if key != option})
        other.load_state_dict(implicit.state_dict())
        assert (other(x)[0] != implicit(x)[0]).all()


def test_the_stabiliser_of_mlstm_cancels():
    """Outputs are those of the memory without one, whose gates are exponentials themselves."""
    drawn = Drawn(cells.mlstm, 4, 3, 8, 2)
    zeros = {name: torch.zeros_like(state) for name, state in drawn.states.items()}
    net = elman.Recurrent(cells.mlstm, *drawn.size, dtype=F64, engine="reference")
    out, _ = net(tuple(drawn.inputs.values()), tuple(x[None] for x in zeros.values()))
    C, n = zeros["C"], zeros["n"]
    for t, (q, k, v, i, f) in enumerate(zip(*drawn.inputs.values(), strict=True)):
        keep, take, k = torch.sigmoid(f)[:, None], torch.exp(i)[:, None], k / 2
        C = keep[:, None] * C + (take * k)[:, :, None] * v[:, None]
        n = keep * n + take * k
        read, norm = torch.einsum("bkv,bk->bv", C, q), (n * q).sum(1, keepdim=True).abs()
        torch.testing.assert_close(out[t], read / norm.clamp(min=1))


def outputs_of(cell: Cell, drawn: Drawn, *x: Tensor) -> Tensor:
    """Of a module of these sizes, from zeros."""
    return elman.Recurrent(cell, *drawn.size, dtype=F64, engine="reference")(x)[0]


def test_one_gate_of_gated_delta_net2_is_kda():
    drawn = Drawn(cells.kda, 4, 3, 6, 2)
    q, k, v, a, b = drawn.inputs.values()
    b = b[..., None]
    got = outputs_of(cells.gated_delta_net2, drawn, q, k, v, a, b.expand_as(k), b.expand_as(v))
    torch.testing.assert_close(got, outputs_of(cells.kda, drawn, *drawn.inputs.values()))


def test_steps_of_gated_delta_product_are_those_of_a_longer_sequence():
    """Three keys a token: a delta rule of three times as many steps, of which the first decays."""
    made = cells.gated_delta_product_of(3)
    drawn = Drawn(made, 4, 3, 6, 2)
    q, k, v, a, b = drawn.inputs.values()
    keys, values = (x.unflatten(-1, (3, -1)).movedim(2, 1).flatten(0, 1) for x in (k, v))
    decays = torch.stack([a, torch.ones_like(a), torch.ones_like(a)], 1).flatten(0, 1)
    steps = q.repeat_interleave(3, 0), keys, values, decays, b.movedim(2, 1).flatten(0, 1)
    want = outputs_of(cells.gated_delta_net, drawn, *steps)[2::3]
    torch.testing.assert_close(outputs_of(made, drawn, q, k, v, a, b), want)
    assert pickle.loads(pickle.dumps(made)) is made


def test_mamba3_is_a_state_space_of_complex_modes():
    """The state itself turns, back by theta, and neither B nor C."""
    drawn = Drawn(cells.mamba3, 4, 3, 7, 2)
    x, dt, A, trap, theta, B, C = drawn.inputs.values()
    b, c = (torch.complex(*v.chunk(2, -1)) for v in (B, C))
    h, rows = torch.zeros(2, 4, 3, dtype=torch.complex128), list[Tensor]()
    for t in range(7):
        turn = torch.exp(dt[t, :, None] * torch.complex(A[t, :, None].expand(2, 3), -theta[t]))
        h = turn[:, None] * h
        if t > 0:
            last = (1 - trap[t]) * dt[t]
            h = h + last[:, None, None] * x[t - 1, :, :, None] * (turn * b[t - 1])[:, None]
        h = h + (trap[t] * dt[t])[:, None, None] * x[t, :, :, None] * b[t, :, None]
        rows.append((h * c[t, :, None].conj()).sum(-1).real)
    got = outputs_of(cells.mamba3, drawn, *drawn.inputs.values())
    torch.testing.assert_close(got, torch.stack(rows))


@pytest.mark.parametrize("cell", [cells.linear_attention, cells.fast_weights])
def test_features_may_be_computed_before(cell):
    """A function that returns its argument leaves them as they are given."""
    drawn = Drawn(cell, 4, 3, 6, 2)
    x = tuple(drawn.inputs.values())
    want, _ = elman.Recurrent(cell, 4, 3, dtype=F64, engine="reference")(x)
    net = elman.Recurrent(cell, 4, 3, dtype=F64, engine="reference", feature=same)
    got, _ = net((*(torch.nn.functional.elu(value) + 1 for value in x[:2]), *x[2:]))
    torch.testing.assert_close(got, want)


def test_forget_gates_of_mlstm():
    """An exponential gate, as the paper allows; nothing else."""
    drawn = Drawn(cells.mlstm, 4, 3, 6, 2)
    q, k, v, i, f = drawn.inputs.values()
    plain = elman.Recurrent(cells.mlstm, 4, 3, dtype=F64, engine="reference")
    net = elman.Recurrent(cells.mlstm, 4, 3, dtype=F64, engine="reference", forget="exp")
    got, _ = net((q, k, v, i, torch.nn.functional.logsigmoid(f)))
    torch.testing.assert_close(got, plain((q, k, v, i, f))[0])
    with pytest.raises(TraceError, match="forget must be sigmoid or exp"):
        elman.Recurrent(cells.mlstm, 4, 3, forget="tanh")

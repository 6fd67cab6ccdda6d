"""Layers with a cell and a size of their own: what stands between them, their names, forms and
errors; with options they are rows of ``conformance/``."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import elman
from elman import cells, ops
from elman.errors import InputError, ShapeError, TraceError
from elman.weights import from_arrays, to_arrays
from helpers import assert_close

F64 = torch.float64
I = 5


@elman.cell(input="x[I]", state="h[H], p[I]", weights="W[H, I], R[H, I]")
def remembering(x, h, p, W, R):
    """The input of the step before is a state: above it is as long as the output below."""
    return ops.tanh(W @ x + R @ p + h), x


@elman.cell(
    input="x[I], m[K]", state="h[H]", output="y[P], h[H]", weights="W[H, I], R[H, K], V[P, H]"
)
def masked(x, m, h, W, R, V):
    """Of two inputs, with an output of a size of its own."""
    h = ops.tanh(W @ x + R @ m + h)
    return V @ h, h, h


@elman.cell(
    input="x[I], m[K]",
    static="s[S]",
    state="h[H]",
    weights="W[H, I], R[H, K], U[H, S]",
    constants="q[H]",
)
def told(x, m, s, h, W, R, U, q):
    """Of two inputs and a static one, with a constant."""
    return ops.tanh(W @ x + R @ m + U @ s + q * h)


STACKS: dict[str, tuple[Any, Any]] = {
    "sizes": (cells.gru, [6, 4, 3]),
    "cells": ([cells.gru, cells.lstm], [6, 4]),
    "alike": ([cells.gru, cells.mgu], 4),
    "following": ([remembering, remembering], [6, 4]),
}


def made(stack: str = "cells", **options: Any) -> Any:
    torch.manual_seed(0)
    cell, sizes = STACKS[stack]
    count = len(cell) if isinstance(cell, list) else len(sizes)
    net = elman.Recurrent(cell, I, sizes, count, dtype=F64, **options)
    for value in net._initial():
        nn.init.normal_(value)
    return net


def flat(state: Any) -> list[Tensor]:
    """All tensors of a state [B, n], layer by layer."""
    if isinstance(state, Tensor):
        return [*state.unbind(0)]
    if isinstance(state, tuple):
        return [value for row in zip(*[one.unbind(0) for one in state]) for value in row]
    return [v for own in state for v in (own if isinstance(own, tuple) else (own,))]


def each_layer(net: Any) -> list[Any]:
    """Modules of one layer with the same weights, which are the very same tensors."""
    layers, size = [], I
    for number, (cell, height, dims) in enumerate(net._formulas()):
        constants = dict.fromkeys(cell.constants, 0.5)
        whole = cell.whole or cell
        one = elman.Recurrent(whole, size, height, dtype=F64, **dims, **constants)
        for name in one.state_dict():
            where = one._buffers if name in one._buffers else one._parameters
            where[name] = getattr(net, f"{name[:-1]}{number}")
        layers.append(one)
        size = one.output_size
    return layers


def by_chain(net: Any, x: Tensor) -> list[Tensor]:
    """Output and last states, one module after another."""
    out, ends = x, []
    for number, layer in enumerate(each_layer(net)):
        above, last = layer(out)
        out = above + out if net.residual and number else above
        ends += flat(last)
    return [out, *ends]


def drawn(T: int = 7, B: int = 3, seed: int = 1) -> Tensor:
    source = torch.Generator().manual_seed(seed)
    return torch.randn(T, B, I, dtype=F64, generator=source).requires_grad_()


@pytest.mark.parametrize(
    "stack", [pytest.param(s, marks=[pytest.mark.long] * (s != "following")) for s in STACKS]
)
def test_a_chain_of_single_layers(stack):
    """One after another, whatever the form of states."""
    net, x = made(stack), drawn()
    out, last = net(x)
    for one, other in zip([out, *flat(last)], by_chain(net, x), strict=True):
        assert_close(one, other)


def test_residual_and_dropout():
    """What stands between layers; sizes must agree."""
    cell, x = [cells.gru, cells.lstm], drawn()
    net = elman.Recurrent(cell, I, 4, residual=True, dtype=F64)
    assert_close(net(x)[0], by_chain(net, x)[0])
    dropped = elman.Recurrent(cell, I, [6, 4], dropout=1.0, dtype=F64)
    assert_close(dropped(x)[0], each_layer(dropped)[1](torch.zeros(7, 3, 6, dtype=F64))[0])
    assert_close(dropped.eval()(x)[0], by_chain(dropped, x)[0])
    with pytest.raises(ShapeError, match=r"lstm, layer 1: residual adds its input \[6\] to its"):
        elman.Recurrent(cell, I, [6, 4], residual=True)
    with pytest.raises(ShapeError, match="layer 2: residual"):
        elman.Recurrent(cells.gru, I, [6, 6, 1], residual=True)


def test_the_same_states_are_one_tensor():
    """Layers whose states agree in names and sizes keep the form of one cell."""
    x = drawn()
    for net in (made("alike"), elman.Recurrent(cells.gru, I, [4, 4], dtype=F64)):
        assert net(x)[1].shape == (2, 3, 4)
    last = made("sizes")(x)[1]
    assert [tuple(h.shape) for h in last] == [(3, 6), (3, 4), (3, 3)]
    for h in last:
        h.detach_()  # as one does between two truncated backwards


def test_random_numbers_of_each_layer():
    """A layer that draws beside one that does not; a share of one is no longer random."""
    net, x = made("cells", zoneout={"c": 1.0}), drawn()
    start = [torch.ones(3, 6, dtype=F64), tuple(torch.randn(2, 3, 4, dtype=F64))]
    _, last = net(x, start)
    assert torch.equal(last[1][1], start[1][1])  # c keeps its value
    with pytest.raises(InputError, match="gru/lstm has no state 'k'"):
        made("cells", zoneout={"k": 0.1})


def test_inputs_and_constants_by_name():
    """Layers read the further inputs that they name; sizes and constants go where they belong."""
    torch.manual_seed(0)
    net = elman.Recurrent([masked, cells.gru, told], I, [6, 4, 3], K=2, P=8, S=2, q=0.5, dtype=F64)
    x, m, s = drawn(), drawn(seed=2)[..., :2].detach(), torch.randn(3, 2, dtype=F64)
    out, last = net((x, m), static=s)
    first, second, third = each_layer(net)
    y, _ = first((x, m))[0]
    want = third((second(y)[0], m), static=s)
    assert_close(out, want[0])
    assert_close(last[2], want[1][0])
    assert torch.equal(net.q_l2, torch.full((3,), 0.5, dtype=F64))
    own = elman.Recurrent(
        [told, told], I, [6, 4], K=2, S=2, q=[torch.ones(6), torch.zeros(4)], dtype=F64
    )
    assert (own.q_l0.sum(), own.q_l1.sum()) == (6, 0)
    sized = elman.Recurrent(masked, I, [6, 4], 2, K=2, P=[8, 3])
    assert (sized.V_l0.shape, sized.V_l1.shape) == ((8, 6), (3, 4))
    assert sized.output_size == 3
    compiles = torch.compile(net, fullgraph=True, backend="aot_eager")
    assert_close(compiles((x, m), static=s)[0], out)


def test_names_and_draws_of_weights():
    """Each layer's are drawn as its size says."""
    assert [*made("cells").state_dict()][:4] == ["W_l0", "R_l0", "b_l0", "c_l0"]
    bounds = [made("sizes").get_parameter(f"R_l{k}").abs().max().item() for k in range(3)]
    for bound, size in zip(bounds, (6, 4, 3), strict=True):
        assert 0.5 * size**-0.5 < bound <= size**-0.5


def test_weights_of_other_libraries():
    """Of one cell in several sizes; of several cells none has a layout."""
    net, other, x = made("sizes"), made("sizes"), drawn()
    other.reset_parameters()
    arrays = to_arrays(net, "keras")
    assert [a.shape for a in arrays[::3]] == [(5, 18), (6, 12), (4, 9)]
    from_arrays(other, arrays, "keras")
    assert_close(other(x)[0], net(x)[0])
    with pytest.raises(InputError, match="of one cell for all layers, not of gru, lstm"):
        to_arrays(made("cells"), "keras")


def test_explained_and_drawn():
    """Each cell's formula, each layer's program; any layer can be drawn."""
    net = made("cells")
    text = elman.explain(net, drawn().detach(), measure=False).all
    for part in ("l0, gru:", "l1, lstm:", "gru: ", "; lstm: ", "l1: "):
        assert part in text, part
    assert elman.draw(net, layer=1).svg != elman.draw(net).svg
    assert "lstm" in elman.draw(net, layer=1).svg
    with pytest.raises(InputError, match="no layer 2"):
        elman.draw(net, layer=2)


def test_what_is_refused():
    gru, lstm = cells.gru, cells.lstm
    for cell, sizes, count in (([gru, lstm], [4], 1), ([gru, lstm], 4, 3), ([], 4, 1)):
        with pytest.raises(InputError, match="lists have one entry for each layer"):
            elman.Recurrent(cell, I, sizes, count)
    with pytest.raises(InputError, match="K has 3 entries for 2 layers"):
        elman.Recurrent(masked, I, [6, 4], K=[1, 2, 3], P=3)
    for layers in (1, 2):
        with pytest.raises(TraceError, match=r"init of q: .*list"):
            elman.Recurrent(told, I, 3, layers, K=1, S=1, q=[1.0, 2.0, 3.0])
    with pytest.raises(InputError, match="has no argument 'Z'"):
        elman.Recurrent([gru, lstm], I, 4, Z=3)
    with pytest.raises(InputError, match=r"'learned_initial'(.|\n)*hint  learn_initial=…"):
        elman.Recurrent(gru, I, 4, learned_initial=True)
    with pytest.raises(InputError, match=r"hint  W is a weight: init=\{'W': …\} in the cell"):
        elman.Recurrent(gru, I, 4, W=0.1)
    with pytest.raises(InputError, match="takes a cell, not int"):
        elman.Recurrent([gru, 3], I, 4)  # type: ignore[list-item]
    with pytest.raises(InputError, match="hidden_size should be of type int"):
        elman.Recurrent([gru, lstm], I, [4, 2.5])  # type: ignore[list-item]
    net, x = made("cells"), drawn()
    for state in (torch.zeros(2, 3, 4), [torch.zeros(3, 6)], [torch.zeros(3, 6)] * 2):
        with pytest.raises(InputError, match="state is a list of 2, one for each layer"):
            net(x, state)
    with pytest.raises(ShapeError, match=r"state c_l1 of gru/lstm must be \[3, 4\], got \[3, 3\]"):
        net(x, [x.new_zeros(3, 6), (x.new_zeros(3, 4), x.new_zeros(3, 3))])

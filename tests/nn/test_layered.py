"""Layers with a cell and a size of their own, against a chain of modules of one layer each."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import elman
from elman import cells, ops
from elman.errors import InputError, ShapeError, TraceError
from elman.weights import from_arrays, to_arrays
from helpers import assert_close, forced
from products import some_of

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
    "one size": ([cells.lstm, cells.gru, cells.lstm], 4),
    "alike": ([cells.gru, cells.mgu], 4),
    "following": ([remembering, remembering], [6, 4]),
}
every_engine = pytest.mark.parametrize("engine", ["reference", "auto"])
OPTIONS: list[dict[str, Any]] = [
    {},
    {"bidirectional": True},
    {"batch_first": True},
    {"learn_initial": True, "bidirectional": True},
]


def made(stack: str = "cells", **options: Any) -> Any:
    torch.manual_seed(0)
    cell, sizes = STACKS[stack]
    count = len(cell) if isinstance(cell, list) else len(sizes)
    net = elman.Recurrent(cell, I, sizes, count, dtype=F64, **options)
    for value in net._initial():
        nn.init.normal_(value)
    return net


def each_layer(net: Any, **options: Any) -> list[Any]:
    """Modules of one layer with the same weights, which are the very same tensors."""
    layers, size = [], I
    two = 1 + net.bidirectional
    for number, (cell, height, dims) in enumerate(net._formulas()):
        one = elman.Recurrent(
            cell.whole or cell, size, height, bidirectional=net.bidirectional,
            batch_first=net.batch_first, heads=net.heads, dtype=F64, engine="reference",
            **dims, **dict.fromkeys(cell.constants, 0.5), **options,
        )  # fmt: skip
        for suffix in ("", "_reverse")[:two]:
            for weight in cell.weights:
                name, own = f"{weight.name}_l{number}{suffix}", f"{weight.name}_l0{suffix}"
                where = one._buffers if weight.name in cell.constants else one._parameters
                where[own] = getattr(net, name)
        layers.append(one.train(net.training))
        size = one.output_size
    return layers


def flat(state: Any) -> list[Tensor]:
    """All tensors of a state [B, n], layer by layer."""
    if isinstance(state, Tensor):
        return [*state.unbind(0)]
    if isinstance(state, tuple):
        return [value for row in zip(*[one.unbind(0) for one in state]) for value in row]
    return [v for own in state for v in (own if isinstance(own, tuple) else (own,))]


def tensors_of(state: Any) -> list[Tensor]:
    """The tensors of a state as they were given."""
    if isinstance(state, Tensor):
        return [state]
    return [value for own in state for value in tensors_of(own)]


def starts_of(net: Any, batch: int = 3, seed: int = 3) -> Any:
    """Initial states as the module takes them."""
    source = torch.Generator().manual_seed(seed)
    signature = net.runtime.signature
    drawn = [
        torch.randn(signature.lead, batch, *sizes, dtype=F64, generator=source)
        for _, sizes in signature.states
    ]
    state = signature.form.nest(drawn)
    for value in tensors_of(state):
        value.requires_grad_()
    return state


def of_layer(net: Any, state: Any, number: int) -> Any:
    """The state of one layer, as a module of one layer takes it."""
    two, counts = 1 + net.bidirectional, net.runtime.signature.form.counts
    at = sum(counts[: two * number])
    count = counts[two * number]
    own = flat(state)[at : at + two * count]
    parts = tuple(torch.stack(own[k::count]) for k in range(count))
    return parts if count > 1 else parts[0]


def by_chain(net: Any, x: Tensor, state: Any = None, **call: Any) -> tuple[Any, list[Tensor]]:
    """Output and last states, one module after another."""
    out, ends = x, []
    if state is None and net.learn_initial:
        batch = x.shape[0 if net.batch_first else 1]
        learned = [v.unsqueeze(1).expand(-1, batch, -1) for v in net._initial()]
        state = net.runtime.signature.form.nest(learned)
    for number, layer in enumerate(each_layer(net, clip_gradient=None)):
        own = None if state is None else of_layer(net, state, number)
        made_of, last = layer(out, own, **call)
        out = made_of + out if net.residual and number else made_of
        ends += flat(last)
    return out, ends


def drawn(T: int = 7, B: int = 3, seed: int = 1) -> Tensor:
    source = torch.Generator().manual_seed(seed)
    return torch.randn(T, B, I, dtype=F64, generator=source).requires_grad_()


def compare(net: Any, x: Tensor, got: Any, want: Any, leaves: Any = ()) -> None:
    """Outputs, last states, and the gradients of everything."""
    values, expected = [got[0], *flat(got[1])], [want[0], *want[1]]
    for one, other in zip(values, expected, strict=True):
        assert_close(one, other)
    leaves = [x, *net.parameters(), *leaves]
    for found in zip(gradients(values, leaves), gradients(expected, leaves), strict=True):
        assert_close(*found)


def gradients(values: list[Tensor], leaves: list[Tensor]) -> list[Tensor]:
    loss = sum((value * (k + 1)).sin().sum() for k, value in enumerate(values))
    return list(torch.autograd.grad(loss, leaves, materialize_grads=True, retain_graph=True))


@pytest.mark.parametrize(
    "stack, options, engine", some_of([*STACKS], OPTIONS, ["reference", "auto"]), ids=str
)
def test_a_chain_of_single_layers(stack, options, engine):
    """With every option, from zeros (or what is learned) and from states that are given."""
    net, x = made(stack, engine=engine, **options), drawn()
    if net.batch_first:
        x = x.detach().transpose(0, 1).contiguous().requires_grad_()
    if net.clip_gradient is not None:  # of the cells of the chain too
        assert all(cell.changes for cell, *_ in net._formulas())
    for state in (None, starts_of(net)):
        leaves = [] if state is None else tensors_of(state)
        got, want = net(x, state), by_chain(net, x, state)
        compare(net, x, got, want, leaves)


@every_engine
def test_residual_and_dropout(engine):
    """What stands between layers; sizes must agree."""
    torch.manual_seed(0)
    cell = [cells.gru, cells.lstm]
    net = elman.Recurrent(cell, I, 4, residual=True, dtype=F64, engine=engine)
    x = drawn()
    compare(net, x, net(x), by_chain(net, x))
    dropped = elman.Recurrent(cell, I, [6, 4], dropout=1.0, dtype=F64, engine=engine)
    dropped.load_state_dict(made().state_dict())
    out, _ = dropped(x)
    second = each_layer(dropped)[1]
    assert_close(out, second(torch.zeros(7, 3, 6, dtype=F64))[0])
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
    start = starts_of(net)
    _, last = net(x, start)
    assert torch.equal(last[1][1], start[1][1])  # c keeps its value
    assert_close(last[0], by_chain(net, x, start)[1][0])  # gru has no c
    with pytest.raises(InputError, match="gru/lstm has no state 'k'"):
        made("cells", zoneout={"k": 0.1})
    both = made("cells", recurrent_dropout=0.5, zoneout={"c": 0.5}, weight_dropout=0.2)
    found = []
    for engine in ("reference", "auto"):
        torch.manual_seed(1)
        with forced(engine):
            found.append(both(x)[0])
    assert_close(found[1], found[0])
    assert not torch.equal(found[0], both(x)[0])
    assert_close(both.eval()(x)[0], by_chain(both, x)[0])


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
    text = str(elman.explain(net, drawn().detach(), measure=False))
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
    h, (k, c) = starts_of(net)
    with pytest.raises(ShapeError, match=r"state c_l1 of gru/lstm must be \[3, 4\], got \[3, 3\]"):
        net(x, [h, (k, c[:, :3])])

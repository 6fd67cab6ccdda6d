"""Modules of random cells with everything that a cell and a module may say at once, on every engine
against engine reference."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._pytree import tree_leaves

import elman
from elman import PlanOptions, cell, ops
from elman.errors import EngineError, InputError, ShapeError
from elman.ir.types import axes_of, is_matrix, names_in
from helpers import assert_close, need_engine
from kernels import cell_from
from products import some_of
from random_cells import Drawn, drawn_cells
from random_matrices import linear_matrix_cells, matrix_cells

F64 = torch.float64
OPTIONS = st.fixed_dictionaries(
    {
        "num_layers": st.sampled_from([1, 2]),
        "bidirectional": st.booleans(),
        "batch_first": st.booleans(),
        "heads": st.sampled_from([1, 1, 2]),
        "residual": st.booleans(),
        "clip_gradient": st.sampled_from([None, None, 0.05]),
        "learn_initial": st.booleans(),
        "zoneout": st.sampled_from([0.0, {"h": 0.4}]),
        "recurrent_dropout": st.sampled_from([0.0, 0.0, 0.0, 0.3]),
        "recurrent_dropout_per": st.sampled_from(["sequence", "step"]),
        "weight_dropout": st.sampled_from([0.0, 0.4]),
        "plan": st.builds(
            PlanOptions,
            tape=st.sampled_from(["auto", "save", "recompute"]),
            checkpoint=st.sampled_from([None, None, 2]),
        ),
    }
)
CALLS = st.fixed_dictionaries(
    {
        "T": st.sampled_from([5, 2, 1]),
        "B": st.sampled_from([3, 2, 1]),
        "reset": st.sampled_from([None, "default", "initial", "zeros"]),
        "mask": st.sampled_from([None, None, "held", "zeros"]),
        "lengths": st.booleans(),
        "state": st.booleans(),
        "outputs": st.sampled_from([None, "states"]),
        "trains": st.sampled_from([True, True, False]),
    }
)


def even(size: int) -> int:
    """A size that two heads can divide."""
    return size + size % 2


def module_of(drawn: Drawn, options: dict[str, Any]) -> Any:
    """A module of a drawn cell, with weights of no special values."""
    of = cell_from(drawn.text)
    declared = (*of.inputs, *of.static, *of.states, *of.weights, *of.outputs)
    names = {name for entry in declared for name in names_in(entry.shape)}
    more: dict[str, Any] = {"P": even(drawn.P)} if "P" in names else {}
    more |= dict.fromkeys(of.constants, 0.0)
    net = elman.Recurrent(of, even(drawn.I), even(drawn.H), dtype=F64, **options, **more)
    source = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for value in (*net.parameters(), *net.buffers()):
            scale = 0.7 / max(1, value.shape[-1]) ** 0.5 if value.dim() == 2 else 0.5
            value.normal_(0, scale, generator=source)
    return net


def given_of(net: Any, call: dict[str, Any]) -> tuple[list[Tensor], tuple[Any, ...], Any]:
    """Leaves, arguments, and keyword arguments of a call."""
    source = torch.Generator().manual_seed(1)
    T, B, signature = call["T"], call["B"], net.runtime.signature
    rows = (B, T) if net.batch_first else (T, B)

    runner = next(iter(net.runners.values()))
    declared = (*runner.cell.inputs, *runner.cell.states)
    matrices = {v.name: axes_of(v.shape[0][0], dict(runner.dims)) for v in declared if is_matrix(v)}

    def normal(*shape: int, of: str) -> Tensor:
        shape = (*shape[:-1], *matrices[of]) if matrices.get(of) else shape
        return torch.randn(shape, generator=source, dtype=F64).requires_grad_()

    x = tuple(normal(*rows, *sizes, of=name) for name, sizes in signature.inputs)
    static = tuple(normal(B, *sizes, of=name) for name, sizes in signature.static)
    lead = len(net.runners)
    given = signature.states if call["state"] else ()
    states = tuple(normal(lead, B, *sizes, of=name) for name, sizes in given)
    more: dict[str, Any] = {"outputs": call["outputs"]} | ({"static": static} if static else {})
    if call["reset"]:
        more["reset"] = torch.rand(rows, generator=source) < 0.3
        more["reset_to"] = None if call["reset"] == "default" else call["reset"]
    if call["mask"]:
        more["mask"] = torch.rand(rows, generator=source) < 0.7
        more["masked_output"] = call["mask"]
    if call["lengths"]:
        more["lengths"] = torch.randint(1, T + 1, (B,), generator=source).clamp(T * (B == 1))
    arguments = [values if len(values) > 1 else values[0] for values in (x, states) if values]
    return [*x, *static, *states], tuple(arguments), more


def results(net: Any, call: dict[str, Any]) -> list[Tensor]:
    """Every value of a call after ``manual_seed``, and every gradient."""
    leaves, arguments, more = given_of(net, call)
    torch.manual_seed(2)
    values = tree_leaves(net(*arguments, **more))
    source = torch.Generator().manual_seed(3)
    weighed = [(v * torch.randn(v.shape, generator=source, dtype=F64)).sum() for v in values]
    wanted = [*leaves, *net.parameters()]
    loss = sum(weighed) + 0 * sum(leaf.sum() for leaf in wanted)
    return [*values, *torch.autograd.grad(loss, wanted)]


def check_engines(
    drawn: Drawn, options: dict[str, Any], call: dict[str, Any], engines: tuple[str, ...]
) -> None:
    """Values and gradients of some engines are those of engine reference."""
    need_engine("c")
    try:
        net = module_of(drawn, options)
    except (InputError, ShapeError):  # a scalar in layers, no product with a state to drop from …
        assume(False)
    net.train(call["trains"])
    net.engine = "reference"
    try:
        want = results(net, call)
    except InputError:  # no state is given to reset to
        assume(False)
    for engine in engines:
        net.engine = engine
        try:
            found = results(net, call)
        except EngineError as refused:
            if engine == "deer" and "clips gradients" in str(refused):
                continue
            raise
        for got, value in zip(found, want, strict=True):
            assert_close(got, value)


@pytest.mark.slow
@settings(deadline=None, max_examples=max(5, settings().max_examples // 4))
@given(drawn=drawn_cells(whole=True), options=OPTIONS, call=CALLS)
def test_engines_agree(drawn, options, call):
    """Random cells of vectors by engines c and deer."""
    check_engines(drawn, options, call, ("c", "deer"))


@pytest.mark.slow
@settings(deadline=None, max_examples=max(5, settings().max_examples // 4))
@given(
    drawn=st.one_of(matrix_cells(), linear_matrix_cells()),
    options=OPTIONS.map(lambda options: options | {"num_layers": 1, "residual": False, "heads": 1}),
    call=CALLS.map(lambda call: call | {"T": call["T"] + 4}),
)
def test_matrices_agree(drawn, options, call):
    """Random cells with matrices, which draw random numbers, also in merged steps."""
    check_engines(drawn, options, call, ("c",))


@cell(input="x[I], k[H]", state="h[H]", output="y[H], e[H]", weights="W[H, I], V[H, H]")
def forgetful(x, k, h, W, V):
    """A state that the next step does not depend on; layers below the last do not read it."""
    return ops.tanh(V @ k), ops.sin(W @ x) * h, k


@cell(input="x[I], k[H]", state="h[H]", output="y[H]", weights="W[H, I]")
def unread(x, k, h, W):
    """A state that nothing reads."""
    return ops.sin(W @ x) + k, k


@pytest.mark.parametrize(
    "of, engine, options, lengths",
    some_of(
        [forgetful, unread],
        ["c", "deer", "scan-backward"],
        [{}, {"num_layers": 3}, {"bidirectional": True}, {"plan": PlanOptions(checkpoint=2)}],
        [False, True],
    ),
)
def test_without_a_recurrence(of, engine, options, lengths):
    """Where nothing is to be solved a backward follows as ever, in every layer and direction."""
    need_engine(engine)
    call = dict.fromkeys(("reset", "mask", "outputs"))
    call |= {"T": 5, "B": 3, "lengths": lengths, "state": True}
    net = elman.Recurrent(of, 4, 4, dtype=F64, engine="reference", **options)
    want = results(net, call)
    net.engine = engine
    for got, value in zip(results(net, call), want, strict=True):
        assert_close(got, value)


@cell(input="x[I]", state="h[H], s[H]", weights="W[H, I], a[H]")
def by_units(x, h, s, W, a):
    """Units that do not mix."""
    return ops.tanh(W @ x + a * h), 0.5 * s + h


@pytest.mark.parametrize("engine", ["c", "deer", "scan-backward"])
@pytest.mark.parametrize("of", [forgetful, unread, by_units, elman.cells.gru])
@pytest.mark.parametrize("training", [True, False])
def test_no_samples(of, engine, training):
    """An empty batch has empty results, and gradients of zeros."""
    need_engine(engine)
    net = elman.Recurrent(of, 4, 4, dtype=F64, engine=engine)
    x = [torch.zeros(3, 0, 4, dtype=F64, requires_grad=training) for _ in of.inputs]
    with torch.set_grad_enabled(training):
        values = tree_leaves(net(tuple(x) if len(x) > 1 else x[0]))
    assert [*values[0].shape] == [3, 0, 4]
    assert all([*value.shape] == [1, 0, 4] for value in values[-len(of.states) :])
    if training:
        loss = sum(value.sum() for value in values)
        for d in torch.autograd.grad(loss, list(net.parameters()), materialize_grads=True):
            assert not d.any()


@cell(input="x[I]", state="h[H]", weights="W[H, I], R[H, H]")
def largest(x, h, W, R):
    """A gradient to the largest unit of a product, which is read further."""
    p = R @ h
    return ops.tanh(W @ x + ops.amax(p) * p + ops.amax(W @ x) * h)


@cell(input="x[I]", state="h[H], m", weights="W[H, I], U[P, H], V[H, P]", output="y[H], e")
def largest_state(x, h, m, W, U, V):
    """The largest unit is a state and an output, and is read further."""
    p = U @ h
    z = ops.amax(p)
    return V @ p, z, ops.tanh(W @ x + z * h + m), z


@cell(input="x[I]", state="h[H], m", weights="W[H, I], U[P, H], V[H, P]", output="y[H]")
def largest_alone(x, h, m, W, U, V):
    """Units that are not less than the largest one, which is a state, and those that are."""
    p = U @ h
    z = ops.amax(p)
    some = ops.where(p >= z, 3 * p, 0.1 * p) + (p - z < 0) * p
    return V @ some, ops.tanh(W @ x + 0.1 * h + m), z


@cell(input="x[I]", state="h[H], q[P]", weights="W[H, I], U[P, H], V[H, P]", output="y[H]")
def tied(x, h, q, W, U, V):
    """The smaller of two values that are equal by the formula: each has half of the gradient."""
    p = U @ h
    c = ops.stop_gradient(2 * p) - p
    return V @ ops.minimum(p, c) + V @ ops.maximum(c, p), ops.tanh(W @ x + 0.1 * h + V @ q), c


@pytest.mark.parametrize(
    "one, options, tape",
    [
        (largest, {}, "save"),
        (largest, {"heads": 3}, "auto"),
        (largest_state, {"P": 5}, "recompute"),
        *(
            pytest.param(largest_state, {"P": 5}, tape, marks=pytest.mark.long)
            for tape in ("auto", "save")
        ),
        (largest_alone, {"P": 5}, "recompute"),
        (tied, {"P": 5}, "recompute"),
    ],
)
def test_the_largest_is_found_again(one, options, tape):
    """In backwards of first and second order, though products may be computed anew there."""
    need_engine("c")
    torch.manual_seed(0)
    net = elman.Recurrent(one, 6, 18, dtype=F64, plan=PlanOptions(tape), **options)
    x = torch.randn(4, 3, 6, dtype=F64, requires_grad=True)
    leaves, found = [x, *net.parameters()], []
    for net.engine in ("c", "reference"):
        losses = [sum(out.sin().sum() for out in tree_leaves(net(x))) for _ in range(2)]
        first = torch.autograd.grad(losses[0], leaves)
        again = torch.autograd.grad(losses[1], leaves, create_graph=True)
        second = torch.autograd.grad(sum(d.square().sum() for d in again), leaves)
        found.append([*first, *second])
    for got, want in zip(*found, strict=True):
        assert_close(got, want)

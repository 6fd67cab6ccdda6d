"""Each VJP row against torch.autograd in float64: through the canonical form, adjoint, evaluate."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from elman import compiler, ops
from elman.autodiff.rules import VJP
from elman.engines.arrays import Arrays
from elman.frontend.cell import Cell, cell
from elman.ir.evaluate import evaluate
from elman.ir.graph import Node, walk
from elman.ir.pair import Pair
from elman.ir.types import shape_size
from functions_of_one import AUTHORS, torchs, within
from helpers import Case, Sizes, assert_same, random_case

F64 = torch.float64
SIZES = Sizes(T=1, B=3, I=6, H=6)


def formula(own: Any) -> Cell:
    """``h' = own(x, h, m, W, w, u)``: vectors x, h, w, scalars m, u, a matrix W."""

    @cell(input="x[H], m", state="h[H]", weights="W[H, H], w[H], u")
    def one(x, m, h, W, w, u):
        return own(x, h, m, W, w, u)

    return one


def gate_blocks(pair: Pair, case: Case) -> dict[Node, torch.Tensor]:
    """Values of all leaves of a pair: the case's tensors, cut into gate blocks."""
    given = {name: x[0] for name, x in case.inputs.items()} | case.states | case.weights
    values: dict[Node, torch.Tensor] = {}
    used: dict[tuple[Any, ...], int] = {}
    for leaf in (*pair.step.inputs, *pair.step.states):
        tensor = given[leaf.name]
        if leaf.shape:
            (size,) = shape_size(leaf.shape, case.dims)
            start = used.get((leaf.name,), 0)
            values[leaf], used[(leaf.name,)] = tensor[..., start : start + size], start + size
        else:
            values[leaf] = tensor
    for leaf in pair.step.weights:
        values[leaf] = given[leaf.name]  # one block each: dims are single gate blocks here
    return values


def by_our_adjoint(made: Cell, case: Case) -> dict[str, torch.Tensor]:
    """Next state and gradients by the graph pair and the interpreter: no engine, no torch.autograd.

    The output is the next state, so both of its cotangents flow.
    """
    pair = compiler.pair_of(made)
    arrays = Arrays(F64, torch.device("cpu"))
    values = gate_blocks(pair, case)
    (out,) = evaluate(arrays, pair.step.next_states, values, case.dims)
    values.update(zip(pair.d_outputs, [case.d_output[0]]))
    values.update(zip(pair.d_next, case.d_last.values()))
    batch = (case.d_output.shape[1],)

    def whole(d: Node | None, leaf: Node) -> torch.Tensor:
        shape = shape_size(leaf.shape, case.dims)
        if d is None:
            return torch.zeros(*batch, *shape, dtype=F64)
        (value,) = evaluate(arrays, (d,), values, case.dims)
        return value.expand(*batch, *shape)

    found = {"out": out.expand(*batch, *out.shape[-1:])}
    for d, leaf in zip((*pair.d_inputs, *pair.d_states), (*pair.step.inputs, *pair.step.states)):
        found[f"d{leaf.name}"] = whole(d, leaf)
    finished = dict.fromkeys(target for target, _ in pair.d_invariants)
    for term in pair.sums:
        (left,) = evaluate(arrays, (term.left,), values, case.dims)
        part = left.expand(*batch, *shape_size(term.left.shape, case.dims))
        if term.right is not None:
            (right,) = evaluate(arrays, (term.right,), values, case.dims)
            part = part[..., :, None] * right.expand(*batch, right.shape[-1])[..., None, :]
        part = part.sum(0)
        old = finished[term.target]
        finished[term.target] = part if old is None else old + part
    values.update((leaf, finished[target]) for target, leaf in pair.d_invariants)
    for d, leaf in zip(pair.d_weights, pair.step.weights):
        if d is None:
            found[f"d{leaf.name}"] = torch.zeros_like(case.weights[leaf.name])
        else:
            (found[f"d{leaf.name}"],) = evaluate(arrays, (d,), values, case.dims)
    return found


def by_torch(own: Any, case: Case) -> dict[str, torch.Tensor]:
    """The same formula, written with torch, by torch.autograd."""
    given = {name: x[0] for name, x in case.inputs.items()} | case.states | case.weights
    leaves = {name: value.clone().requires_grad_() for name, value in given.items()}
    order = [leaves[name] for name in ("x", "h", "m", "W", "w", "u")]
    order[2] = order[2][:, None]  # a scalar per sample meets vectors
    out = own(*order)
    batch, units = case.d_output.shape[1:]
    out = out.expand(batch, units)
    d = case.d_output[0] + case.d_last["h"]
    grads = torch.autograd.grad(out, leaves.values(), d, allow_unused=True)
    zeros = {name: torch.zeros_like(value) for name, value in leaves.items()}
    found = {f"d{n}": zeros[n] if grad is None else grad for n, grad in zip(leaves, grads)}
    return {"out": out.detach(), **found}


class Spike(torch.autograd.Function):
    """snnTorch's fast sigmoid of slope 25."""

    @staticmethod
    def forward(ctx, v):
        ctx.save_for_backward(v)
        return (v > 0).to(v)

    @staticmethod
    def backward(ctx, d):  # type: ignore[override]
        (v,) = ctx.saved_tensors
        return d / (25 * v.abs() + 1) ** 2


def clipped(v: torch.Tensor, limit: Any) -> torch.Tensor:
    """v, whose gradient is clipped by a hook."""
    v = v * 1.0
    v.register_hook(lambda d: torch.clamp(d, -limit, limit))
    return v


def grouped(v: torch.Tensor, groups: int) -> torch.Tensor:
    """[..., n] as [..., groups, n / groups]."""
    return v.unflatten(-1, (groups, -1))


def wide(v: torch.Tensor, width: int) -> torch.Tensor:
    """Each of [..., groups] repeated for its units."""
    return v.repeat_interleave(width, -1)


def one_hot(v: torch.Tensor, groups: int) -> torch.Tensor:
    """The first largest unit of each group."""
    own = grouped(v, groups)
    return torch.nn.functional.one_hot(own.argmax(-1), own.shape[-1]).flatten(-2).to(v)


def outer(k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """All products of units, [.., K, V]."""
    return k[..., :, None] * v[..., None, :]


def alike(formula: Any) -> tuple[Any, Any]:
    """A formula that reads the same in both languages."""
    return formula, formula


def of_one(name: str) -> tuple[Any, Any]:
    """A function of one value."""
    own, theirs = getattr(ops, name), torchs(name)
    return (
        lambda x, h, *_: own(within(name, 4 * x * h)),
        lambda x, h, *_: theirs(within(name, 4 * x * h)),
    )


ROWS: dict[str, tuple[Any, Any]] = {  # op -> the formula in the cell's language, and in torch's
    "lin": alike(lambda x, h, m, W, w, u: 2 * x - 0.5 * h + m + 3 * w - u - 1),
    "mul": alike(lambda x, h, m, W, w, u: x * h * h + m * h * u + w * x),
    "div": alike(lambda x, h, m, W, w, u: h / (2 + x * x) + m / (3 + w * w) + u / (2 + h * h)),
    **{name: of_one(name) for name in AUTHORS},
    "floor": (lambda x, h, *_: ops.floor(3 * x) * h, lambda x, h, *_: (3 * x).floor() * h),
    "round": (lambda x, h, *_: round(3 * x) * h, lambda x, h, *_: (3 * x).round() * h),
    "pow": alike(
        lambda x, h, m, W, w, u: (1 + x * x) ** h + (2 + h * h) ** u + 2**x + (1 + m * m) ** -2.5
    ),
    "remainder": (
        lambda x, h, m, W, w, u: 5 * x % h + h % 0.3 + m % w + 2 % x,
        lambda x, h, m, W, w, u: 5 * x % h + h % 0.3 + m % w + torch.full_like(x, 2) % x,
    ),
    "minimum": (
        lambda x, h, m, *_: ops.minimum(x, h) + ops.minimum(h, 0.3) + ops.minimum(m, x),
        lambda x, h, m, *_: (
            torch.minimum(x, h) + h.clamp(max=0.3) + torch.minimum(m.expand_as(x), x)
        ),
    ),
    "maximum": (
        lambda x, h, m, *_: ops.maximum(x, h) + ops.maximum(h, h),
        lambda x, h, m, *_: torch.maximum(x, h) + torch.maximum(h, h),
    ),
    "where": (
        lambda x, h, m, *_: ops.where(x > 0.1, h, m) + ops.where(m, h * x, 1.0),
        lambda x, h, m, *_: torch.where(x > 0.1, h, m) + torch.where(m != 0, h * x, 1.0),
    ),
    "stop": (lambda x, h, *_: ops.stop_gradient(x * h) * h, lambda x, h, *_: (x * h).detach() * h),
    "surrogate": (
        lambda x, h, m, W, w, u: (
            ops.spike(x * h) * x
            + ops.straight_through(ops.round(3 * h), x * h + u)
            + ops.straight_through(m > 0, w * h)
            + ops.straight_through(w > 0, ops.sigmoid(3 * w))
        ),
        lambda x, h, m, W, w, u: (
            Spike.apply(x * h) * x
            + ((3 * h).round() - x * h - u).detach()
            + (x * h + u)
            + ((m > 0).to(F64) - w * h).detach()
            + w * h
            + ((w > 0).to(F64) - (3 * w).sigmoid()).detach()
            + (3 * w).sigmoid()
        ),
    ),
    "clip_gradient": (
        lambda x, h, m, W, w, u: (
            ops.clip_gradient(x * h, 0.3) * h
            + x * ops.clip_gradient(w * x, 0.5) * ops.clip_gradient(m, ops.abs(u))
        ),
        lambda x, h, m, W, w, u: (
            clipped(x * h, 0.3) * h + x * clipped(w * x, 0.5) * clipped(m, u.detach().abs())
        ),
    ),
    "sum": (
        lambda x, h, *_: h * ops.sum(x * h),
        lambda x, h, *_: h * (x * h).sum(-1, keepdim=True),
    ),
    "mean": (
        lambda x, h, *_: h * ops.mean(ops.concat(x * h, h)),
        lambda x, h, *_: h * torch.cat([x * h, h], -1).mean(-1, keepdim=True),
    ),
    "var": (
        lambda x, h, *_: h * ops.var(x * h) + ops.var(ops.concat(x, h)),
        lambda x, h, *_: (
            h * (x * h).var(-1, correction=0, keepdim=True)
            + torch.cat([x, h], -1).var(-1, correction=0, keepdim=True)
        ),
    ),
    "amax": (
        lambda x, h, m, *_: (
            ops.softmax(x * h) * h + ops.amax(ops.concat(x * h, h)) + ops.amax(m * x)
        ),
        lambda x, h, m, *_: (
            (x * h).softmax(-1) * h
            + torch.cat([x * h, h], -1).amax(-1, keepdim=True)
            + (m * x).amax(-1, keepdim=True)
        ),
    ),
    "argmax": (lambda x, h, *_: ops.hardmax(x * h) * h, lambda x, h, *_: one_hot(x * h, 1) * h),
    "spread": (
        lambda x, h, m, W, w, u: (
            ops.spread(u * ops.sum(x * h, groups=2) * ops.mean(w * h, groups=2), x)
            + ops.spread(ops.var(x * h, groups=3) * ops.amax(h, groups=3), h) * ops.spread(m, h)
        ),
        lambda x, h, m, W, w, u: (
            wide(u * grouped(x * h, 2).sum(-1) * grouped(w * h, 2).mean(-1), 3)
            + wide(grouped(x * h, 3).var(-1, correction=0) * grouped(h, 3).amax(-1), 2) * m
        ),
    ),
    "one_hot": (
        lambda x, h, m, W, w, u: ops.hardmax(x * h, groups=2) * h + ops.hardmax(w, groups=3) * x,
        lambda x, h, m, W, w, u: one_hot(x * h, 2) * h + one_hot(w, 3) * x,
    ),
    "cumsum": (
        lambda x, h, m, W, w, u: ops.cumsum(x * h) * h + ops.cumsum(w) * x,
        lambda x, h, m, W, w, u: (x * h).cumsum(-1) * h + w.cumsum(-1) * x,
    ),
    "matmul": (
        lambda x, h, m, W, w, u: W @ (x * h) + W.T @ h + W @ w,
        lambda x, h, m, W, w, u: (x * h) @ W.T + h @ W + W @ w,
    ),
    "outer": (  # appears where a matrix of the weights alone meets a vector of them
        lambda x, h, m, W, w, u: h * (W @ ops.tanh(w)) + (W * u).T @ ops.exp(-w * w),
        lambda x, h, m, W, w, u: h * (W @ w.tanh()) + (W * u).T @ (-w * w).exp(),
    ),
    "transpose": (
        lambda x, h, m, W, w, u: (W.T * W) @ h + (W * u).T @ x,
        lambda x, h, m, W, w, u: h @ (W.T * W).T + x @ (W * u),
    ),
    "tile": (
        lambda x, h, *_: ops.tanh(ops.outer(x, h)).T @ x,
        lambda x, h, *_: (torch.tanh(x[..., :, None] * h[..., None, :]) * x[..., None]).sum(-2),
    ),
    "fold": (
        lambda x, h, *_: ops.sum(ops.rows(x) * ops.sin(ops.outer(x, h)), axis=0) * h,
        lambda x, h, *_: (x[..., None] * torch.sin(x[..., :, None] * h[..., None, :])).sum(-2) * h,
    ),
    "bmm": (
        lambda x, h, m, W, w, u: (
            ops.tanh(ops.outer(x, h)).T
            @ (ops.sin(ops.outer(h, x)) @ ops.outer(w, h) @ ops.cos(ops.outer(h, h)).T)
            @ x
        ),
        lambda x, h, m, W, w, u: (
            outer(x, h).tanh().mT
            @ (outer(h, x).sin() @ outer(w.expand_as(h), h) @ outer(h, h).cos().mT)
            @ x[..., None]
        ).squeeze(-1),
    ),
    "swapaxes": (
        lambda x, h, *_: ops.sum(ops.outer(x, h).T * ops.sin(ops.outer(x, h)), axis=0),
        lambda x, h, *_: (outer(h, x) * outer(x, h).sin()).sum(-2),
    ),
    "roll": (
        lambda x, h, *_: ops.shift(ops.outer(x, h), ops.tanh(x)).T @ h,
        lambda x, h, *_: (
            torch.cat([outer(x, h)[..., 1:, :], x.tanh()[..., None, :]], -2) * h[..., None]
        ).sum(-2),
    ),
    "place": (
        lambda x, h, *_: ops.sin(ops.outer(ops.concat(x, h, x), h)).T @ ops.concat(h, x, x),
        lambda x, h, *_: (
            outer(torch.cat([x, h, x], -1), h).sin() * torch.cat([h, x, x], -1)[..., None]
        ).sum(-2),
    ),
    "cut": (
        lambda x, h, *_: ops.split(ops.sin(ops.outer(x, ops.concat(h, x))).T @ h, 2)[1] * x,
        lambda x, h, *_: (
            (outer(x, torch.cat([h, x], -1)).sin() * h[..., None]).sum(-2).chunk(2, -1)[1] * x
        ),
    ),
    "sign": (
        lambda x, h, *_: ops.abs(ops.abs(x) - h) * x,
        lambda x, h, *_: (x.abs() - h).abs() * x,
    ),
    **{
        name: (
            lambda x, h, *_, text=text: eval(text, {"x": x, "h": h}) * h * x,
            lambda x, h, *_, text=text: eval(text, {"x": x, "h": h}).to(F64) * h * x,
        )
        for name, text in {
            "lt": "(x < h)",
            "le": "(x <= h)",
            "gt": "(x > h)",
            "ge": "(x >= h)",
            "eq": "(x == h)",
            "ne": "(x != h)",
        }.items()
    },
}


def test_every_row_is_tested():
    """A new op needs a formula here."""
    assert ROWS.keys() | {"uniform"} == VJP.keys()  # of which a cell's own graph has none


@pytest.mark.parametrize("name", ROWS)
def test_row_is_the_derivative(name):
    """Value and all gradients of a formula that uses the op."""
    own, torchs = ROWS[name]
    case = random_case(formula(own), SIZES, 5, F64)
    got, want = by_our_adjoint(case.cell, case), by_torch(torchs, case)
    assert got.keys() == want.keys()
    for key in want:
        assert_same(key, got[key], want[key], F64, 1)


def test_what_flows_into_a_scalar_is_summed_at_once():
    """One sum over the units of all vectors, the number before them taken out."""

    def own(x, h, m, W, w, u):
        center = ops.mean(h)
        return ops.tanh(h - center) + ops.sin(W @ h - center)

    pair = compiler.pair_of(formula(own))
    sums = [value for value in walk([d for d in pair.d_states if d]) if value.op == "sum"]
    assert [[arg.op for arg in value.args] for value in sums] == [["mul", "mul"]]


TIES = {  # of most elementwise functions, and at NaN: engines/test_awkward.py, on these very rules
    "amax": (
        lambda x, h, *_: ops.spread(ops.amax(x, groups=2), x) + ops.amax(0 * h),
        lambda x, h, *_: wide(grouped(x, 2).amax(-1), 3) + 0 * h,
    ),
    "hardmax": (
        lambda x, h, *_: ops.hardmax(x, groups=2) + 2 * ops.hardmax(x) + ops.hardmax(x > 0) + x,
        lambda x, h, *_: one_hot(x, 2) + 2 * one_hot(x, 1) + one_hot((x > 0).to(x), 1) + x,
    ),
    "pow 1.5": alike(lambda x, h, *_: x**1.5),  # of -inf torch takes a root, and engines none
}


@pytest.mark.parametrize("name", TIES)
def test_ties_and_nan_of_the_largest_are_as_in_torch(name):
    """Gradients at a tie, NaN and infinities where torch has them."""
    own, torchs = TIES[name]
    case = random_case(formula(own), SIZES, 5, F64)
    odd = torch.tensor([0.0, 1.0, float("nan"), float("inf"), float("-inf"), -1.0], dtype=F64)
    case.inputs["x"].copy_(odd.expand(1, 3, 6))
    got, want = by_our_adjoint(case.cell, case), by_torch(torchs, case)
    for key in ("out", "dx"):
        assert_same(key, got[key], want[key], F64, 1)

"""Values with another derivative than their own, of every pair of rates, read in every way."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
import torch

import elman
from elman import ops
from elman.frontend.cell import Cell, cell
from elman.ops import (
    clip_gradient,
    round,
    spike,
    split,
    spread,
    stop_gradient,
    straight_through,
    sum,
    tanh,
)
from helpers import Sizes, assert_all_same, job_of, need, need_engine, oracle, random_case, run

RATES = {  # how often a value changes -> one as it is, and one that is computed
    "number": (lambda leaf: 0.5, lambda leaf: 0.0),
    "weight": (lambda leaf: leaf["g"], lambda leaf: leaf["g"] > 0.1),
    "scalar": (lambda leaf: leaf["s"], lambda leaf: 2 * leaf["s"]),
    "input": (lambda leaf: leaf["x"], lambda leaf: round(leaf["x"] + 0.1)),
    "state": (lambda leaf: leaf["h"], lambda leaf: leaf["h"] > 0.1),
}
FORMS = {
    "straight_through": lambda leaf, a, b: straight_through(a, b),
    "spike": lambda leaf, a, b: spike(leaf["s"] * 0 + a - b, "triangular"),
    "stop_gradient": lambda leaf, a, b: stop_gradient(a) * b,
    "clip_gradient": lambda leaf, a, b: clip_gradient(a + 0.5 * leaf["x"], b),
}
USES = {
    "operand": lambda leaf, v: leaf["R"] @ v,
    "operand of a transpose": lambda leaf, v: leaf["R"].T @ v + leaf["R"] @ leaf["h"],
    "factor": lambda leaf, v: v * leaf["h"],
    "argument": lambda leaf, v: tanh(v),
    "reduced": lambda leaf, v: sum(v) * leaf["x"],
    "output": lambda leaf, v: v,
}
_SCALARS = ("number", "scalar")
_PAIRS = [(a, b, k % 2, k // 2 % 2) for k, (a, b) in enumerate(product(RATES, repeat=2))]


def of_all_pairs(form: str, use: str) -> Cell:
    """Every pair as an output of its own, with weights of its own; scalars are spread where units
    are needed."""
    n = len(_PAIRS)

    @cell(
        input="x[H]",
        state="h[H]",
        weights=f"R[{n}H, H], g[{n}H], s",
        output=", ".join(f"y{k}[H]" for k in range(n)),
    )
    def drawn(x: Any, h: Any, R: Any, g: Any, s: Any) -> Any:
        made: list[Any] = []
        for (a, b, kind, other), R_k, g_k in zip(_PAIRS, split(R, n), split(g, n), strict=True):
            leaf = {"x": x, "h": h, "R": R_k, "g": g_k, "s": s}
            value = FORMS[form](leaf, RATES[a][kind](leaf), RATES[b][other](leaf))
            if a in _SCALARS and b in _SCALARS and form != "clip_gradient":
                value = spread(value, x)
            made.append(0 * x + 0.5 * h + USES[use](leaf, value))
        return (*made, 0.5 * h + 0.1 * tanh(x))

    return drawn


@pytest.mark.slow
@pytest.mark.parametrize(
    "form, use, engine",
    [
        # each form in each use on one engine; deer refuses a backward that is not linear
        pytest.param(form, use, engine, marks=() if usual else pytest.mark.long)
        for at, (form, use) in enumerate(product(FORMS, USES))
        for turn, engine in enumerate(["c", "deer", "scan-backward"])
        for usual in [form == "clip_gradient" or turn == (at + at // len(USES)) % 3]
        if form != "clip_gradient" or engine == "c"
    ],
)
def test_every_pair_of_rates(form, use, engine):
    """The value may be one of weights alone where its derivative is not, and the other way
    round."""
    case = random_case(of_all_pairs(form, use), Sizes(3, 2, 5, 5), 1, torch.float64)
    need(engine, job_of(case))
    assert_all_same(run(case.cell, case, engine), oracle(case), case.dtype, case.T)


@pytest.mark.parametrize("weight", [float("nan"), float("inf"), 1.0])
@pytest.mark.parametrize("engine", ["reference", "c"])
def test_nothing_flows_to_a_value_within_a_value(engine, weight):
    """Not even a zero, which times a derivative that is not finite would be NaN."""
    need_engine(engine)

    @cell(input="x[H]", state="h[H]", weights="g[H]")
    def nested(x, h, g):
        inner = ops.straight_through(x, ops.elu(g) + ops.elu(g))
        return ops.straight_through(inner, x)

    net = elman.Recurrent(nested, 3, 3, engine=engine, dtype=torch.float64)
    torch.nn.init.constant_(net.g_l0, weight)
    net(torch.ones(2, 1, 3, dtype=torch.float64, requires_grad=True))[0].sum().backward()
    assert net.g_l0.grad is None or not net.g_l0.grad.any()


def clipped_once(x, h):
    v = clip_gradient(x, 1.0)
    return v + v + 0 * h


def clipped_twice(x, h):
    return clip_gradient(x, 1.0) + clip_gradient(x, 1.0) + 0 * h


def clipped_in_blocks(x, h):
    return sum(clip_gradient(ops.concat(x, x), 1.0)) + 0 * h


@pytest.mark.parametrize("engine", ["reference", "c"])
def test_what_is_clipped_twice_is_not_clipped_at_once(engine):
    """Equal formulas are one value, unless they clip: min(2 d, 1) is not min(d, 1) + min(d, 1)."""
    wanted = {clipped_once: 1.0, clipped_twice: 1.5, clipped_in_blocks: 1.5}
    names: set[str] = set()
    for formula, want in wanted.items():
        own = elman.cell(input="x[H]", state="h[H]")(formula)
        x = torch.randn(1, 2, 1, dtype=torch.float64).requires_grad_()
        net = elman.Recurrent(own, 1, 1, engine=engine, dtype=torch.float64)
        (d,) = torch.autograd.grad((0.75 * net(x)[0]).sum(), x)
        torch.testing.assert_close(d, torch.full_like(d, want))
        names.add(own.fingerprint)
    assert len(names) == 3


@pytest.mark.parametrize("engine", ["reference", "c"])
def test_a_formula_written_twice_is_one_value(engine):
    """Its cotangents are summed before they meet an infinite derivative: no 0 times infinity."""
    need_engine(engine)

    @cell(input="x[H], k[H]", state="h[H]")
    def twice(x, k, h):
        return ops.where(x > 0, 1 / k, 1 / k) + 0 * h

    net = elman.Recurrent(twice, 3, 3, engine=engine, dtype=torch.float64)
    x = torch.tensor([1.0, -1.0, 1.0], dtype=torch.float64).view(1, 1, 3)
    k = torch.tensor([0.0, 0.0, 2.0], dtype=torch.float64).view(1, 1, 3).requires_grad_()
    net((x, k))[0].sum().backward()
    assert k.grad is not None
    assert k.grad.flatten().tolist() == [-float("inf"), -float("inf"), -0.25]

"""Lowered programs: what they compute, and that what is wrong with one is noticed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from itertools import chain
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from elman import cell as declared
from elman import cells
from elman.errors import VerifyError
from elman.lowered.layout import Layout
from elman.lowered.lower import Lowered
from elman.lowered.types import (
    Access,
    Copy,
    Matrix,
    MatVec,
    Once,
    Prefetch,
    RowSum,
    Segment,
    Store,
    Transpose,
)
from elman.ops import mean, sigmoid, tanh
from elman.ops import sum as total
from helpers import Case, Sizes, assert_all_same, oracle, random_case
from kernels import case_of
from lowered_dump import show_direction
from lowered_machine import Machine, lowered_of
from lowered_verify import verify
from random_cells import drawn_cells, reusing_cells
from unseen import holding

F64 = torch.float64
SIZES = Sizes(T=4, B=3, I=5, H=9)


def check(lowered: Lowered, case: Case) -> None:
    """One worker, and three of which the last is first or last."""
    want = oracle(case)
    for workers, order in ((1, range), (3, range), (3, lambda n: reversed(range(n)))):
        assert_all_same(Machine(lowered, case, workers, order).run(), want, F64, case.T)


@pytest.mark.parametrize("cell", cells.CORE)
def test_library(cell):
    """Both directions, by workers in any order, agree with engine reference."""
    case = random_case(cell, SIZES, 0, F64)
    lowered = lowered_of(case)
    verify(lowered)
    check(lowered, case)


@declared(input="x[H], m", state="h[H], n", weights="W[H, H], R[H, H], g[H], s")
def scaled(x, m, h, n, W, R, g, s):
    """Scalars of every rate, reductions, a matrix that is computed once per call."""
    R = R - R.T
    v = W @ x + m * (R @ h)
    v = v / (1 + mean(v * v)) * g * s
    return (1 - sigmoid(n)) * tanh(v) + h * total(g * g), n + total(v * h)


@declared(input="x[I]", state="h[H], s", weights="W[H, I]")
def held(x, h, s, W):
    """A scalar state that stays as it is: its cotangent is the leading worker's alone."""
    return tanh(W @ x), s


def test_a_scalar_that_is_held():
    """What one worker stores it may load, without a wait."""
    case = random_case(held, SIZES, 2, F64)
    lowered = lowered_of(case)
    verify(lowered)
    check(lowered, case)


class Joined(Layout):
    """As of engine triton."""

    joins_sums, sums_in_place = True, False


@pytest.mark.parametrize("cell", [cells.gru, cells.lem, cells.slstm, held, holding])
def test_other_layouts(cell, monkeypatch):
    """Summed slots in the order of the weights, and cotangents of all states in two rows."""
    monkeypatch.setattr("elman.lowered.lower.Layout", Joined)
    case = random_case(cell, SIZES, 2, F64)
    lowered = lowered_of(case)
    assert not any(lowered.layout.summed)
    verify(lowered)
    check(lowered, case)


def test_sums_that_are_joined(monkeypatch):
    """What the gradients of neighbouring blocks of a weight are sums of lies side by side."""
    case = random_case(cells.lstm, Sizes(T=4, B=3, I=8, H=8), 0, F64)
    plain = lowered_of(case)
    monkeypatch.setattr("elman.lowered.lower.Layout", Joined)
    for lowered, expected in ((plain, False), (lowered_of(case), True)):
        assert lowered.backward is not None
        lefts: dict[Any, list[tuple[int, int]]] = {}
        for term in lowered.backward.sums:
            if isinstance(term.target, Matrix):
                place = term.target.access.offset, term.left.offset
                lefts.setdefault(term.right, []).append(place)
        offsets = [[offset for _, offset in sorted(places)] for places in lefts.values()]
        assert [len(each) for each in offsets] == [4, 4]
        assert all((each == [*range(0, 32, 8)]) is expected for each in offsets)


@pytest.mark.parametrize("tape", ["save", "auto", "recompute"])
def test_scalars_and_matrices_of_weights(tape):
    """What is computed once per call, and its gradients."""
    case = random_case(scaled, replace(SIZES, I=9), 1, F64)
    lowered = lowered_of(case, tape=tape)
    verify(lowered)
    check(lowered, case)


@pytest.mark.parametrize("cell", [cells.gru, cells.lstm, cells.lstm_layernorm])
def test_heads_are_loops(cell):
    """Heads are copies: parts of 8 have as many statements as a part of one; results agree."""
    case = random_case(cell.with_heads(8), replace(SIZES, H=24), 3, F64)
    lowered, one = lowered_of(case), lowered_of(random_case(cell, SIZES, 3, F64))
    parts = [
        [part for phase in d.phases for segment in phase.segments for part in segment.parts]
        for d in (*lowered.directions, *one.directions)
    ]
    counts = [sum(len(part.body) for part in parts) for parts in parts]
    assert max(part.groups for part in chain(*parts)) == 8
    assert sum(counts[:2]) < 2 * sum(counts[2:])
    verify(lowered)
    check(lowered, case)


def test_products_that_look_for_spikes_are_not_rolled():
    """Engine c makes lists of ones per operand, before its product."""
    lowered = lowered_of(random_case(cells.rlif.with_heads(16), replace(SIZES, I=16, H=48), 3, F64))
    phases = [phase for direction in lowered.directions for phase in direction.phases]
    parts = [part for phase in phases for segment in phase.segments for part in segment.parts]
    assert any(any(product.spikes) for part in parts for product in part.products)
    for part in parts:
        assert part.groups == 1 or not any(any(product.spikes) for product in part.products)


@given(st.one_of(drawn_cells(), reusing_cells()))
def test_random_cells(drawn):
    """Any ops, states of several sizes, outputs that are no states."""
    case = case_of(drawn, 3, 2, F64)
    lowered = lowered_of(case)
    verify(lowered)
    check(lowered, case)


@pytest.mark.parametrize("cell, name", [(cells.gru, "forward"), (cells.rnn, "backward")])
def test_dumps(cell, name, golden):
    """Offsets, values, stores, sums: as a person reads them."""
    lowered = lowered_of(random_case(cell, SIZES, 0, F64))
    golden(f"lowered_{cell.name}_{name}", show_direction(getattr(lowered, name)))


# mutants ------------------------------------------------------------------------------------------


def paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Every part of a lowered direction, and how it is reached."""
    yield path, value
    if isinstance(value, Prefetch):
        return  # changes no result
    if isinstance(value, tuple):
        for index, item in enumerate(value):
            yield from paths(item, (*path, index))
    elif is_dataclass(value):
        for field in fields(value):
            yield from paths(getattr(value, field.name), (*path, field.name))


def edited(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    """The same with another part at a path; None: without it."""
    if not path:
        return new
    first, *rest = path
    if isinstance(value, tuple):
        inner = edited(value[first], tuple(rest), new)
        return (*value[:first], *(() if inner is None else (inner,)), *value[first + 1 :])
    return replace(value, **{first: edited(getattr(value, first), tuple(rest), new)})


def mutations(value: Any, lanes: int) -> Iterator[Any]:
    """Ways to be wrong in one place; None: the part is missing."""
    if isinstance(value, Segment) and value.sync:
        yield replace(value, sync=False)
    if isinstance(value, Access):
        yield replace(value, offset=value.offset + 1)
        yield replace(value, offset=value.offset + lanes)
        if value.step:
            yield replace(value, step=0)
    kind = type(value).__name__
    if kind == "Ref" and value.index:
        yield replace(value, index=0)
    if kind == "Ref":
        yield replace(value, index=value.index + 50)
    if kind == "Acc":
        yield replace(value, index=value.index + 1)
    if kind == "Term":
        yield replace(value, transposed=not value.transposed)
    if kind == "Affine" and value.args:
        yield replace(value, coefs=(-value.coefs[0], *value.coefs[1:]))
        yield replace(value, bias=value.bias + 1)
    if kind == "RowSum":
        yield replace(value, first=not value.first)


def removable(value: Any, path: tuple[Any, ...]) -> bool:
    """Whether a part is one of a list of statements, all of which are needed."""
    statements = Store | RowSum | Copy | Once | MatVec | Transpose
    return isinstance(value, statements) and isinstance(path[-1], int)


def mutants(lowered: Lowered) -> Iterator[tuple[str, Lowered]]:
    """Lowered programs that are wrong in one place each."""
    for name in ("forward", "backward"):
        direction = getattr(lowered, name)
        for path, value in paths(direction):
            missing = [None] if removable(value, path) else []
            for new in (*mutations(value, lowered.layout.lanes), *missing):
                changed = edited(direction, path, new)
                yield f"{name} {path}: {value} -> {new}", replace(lowered, **{name: changed})


def noticed(mutant: Lowered, case: Case, want: dict[str, torch.Tensor]) -> bool:
    """Whether the verifier refuses a program, or it computes something else."""
    try:
        verify(mutant)
        for order in (range, lambda n: reversed(range(n))):
            assert_all_same(Machine(mutant, case, 3, order).run(), want, F64, case.T)
    except (VerifyError, AssertionError, IndexError, RuntimeError, KeyError, ValueError):
        return True
    return False


@pytest.mark.parametrize(
    "cell, each",
    [
        (cells.gru, 9),
        (scaled, 18),
        *(pytest.param(cell, 3, marks=pytest.mark.long) for cell in (cells.gru, scaled)),
    ],
)
def test_mutants(cell, each):
    """A wait, an offset, a store, a sign, a register: nothing that is off passes."""
    sizes = replace(SIZES, I=9) if cell is scaled else SIZES
    case = random_case(cell, sizes, 2, F64)
    lowered, want = lowered_of(case), oracle(case)
    every = list(mutants(lowered))
    assert len(every) > 200
    missed = [text for text, mutant in every[::each] if not noticed(mutant, case, want)]
    assert not missed, "\n".join(missed)

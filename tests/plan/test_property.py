"""Prices and schedules are free to be wrong about speed, never about values.

Random prices, blocks, tapes and schedules, and optimizations left out, for every cell of the
library, and for random cells.
"""

from __future__ import annotations

import random
import re
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from calls import call
from elman import cells
from elman.engines.c.engine import PRICES as PRICES_OF_C
from elman.lowered.lower import lower
from elman.plan.build import program
from elman.plan.prices import Prices
from elman.plan.schedule import Blocks
from elman.plan.spec import OPTIMIZATIONS
from helpers import Case, Sizes, assert_all_same, job_of, oracle, random_case
from kernels import c_kernel, case_of, ill_conditioned, scheduled
from lowered_verify import verify
from products import every
from random_cells import Drawn, drawn_cells, reusing_cells
from random_matrices import linear_matrix_cell, matrix_cell, matrix_cells

PRICE = st.sampled_from([0.001, 0.04, 0.4, 1.0, 5.0, 50.0])
PRICES = st.builds(Prices, PRICE, PRICE, PRICE, PRICE, PRICE)
BLOCKS = st.builds(Blocks, rows=st.sampled_from([1, 3, 48]), k=st.sampled_from([1, 4, 256]))
TAPES = st.sampled_from(["auto", "save", "recompute"])
WITHOUT = st.one_of(st.just(frozenset[str]()), st.frozensets(st.sampled_from([*OPTIMIZATIONS])))
SCHEDULE = st.tuples(
    st.sampled_from(["one", "batch", "units"]), st.integers(1, 3), st.sampled_from([1, 2, 3, 100])
)
SCHEDULES = st.lists(SCHEDULE, min_size=1, max_size=3)

Schedules = list[tuple[str, int, int]]


def check(case: Case, schedules: Schedules, **options: Any) -> None:
    """A kernel under several schedules against the oracle."""
    want = oracle(case)
    bad = ill_conditioned(case, want)
    kernel = c_kernel(case, **options)
    for schedule in schedules:
        with pytest.MonkeyPatch.context() as patch:
            scheduled(patch, kernel, *schedule)
            got = call(kernel, case, backwards=2)
        wanted = {*kernel.spec.wants, *case.states} if kernel.spec.training else set()
        asked = {name for name in want if name[0] != "d" or name[1:] in wanted}
        assert asked <= got.keys() <= {*asked, *(f"d{name}" for name in wanted)}
        judged = {name: value for name, value in want.items() if name in asked - bad}
        found = {name: value for name, value in got.items() if name not in bad}
        assert_all_same(found, judged, case.dtype, case.T)


UNLIKE = {"gru", "gru_before", "lstm_layernorm", "lem", "slstm", "indrnn", "paragru", "minlstm"}


@pytest.mark.parametrize(
    "cell",
    [
        pytest.param(cell, id=cell.name, marks=() if cell.name in UNLIKE else pytest.mark.long)
        for cell in cells.CORE
    ],
)
def test_prices_and_schedules_change_no_result(cell):
    """Every cell of the library, planned as if other things were expensive, run in any way."""
    case = random_case(cell, Sizes(T=6, B=5, I=5, H=11), 3, torch.float64)

    @settings(max_examples=max(2, settings().max_examples // 10))
    @given(prices=PRICES, blocks=BLOCKS, tape=TAPES, without=WITHOUT, schedules=SCHEDULES)
    def holds(schedules, **options):
        check(case, schedules, **options)

    holds()


@pytest.mark.slow
@given(
    drawn=st.one_of(drawn_cells(), reusing_cells()),
    T=st.integers(1, 6),
    B=st.integers(1, 6),
    dtype=st.sampled_from([torch.float64, torch.float64, torch.float32]),
    prices=PRICES,
    blocks=BLOCKS,
    tape=TAPES,
    without=WITHOUT,
    training=st.sampled_from([True, True, True, False]),
    frozen=st.one_of(st.just(0), st.integers(0, 255)),
    schedules=SCHEDULES,
)
def test_random_cells_agree_with_the_oracle(drawn, T, B, dtype, frozen, schedules, **options):
    """Cells nobody has written: engine c runs them, and is right; some weights may be frozen."""
    case = case_of(drawn, T, B, dtype)
    names = [*case.inputs, *case.weights]
    wants = frozenset(name for bit, name in enumerate(names) if not frozen >> bit & 1)
    check(case, schedules, wants=wants, **options)


def with_static(drawn: Drawn) -> Drawn:
    """The same formula whose second input, if there is one, has one value per sequence."""
    declared = re.sub(r'input="(x\[I\]), ([mk][^"]*)"', r'input="\1", static="\2"', drawn.text)
    return replace(drawn, text=declared)


@pytest.mark.slow
@given(
    drawn=st.one_of(reusing_cells(), drawn_cells()).map(with_static),
    T=st.integers(1, 6),
    B=st.integers(1, 6),
    prices=PRICES,
    tape=TAPES,
    training=st.sampled_from([True, True, True, False]),
    schedules=SCHEDULES,
)
def test_random_cells_with_held_states(drawn, T, B, schedules, **options):
    """What depends on static inputs is held by states; engine c reads their rows anywhere."""
    check(case_of(drawn, T, B, torch.float64), schedules, **options)


@pytest.mark.slow
@given(
    drawn=matrix_cells(),
    T=st.sampled_from([1, 2, 5, 19]),
    B=st.integers(1, 4),
    prices=PRICES,
    tape=TAPES,
    without=WITHOUT,
    training=st.sampled_from([True, True, True, False]),
    schedules=SCHEDULES,
)
def test_random_cells_with_matrices(drawn, T, B, schedules, **options):
    """Products, transposes, windows and reductions of matrices per sample, in any combination."""
    check(case_of(drawn, T, B, torch.float64), schedules, **options)


@pytest.mark.slow
@pytest.mark.parametrize("first", every(200, range(80, 4000, 20)))
def test_every_plan_is_lowered(first):
    """Of random cells with matrices, for training and not, of one step and of merged ones: matrices
    are at hand in the loop alone, and what other phases read of them was stored there."""
    for seed in range(first, first + 20):
        source = random.Random(seed)
        drawn = source.choice([matrix_cell, linear_matrix_cell])(source.choice)
        for training in (False, True):
            tape = source.choice(["auto", "save", "recompute"])
            job = job_of(case_of(drawn, 2, 2, torch.float64), training=training, tape=tape)
            for planned in filter(None, (job, job.several)):
                verify(lower(program(planned.pair, planned.spec, PRICES_OF_C), 8))

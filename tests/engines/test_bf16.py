"""Engine c with operands of products rounded to bfloat16, against an oracle that rounds alike."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from benchmarks.users.spikes import rleaky
from calls import call, call_of, given_of
from elman import cells
from elman.engines.vjp import leaves_of, vjp
from elman.tuning.kernels import kernel_of
from engines.test_c_gathering import FEW, SOME, spiking
from helpers import AWKWARD, Sizes, assert_all_same, assert_close, job_of, need, random_case
from kernels import c_kernel, case_of, scheduled, unlike
from plan.test_property import BLOCKS, PRICES, SCHEDULE, TAPES
from products import every
from random_cells import drawn_cells, reusing_cells
from rounded_products import OPERANDS, judged, rounding_oracle
from unseen import UNSEEN

F32 = torch.float32
SCHEDULES = [("one", 1, 100), ("batch", 2, 100), ("units", 2, 100), ("units", 3, 2)]
EVERY_SIZE = [cells.gru, cells.lstm_layernorm]


@pytest.fixture(autouse=True)
def _pairs():
    """The processor has such products."""
    need("c", job_of(random_case(cells.gru, AWKWARD[0]), precision="bf16"))


def agree(monkeypatch, draw, schedules=SCHEDULES):
    """Every way of sharing the work gives the oracle's results, within the tolerance of float32."""
    case, want = judged(draw)
    kernel = c_kernel(case, precision="bf16")
    assert_all_same(call(kernel, case), want, F32, case.T)
    for schedule in schedules:
        with monkeypatch.context() as patch:
            scheduled(patch, kernel, *schedule)
            assert_all_same(call(kernel, case), want, F32, case.T)


@pytest.mark.parametrize("cell", cells.CORE)
def test_cells_agree(cell, monkeypatch):
    """Output, last states and every gradient, on awkward sizes, under every split."""
    awkward = [replace(sizes, T=min(sizes.T, 3)) for sizes in AWKWARD]
    for sizes in awkward if cell in EVERY_SIZE else [Sizes(T=6, B=9, I=31, H=21)]:
        agree(monkeypatch, partial(random_case, cell, sizes))


@pytest.mark.parametrize("operand", OPERANDS)
@pytest.mark.parametrize("cell", [cells.gru, cells.lstm])
def test_each_rounding_counts(cell, operand):
    """An oracle that leaves one rounding out is not agreed with."""
    case, want = judged(partial(random_case, cell, Sizes(T=5, B=9, I=31, H=21)))
    got = call(c_kernel(case, precision="bf16"), case)
    assert_all_same(got, want, F32, case.T)
    wrong, _ = rounding_oracle(case, left_out=operand)
    with pytest.raises(AssertionError, match="at most"):
        assert_all_same(got, wrong, F32, case.T)


@pytest.mark.parametrize("cell", every(2, [*UNSEEN]))
def test_unseen_cells_agree(cell, monkeypatch):
    """Cells that nobody has prepared for."""
    sizes = UNSEEN[cell]
    agree(monkeypatch, partial(random_case, cell, sizes), SCHEDULES[3:])


@pytest.mark.parametrize("T, B, H", [(2, 100, 64), (9, 3, 13), (1, 5, 200), (3, 17, 96)])
def test_sizes(T, B, H, monkeypatch):
    """More rows than a block, more steps than a chunk, several panels and blocks of k."""
    sizes = Sizes(T, B, I=2 * H + 1, H=H)
    agree(monkeypatch, partial(random_case, cells.gru, sizes), SCHEDULES[2:])


@pytest.mark.parametrize("shift", [FEW, SOME])
@pytest.mark.parametrize("cell", [rleaky, cells.rlif])
def test_spikes_agree(cell, shift, monkeypatch):
    """Rows of rounded weights are added up where few are 1; of rounded cotangents for gradients."""
    sizes = Sizes(T=3, B=90, I=260, H=260)

    def draw(seed):
        case = spiking(shift, F32, sizes, cell)
        source = torch.Generator().manual_seed(seed)
        if cell is cells.rlif:
            case.inputs["x"].copy_(torch.rand(3, 90, 260, generator=source) < (shift + 1) / 4)
        return replace(case, d_output=torch.randn(case.d_output.shape, generator=source))

    case, want = judged(draw)
    assert case.T * case.d_output.shape[1] >= 64  # fewer rows are not looked through
    kernel = c_kernel(case, precision="bf16")
    text = kernel.emitter.text()
    assert "halves4(" in text
    assert "round_left(" in text
    for schedule in SCHEDULES[:1] + SCHEDULES[2:3]:
        with monkeypatch.context() as patch:
            scheduled(patch, kernel, *schedule)
            assert_all_same(call(kernel, case), want, F32, case.T)


def test_reference_rounds_alike():
    """Engine reference rounds as the oracle of these tests does, by arithmetic of its own."""
    case = random_case(cells.lstm, Sizes(T=5, B=3, I=7, H=6), 0, torch.float64)
    plain = call_of(given_of(case))
    leaves = leaves_of(plain.tensors, [True] * len(plain.tensors))
    job = job_of(case, precision="bf16")
    result = kernel_of(job, "reference").forward(plain.with_tensors(leaves))
    found = vjp(result.values, leaves, (case.d_output, *case.d_last.values()), [True] * len(leaves))
    want, _ = rounding_oracle(case)
    assert_close(result.output, want["out"])
    for name, grad in zip((*case.inputs, *case.states, *case.weights), found, strict=True):
        assert_close(grad, want[f"d{name}"])


@pytest.mark.slow
@given(
    drawn=st.one_of(drawn_cells(), reusing_cells()),
    T=st.integers(1, 4),
    B=st.integers(1, 6),
    prices=PRICES,
    blocks=BLOCKS,
    tape=TAPES,
    schedule=SCHEDULE,
)
def test_random_cells_agree(drawn, T, B, schedule, **options):
    """Cells nobody has written, planned as if other things were expensive, run in any way."""
    case = case_of(drawn, T, B, F32)
    want, calm = rounding_oracle(case)
    assume(calm.all() and all(value.isfinite().all() for value in want.values()))
    bad = unlike(rounding_oracle(case, dtype=F32)[0], want, F32)
    kernel = c_kernel(case, precision="bf16", **options)
    with pytest.MonkeyPatch.context() as patch:
        scheduled(patch, kernel, *schedule)
        got = call(kernel, case, backwards=2)
    for results in (got, want):
        for name in bad:
            results.pop(name, None)
    assert_all_same(got, want, F32, T)

"""Packed rows: every kernel gives for each sequence what it gives for that sequence alone."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from calls import forward
from elman import cells
from elman.engines.packed import DenseRuns, for_layout, reversed_in_time
from elman.engines.packed_rows import Packed
from elman.errors import ShapeError
from elman.tuning.kernels import kernel_of
from helpers import assert_all_same, assert_close, job_of, need
from kernels import c_kernel, scheduled
from packed_rows import alone, drawn, layout, packed, together
from products import some_of
from unseen import UNSEEN

LENGTHS = {
    "several": (9, 7, 7, 4, 1),
    "equal": (5, 5, 5),
    "alone": (6,),
    "steps of one": (1, 1, 1, 1),
    "long tail": (40, 3, 2, 2, 1, 1, 1),
}
SCHEDULES = [("one", 1, 64), ("one", 1, 2), ("batch", 2, 3), ("units", 2, 3), ("batch", 3, 64)]


@pytest.mark.parametrize("cell, name", some_of([*cells.CORE, *UNSEEN], [*LENGTHS], together=1))
def test_every_cell(cell, name):
    """Engine c, as it forecasts: output, each sequence's last state, every gradient."""
    lengths = LENGTHS[name]
    case = drawn(cell, lengths)
    got = together(c_kernel(case), case, lengths)
    assert_all_same(got, alone(case, lengths), torch.float64, max(lengths))


@pytest.mark.parametrize("split, workers, chunk", SCHEDULES)
@pytest.mark.parametrize("cell", [cells.gru, cells.lstm_layernorm, cells.sru])
def test_schedules(monkeypatch, cell, split, workers, chunk):
    """Any split, any number of workers, chunks shorter than the sequences; two backwards."""
    lengths = LENGTHS["long tail"] + (1,) * 9
    case = drawn(cell, lengths, torch.float32, H=33)
    kernel = c_kernel(case)
    scheduled(monkeypatch, kernel, split, workers, chunk)
    want = alone(case, lengths)
    assert_all_same(together(kernel, case, lengths), want, torch.float32, 40)
    assert_all_same(together(kernel, case, lengths, 2), want, torch.float32, 40)


@given(lengths=st.lists(st.integers(1, 12), min_size=1, max_size=9), seed=st.integers(0, 99))
def test_any_lengths(lengths, seed):
    """Whatever the lengths."""
    lengths = tuple(sorted(lengths, reverse=True))
    case = drawn(cells.lstm, lengths, seed=seed)
    got = together(c_kernel(case), case, lengths)
    assert_all_same(got, alone(case, lengths), torch.float64, max(lengths))


@pytest.mark.parametrize("tape", ["save", "recompute"])
def test_tapes(tape):
    """What is recomputed from states is recomputed from the right rows."""
    lengths = LENGTHS["several"]
    case = drawn(cells.gru, lengths)
    got = together(c_kernel(case, tape=tape), case, lengths)
    assert_all_same(got, alone(case, lengths), torch.float64, 9)


def test_without_gradients():
    """Forward alone keeps as much of the states as it needs to find each one's last."""
    lengths = LENGTHS["several"]
    for cell in (cells.lstm, cells.lem, cells.sru):
        case = drawn(cell, lengths)
        kernel = c_kernel(case, training=False, wants=frozenset())
        inputs = [packed(value, lengths) for value in case.inputs.values()]
        states, weights = list(case.states.values()), list(case.weights.values())
        output, last, saved = forward(kernel, (inputs, states, weights), layout(lengths))
        assert saved == ()
        want = alone(case, lengths)
        assert_close(output, want["out"], "step")
        for name, value in zip(case.states, last, strict=True):
            assert_close(value, want[f"last {name}"], "step")


@pytest.mark.parametrize("engine", ["reference", "deer", "scan-backward"])
@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
def test_kernels_that_know_nothing_of_it(engine, lengths):
    """One call per run of steps that the same sequences have."""
    for cell in (cells.gru, cells.lstm, cells.mingru):
        case = drawn(cell, lengths)
        job = job_of(case)
        need(engine, job)
        kernel = kernel_of(job, engine)
        assert isinstance(for_layout(kernel, layout(lengths)), DenseRuns)
        got = together(kernel, case, lengths)
        assert_all_same(got, alone(case, lengths), torch.float64, max(lengths))


@given(lengths=st.lists(st.integers(1, 9), min_size=1, max_size=7), shares=st.integers(1, 4))
def test_layout(lengths, shares):
    """Lengths, runs, reversal and shares follow from the sizes."""
    lengths = sorted(lengths, reverse=True)
    how = layout(lengths)
    assert list(how.lengths) == lengths
    assert how.rows == sum(lengths)
    assert sum(count * size for _, count, size in how.runs) == how.rows

    padded = torch.arange(9 * len(lengths)).reshape(9, -1)[: max(lengths)]
    rows = packed(padded, lengths)
    backwards = torch.stack(
        [torch.cat((padded[:n, b].flip(0), padded[n:, b])) for b, n in enumerate(lengths)], 1
    )
    assert torch.equal(reversed_in_time(rows, how), packed(backwards, lengths))
    assert torch.equal(reversed_in_time(reversed_in_time(rows, how), how), rows)
    assert torch.equal(reversed_in_time(padded, None), padded.flip(0))

    numbers = how.numbers(shares).tolist()
    offsets, cuts = numbers[: how.steps + 1], numbers[how.steps + 1 :]
    assert offsets == list(how.offsets)
    assert cuts == sorted(cuts)
    assert (cuts[0], cuts[-1], len(cuts)) == (0, len(lengths), shares + 1)


@pytest.mark.parametrize("sizes", [(), (2, 3), (2, 0), (0,)])
def test_sizes_that_are_none(sizes):
    """No steps, sizes that grow, steps that nobody has."""
    with pytest.raises(ShapeError, match="never grow"):
        Packed(sizes)

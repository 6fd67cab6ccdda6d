"""Packed rows: every kernel gives for each sequence what it gives for that sequence alone."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.utils.rnn import pack_padded_sequence

from elman import cells
from elman.engines.ragged import Ragged, Runs, over, turned
from elman.errors import ShapeError
from elman.tuning.choose import kernel_of
from helpers import Case, Sizes, assert_all_same, job_of, need, random_case
from kernels import c_kernel, scheduled
from unseen import UNSEEN

LENGTHS = {
    "several": (9, 7, 7, 4, 1),
    "equal": (5, 5, 5),
    "alone": (6,),
    "steps of one": (1, 1, 1, 1),
    "long tail": (40, 3, 2, 2, 1, 1, 1),
}
SCHEDULES = [("one", 1, 64), ("one", 1, 2), ("batch", 2, 3), ("units", 2, 3), ("batch", 3, 64)]


def layout(lengths) -> Ragged:
    """The batch sizes of lengths that fall."""
    return Ragged([sum(length > t for length in lengths) for t in range(max(lengths))])


def drawn(cell, lengths, dtype=torch.float64, H=7, seed=0) -> Case:
    """A padded case for those lengths."""
    sizes = UNSEEN.get(cell, Sizes(T=max(lengths), B=len(lengths), I=5, H=H))
    return random_case(
        cell, Sizes(max(lengths), len(lengths), sizes.I, sizes.H, sizes.more), seed, dtype
    )


def packed(value, lengths):
    """The rows of a padded array."""
    return pack_padded_sequence(value, torch.tensor(lengths)).data


def alone(case: Case, lengths) -> dict[str, torch.Tensor]:
    """Each sequence by itself on the oracle, put together as packed rows, in float64."""
    case = case.to(torch.float64)
    leaves = {
        name: value.clone().requires_grad_()
        for name, value in (*case.inputs.items(), *case.states.items(), *case.weights.items())
    }
    kernel = kernel_of(job_of(case, training=False, wants=frozenset()), "reference")
    outputs, lasts = [], []
    for b, length in enumerate(lengths):
        output, last, _ = kernel.forward(
            [leaves[name][:length, b : b + 1] for name in case.inputs],
            [leaves[name][b : b + 1] for name in case.states],
            [leaves[name] for name in case.weights],
        )
        outputs.append(output[:, 0])
        lasts.append(last)
    padded = torch.nn.utils.rnn.pad_sequence(outputs)
    values = [packed(padded, lengths), *(torch.cat(parts) for parts in zip(*lasts))]
    ds = [packed(case.d_output, lengths), *case.d_last.values()]
    pairs = [(v, d) for v, d in zip(values, ds, strict=True) if v.requires_grad]
    roots, ds = zip(*pairs, strict=True)
    grads = torch.autograd.grad(roots, list(leaves.values()), ds, allow_unused=True)
    found = named(case, values, dict(zip(leaves, grads, strict=True)))
    return {
        name: packed(value, lengths) if name.removeprefix("d") in case.inputs else value
        for name, value in found.items()
    }


def named(case, values, grads):
    """Results by name; gradients of None left out."""
    found = {"out": values[0].detach()}
    found |= {f"last {name}": value.detach() for name, value in zip(case.states, values[1:])}
    return found | {f"d{name}": grad for name, grad in grads.items() if grad is not None}


def together(kernel, case: Case, lengths, backwards=1) -> dict[str, torch.Tensor]:
    """All sequences at once on a kernel."""
    ragged = layout(lengths)
    made = over(kernel, ragged)
    inputs = [packed(value, lengths) for value in case.inputs.values()]
    states, weights = list(case.states.values()), list(case.weights.values())
    if made.differentiable:
        given = [value.clone().requires_grad_() for value in (*inputs, *states, *weights)]
        first, second = len(inputs), len(inputs) + len(states)
        output, last, _ = made.forward(given[:first], given[first:second], given[second:])
        ds = [packed(case.d_output, lengths), *case.d_last.values()]
        pairs = [(v, d) for v, d in zip((output, *last), ds, strict=True) if v.requires_grad]
        values, ds = zip(*pairs, strict=True)
        grads = torch.autograd.grad(values, given, ds, allow_unused=True)
    else:
        output, last, saved = made.forward(inputs, states, weights)
        output = output.clone()
        for left in reversed(range(backwards)):
            groups = made.backward(
                inputs,
                states,
                weights,
                saved,
                packed(case.d_output, lengths),
                tuple(case.d_last.values()),
                left > 0,
            )
        grads = [grad for group in groups for grad in group]
    names = (*case.inputs, *case.states, *case.weights)
    return named(case, [output, *last], dict(zip(names, grads, strict=True)))


@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
@pytest.mark.parametrize("cell", [*cells.ALL, *UNSEEN], ids=lambda cell: cell.name)
def test_every_cell(cell, lengths):
    """Engine c, as it forecasts: output, each sequence's last state, every gradient."""
    case = drawn(cell, lengths)
    got = together(c_kernel(case), case, lengths)
    assert_all_same(got, alone(case, lengths), torch.float64, max(lengths))


@pytest.mark.parametrize("split, workers, chunk", SCHEDULES)
@pytest.mark.parametrize("cell", [cells.gru, cells.lstm_layernorm, cells.sru], ids=lambda c: c.name)
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
        made = over(kernel, layout(lengths))
        inputs = [packed(value, lengths) for value in case.inputs.values()]
        output, last, saved = made.forward(
            inputs, list(case.states.values()), list(case.weights.values())
        )
        assert saved == ()
        want = alone(case, lengths)
        torch.testing.assert_close(output, want["out"], atol=1e-12, rtol=0)
        for name, value in zip(case.states, last, strict=True):
            torch.testing.assert_close(value, want[f"last {name}"], atol=1e-12, rtol=0)


@pytest.mark.parametrize("engine", ["reference", "deer", "scan-backward"])
@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
def test_kernels_that_know_nothing_of_it(engine, lengths):
    """One call per stretch of steps that the same sequences have."""
    for cell in (cells.gru, cells.lstm, cells.mingru):
        case = drawn(cell, lengths)
        job = job_of(case)
        need(engine, job)
        kernel = kernel_of(job, engine)
        assert isinstance(over(kernel, layout(lengths)), Runs)
        got = together(kernel, case, lengths)
        assert_all_same(got, alone(case, lengths), torch.float64, max(lengths))


@given(lengths=st.lists(st.integers(1, 9), min_size=1, max_size=7), shares=st.integers(1, 4))
def test_layout(lengths, shares):
    """Lengths, runs, reversal and shares follow from the sizes."""
    lengths = sorted(lengths, reverse=True)
    ragged = layout(lengths)
    assert list(ragged.lengths) == lengths
    assert ragged.rows == sum(lengths)
    assert sum(count * size for _, count, size in ragged.runs) == ragged.rows

    padded = torch.arange(9 * len(lengths)).reshape(9, -1)[: max(lengths)]
    rows = packed(padded, lengths)
    backwards = torch.stack(
        [torch.cat((padded[:n, b].flip(0), padded[n:, b])) for b, n in enumerate(lengths)], 1
    )
    assert torch.equal(turned(rows, ragged), packed(backwards, lengths))
    assert torch.equal(turned(turned(rows, ragged), ragged), rows)
    assert torch.equal(turned(padded, None), padded.flip(0))

    numbers = ragged.numbers(shares).tolist()
    offsets, cuts = numbers[: ragged.steps + 1], numbers[ragged.steps + 1 :]
    assert offsets == list(ragged.offsets)
    assert cuts == sorted(cuts)
    assert (cuts[0], cuts[-1], len(cuts)) == (0, len(lengths), shares + 1)


@pytest.mark.parametrize("sizes", [(), (2, 3), (2, 0), (0,)])
def test_sizes_that_are_none(sizes):
    """No steps, sizes that grow, steps that nobody has."""
    with pytest.raises(ShapeError, match="never grow"):
        Ragged(sizes)

"""Every cell with the options that wrap its step, and layers of torch's in any sizes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import elman
from conformance.calling import by_layout, called, compare, leaves_of, wanted
from conformance.judge import Formula, judged
from conformance.rows import F64, FLAGS, H, I, Row, given_of, gradients, named, values_of
from elman import cells
from helpers import forced, need_engine


def form_of(states: Any) -> Any:
    return tuple(states) if len(states) > 1 else states[0]


def stepped(net: Any) -> Formula:
    """The formula of a module of one layer: its own call of one step on engine reference."""

    def step(own: Any, x: Any, states: Any, now: Any) -> Any:
        with forced("reference"):
            out, last = net(x[0][None], form_of([state[None] for state in states]))
        return [out[0]], [end[0] for end in (last if isinstance(last, tuple) else (last,))]

    outputs = [entry.name for entry in net.cell.outputs] or [net.cell.states[0].name]
    names = tuple(state.name for state in net.cell.states)
    of = tuple(names.index(name) if name in names else None for name in outputs)
    return Formula(step, (), names, of)


@pytest.mark.parametrize("cell", [c for c in cells.CORE if len(c.inputs) == 1])
def test_every_cell(cell):
    """Resets, steps that do not count and a tape that is cut, all at once on engine c."""
    need_engine("c")
    torch.manual_seed(0)
    net = elman.Recurrent(cell, 5, 5, engine="c", dtype=F64, plan=elman.PlanOptions(checkpoint=3))
    x = torch.randn(7, 4, 5, dtype=F64, requires_grad=True)
    reset, mask = torch.rand(7, 4) < 0.3, torch.rand(7, 4) < 0.7
    states = [torch.randn(1, 4, *size, dtype=F64) for size in net.runtime.state_sizes]
    if cell is cells.slstm:
        states[2] = states[2].abs() + 1  # a sum of exponentials, and what is divided by
    for state in states:
        state.requires_grad_()
    call: dict[str, Any] = {"reset": reset, "mask": mask, "reset_to": "initial"}
    unread = torch.where(mask[..., None], x, torch.nan)
    got = values_of(net(unread, form_of(states), **call))
    given = [[state[0] for state in states]]
    values, _, ends = judged([stepped(net)], {}, {}, [x], given, state=given, **call)
    want = named(values, [], [end[None] for end in ends[0]])
    leaves = {"x": x, **dict(enumerate(states)), **dict(net.named_parameters())}
    compare(got, want, leaves)


@given(
    of=st.sampled_from(["RNN", "GRU", "LSTM"]),
    T=st.integers(1, 9),
    B=st.integers(1, 4),
    layers=st.integers(1, 2),
    two=st.booleans(),
    steps=st.sampled_from([None, 1, 3, 12]),
    to=st.sampled_from([None, "zeros", "initial"]),
    mask=st.booleans(),
    engine=st.sampled_from(["c", "reference"]),
    seed=st.integers(0, 9),
)
def test_any_sizes(of, T, B, layers, two, steps, to, mask, engine, seed):
    """Whatever T, B, flags and spans are."""
    need_engine(engine)
    call = {} if to is None else {"reset": FLAGS, "reset_to": to}
    row = Row(of, {"num_layers": layers}, call | ({"mask": FLAGS} if mask else {}))
    net = row.make(engine, bidirectional=two, plan=elman.PlanOptions(checkpoint=steps))
    made = given_of(row, net, T, B, seed)
    compare(called(net, row, made), wanted(net, row, made), leaves_of(net, made))


def test_judges_layers_are_torchs():
    """The judge itself, of layers, directions and packed rows, beside torch's own."""
    for of in ("RNN", "GRU", "LSTM"):
        row = Row(of, {"num_layers": 2})
        net = row.make("reference", bidirectional=True)
        theirs = getattr(torch.nn, of)(I, H, 2, bidirectional=True, dtype=F64)
        theirs.load_state_dict(net.state_dict())
        made = given_of(row, net)
        for layout, more in (("batch first", {}), ("packed", {"lengths": [2, 5, 3]})):
            theirs.batch_first = False
            want = by_layout(layout, theirs, row, made)
            own = gradients(want, theirs_leaves := dict(theirs.named_parameters()))
            judged_values = wanted(net, row, made, **more)
            mine = gradients(judged_values, dict(net.named_parameters()))
            for name, value in (want | own).items():
                torch.testing.assert_close((judged_values | mine)[name], value)
            assert theirs_leaves.keys() == dict(net.named_parameters()).keys()

"""``mask=``: steps that do not count leave all states as they are, in every form of a call."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.func import functional_call, grad, jvp, vmap
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import elman
import elman.nn
from elman import cells, ops
from elman.errors import EngineError, InputError, ShapeError
from helpers import assert_close, forced, need_engine
from kinds import deterministic

F64 = torch.float64
ONE_INPUT = [cell for cell in cells.CORE if len(cell.inputs) == 1]
STEPS: dict[str, Callable[..., Any]] = {
    "RNN": torch.rnn_tanh_cell,
    "GRU": torch.gru_cell,
    "LSTM": torch.lstm_cell,
}


def mask_of(T: int, B: int, seed: int = 0, share: float = 0.6) -> torch.Tensor:
    """Random; of the second sample (if there is one) no step counts, of the last all do."""
    mask = torch.rand(T, B, generator=torch.Generator().manual_seed(seed)) < share
    mask[:, 1:2] = False
    mask[:, -1] |= B > 2
    return mask


def unknown(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """x, NaN where a step does not count."""
    return torch.where(mask.unsqueeze(-1), x, torch.nan)


def states_of(net: Any, B: int) -> tuple[torch.Tensor, ...]:
    """Random initial states, with gradients."""
    _, last = net(torch.zeros(1, B, 5, dtype=F64))
    last = last if isinstance(last, tuple) else (last,)
    drawn = [torch.randn_like(state).detach() for state in last]
    if getattr(net, "cell", None) is cells.slstm:
        drawn[2] = drawn[2].abs() + 1  # a sum of exponentials, and what is divided by
    return tuple(state.requires_grad_() for state in drawn)


def one_or_all(states: Any) -> Any:
    return tuple(states) if len(states) > 1 else states[0]


def selected(keep: torch.Tensor, new: torch.Tensor, old: torch.Tensor) -> torch.Tensor:
    """Per sample, in a loop."""
    return torch.where(keep.view(-1, *[1] * (new.dim() - 1)), new, old)


def step_by_step(net: Any, x: torch.Tensor, states: Any, mask: torch.Tensor) -> Any:
    """One layer in one direction: a call of each step on engine reference, selected after it."""
    outputs, states = [], [state[0] for state in states]
    for now, keep in zip(x, mask):
        with forced("reference"):
            out, after = net(now.unsqueeze(0), one_or_all([state[None] for state in states]))
        after = after if isinstance(after, tuple) else (after,)
        made = [selected(keep, new[0], old) for new, old in zip(after, states)]
        is_state = [k for k, new in enumerate(after) if torch.equal(new[0], out[0])]
        otherwise = made[is_state[0]] if is_state else torch.zeros_like(out[0])
        outputs.append(selected(keep, out[0], otherwise))
        states = made
    return torch.stack(outputs), one_or_all([state[None] for state in states])


def of_torchs_cells(net: Any, x: torch.Tensor, states: Any, mask: torch.Tensor) -> Any:
    """RNN, GRU or LSTM of several layers and directions, a step of torch's at a time."""
    step, directions, names = STEPS[type(net).__name__], 1 + net.bidirectional, net.parts.names
    ends: list[list[torch.Tensor]] = []
    for layer in range(net.num_layers):
        made = []
        for direction in range(directions):
            index = layer * directions + direction
            weights = [getattr(net, name) for name in names[index]]
            now = [state[index] for state in states]
            outputs: list[Any] = [None] * len(x)
            for t in range(len(x))[:: -1 if direction else 1]:
                after = step(x[t], one_or_all(now), *weights)
                after = after if isinstance(after, tuple) else (after,)
                now = [selected(mask[t], new, old) for new, old in zip(after, now)]
                outputs[t] = now[0]
            made.append(torch.stack(outputs))
            ends.append(now)
        x = torch.cat(made, -1)
    return x, one_or_all([torch.stack(parts) for parts in zip(*ends)])


def results(net: Any, out: Any, last: Any, leaves: list[torch.Tensor]) -> dict[str, Any]:
    """Values and gradients of a loss of all of them, by name."""
    last = last if isinstance(last, (tuple, list)) else (last,)
    loss = out.sin().sum() + sum((end * (k + 2)).cos().sum() for k, end in enumerate(last))
    own = dict(net.named_parameters())
    every = [*leaves, *own.values()]
    grads = torch.autograd.grad(loss, every, allow_unused=True)
    names = [*(f"leaf {k}" for k in range(len(leaves))), *own]
    zeros = [torch.zeros_like(v) if g is None else g for g, v in zip(grads, every)]
    return {"out": out, **{f"last {k}": v for k, v in enumerate(last)}, **dict(zip(names, zeros))}


def agree(net: Any, loop: Any = step_by_step, T: int = 6, B: int = 4, seed: int = 0) -> None:
    """A call with a mask, and NaN where it is not set, against a loop that has zeros there."""
    mask, source = mask_of(T, B, seed), torch.Generator().manual_seed(1)
    x = torch.randn(T, B, 5, dtype=F64, generator=source).requires_grad_()
    states = states_of(net, B)
    got = net(unknown(x, mask), one_or_all(states), mask=mask)
    want = loop(net, torch.where(mask.unsqueeze(-1), x, 0.0), states, mask)
    mine, theirs = (results(net, *pair, [x, *states]) for pair in (got, want))
    for name, value in theirs.items():
        assert_close(mine[name], value, msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.parametrize("cell", ONE_INPUT, ids=lambda c: c.name)
def test_every_cell(cell):
    """Output, last states and every gradient, also of the initial states."""
    need_engine("c")
    agree(elman.Recurrent(cell, 5, 5, engine="c", dtype=F64))


@pytest.mark.parametrize(
    ("engine", "cell"),
    [
        ("reference", cells.lstm),
        ("deer", cells.gru),
        ("deer", cells.mingru),  # linear in its state with a mask, too
        ("scan-backward", cells.mgu),
        ("auto", cells.gru),
    ],
    ids=str,
)
def test_every_engine(engine, cell):
    """The selection is part of the step, so that every engine has it."""
    agree(elman.Recurrent(cell, 5, 5, engine=engine, dtype=F64))


STACKED = [{"num_layers": 3}, {"bidirectional": True}, {"num_layers": 2, "bidirectional": True}]


@pytest.mark.parametrize("options", STACKED, ids=str)
@pytest.mark.parametrize("kind", STEPS)
def test_stacks_and_directions(kind, options):
    """All layers and both directions skip the same steps."""
    need_engine("c")
    agree(getattr(elman, kind)(5, 5, engine="c", dtype=F64, **options), of_torchs_cells)


@given(T=st.integers(1, 6), B=st.integers(1, 4), seed=st.integers(0, 9), two=st.booleans())
def test_any_mask(T, B, seed, two):
    """No step, all steps, one step, one sample."""
    net = elman.GRU(5, 3, bidirectional=two, engine="reference", dtype=F64)
    agree(net, of_torchs_cells, T, B, seed)


@pytest.mark.parametrize("kind", ["GRU", "LSTM", "Recurrent"])
@pytest.mark.parametrize("options", [{}, {"num_layers": 2, "bidirectional": True}], ids=str)
def test_layouts(kind, options):
    """Batch first, unbatched, packed and padded calls give the rows of the plain one."""
    make = getattr(elman, kind)
    net = make(*([cells.gru] * (kind == "Recurrent")), 5, 5, dtype=F64, **options)
    T, lengths = 7, [7, 2, 5, 7]
    x, mask, states = torch.randn(T, 4, 5, dtype=F64), mask_of(T, 4), one_or_all(states_of(net, 4))
    want, last = net(x, states, mask=mask)
    own = net(x[:, :1], mask=mask[:, :1])[0][:, 0]
    assert_close(net(x[:, 0], mask=mask[:, 0].float())[0], own)
    short = mask & (torch.arange(T).unsqueeze(1) < torch.tensor(lengths))
    zeros, ends = net(x, states, mask=short, masked_output="zeros")
    padded, some = net(x, states, mask=mask, lengths=lengths, masked_output="zeros")
    same([padded, *flat(some)], [zeros, *flat(ends)])

    def pack(value: torch.Tensor) -> Any:
        return pack_padded_sequence(value, lengths, enforce_sorted=False)

    rows, ends = net(pack(x), states, mask=pack(mask.int()), masked_output="zeros")
    same([pad_packed_sequence(rows)[0], *flat(ends)], [padded, *flat(some)])
    net.batch_first = True
    out, ends = net(x.transpose(0, 1), states, mask=mask.T)
    same([out.transpose(0, 1), *flat(ends)], [want, *flat(last)])


def flat(states: Any) -> tuple[torch.Tensor, ...]:
    return states if isinstance(states, tuple) else (states,)


def same(got: Any, want: Any) -> None:
    for a, b in zip(got, want, strict=True):
        assert_close(a, b)


@pytest.mark.parametrize("engine", ["c", "reference"])
def test_all_or_nothing(engine):
    """All steps: bit for bit the call without a mask. None: what was given, and nothing learned."""
    need_engine(engine)
    net = elman.LSTM(5, 4, 2, engine=engine)
    x = torch.randn(6, 3, 5, requires_grad=True)
    state = tuple(torch.randn(2, 3, 4, requires_grad=True) for _ in range(2))
    found = []
    with deterministic():  # else layers run at once where that was measured as faster
        for call in ({}, {"mask": torch.ones(6, 3)}):
            out, last = net(x, state, **call)
            loss = out.sin().sum() + last[1].sum()
            found.append([out, *last, *torch.autograd.grad(loss, [x, *state, *net.parameters()])])
    for plain, masked in zip(*found, strict=True):
        assert torch.equal(plain, masked)

    nothing = torch.full_like(x, torch.inf).requires_grad_()
    out, last = net(nothing, state, mask=torch.zeros(6, 3))
    assert torch.equal(out, state[0][1].expand(6, 3, 4))
    assert all(torch.equal(a, b) for a, b in zip(last, state))
    (out.sum() + last[1].sum()).backward()
    assert torch.equal(state[0].grad, torch.tensor([0.0, 6.0]).view(2, 1, 1).expand(2, 3, 4))
    assert torch.equal(state[1].grad, torch.ones(2, 3, 4))
    assert not any(value.grad.any() for value in (nothing, *net.parameters()))


@elman.cell(input="x[I]", state="h[H]", weights="W[H, I], R[H, H]", output="y[H], k[H]")
def reading(x, h, W, R):
    """Two outputs, one of which is a state."""
    h = ops.tanh(W @ x + R @ h)
    return ops.exp(h), h, h


def test_outputs():
    """An output that is a state is held, another is zero; with "zeros" both are, states never."""
    net = elman.Recurrent(reading, 5, 4, dtype=F64)
    x, mask = torch.randn(6, 3, 5, dtype=F64), mask_of(6, 3)
    (y, h), states, last = net(x, mask=mask, outputs="states")
    assert torch.equal(h, states)
    assert torch.equal(states[-1:], last)
    assert_close(y, h.exp() * mask.unsqueeze(-1))
    (y0, h0), states0, last0 = net(x, mask=mask, outputs="states", masked_output="zeros")
    for held, zeroed in ((y, y0), (states, states0), (last, last0)):
        assert torch.equal(held, zeroed)
    assert torch.equal(h0, h * mask.unsqueeze(-1))
    assert torch.equal(net(x, mask=mask, masked_output="held")[0][1], h)


def test_steps_of_a_stream():
    """One step at a time, and in chunks without gradients, is the whole sequence."""
    for net in (elman.LSTM(5, 5, 2, dtype=F64), elman.Recurrent(reading, 5, 5, dtype=F64)):
        x, mask = torch.randn(6, 3, 5, dtype=F64), mask_of(6, 3)
        want, last = net(unknown(x, mask), mask=mask)
        state, outputs = None, []
        for now, keep in zip(unknown(x, mask), mask):
            out, state = net.step(now, state, mask=keep)
            outputs.append(flat(out)[0])
        same([torch.stack(outputs), *flat(state)], [flat(want)[0], *flat(last)])
        stream, x = elman.Stream(net), unknown(x, mask)
        chunks = [flat(stream(x[s], mask=mask[s]))[0] for s in (slice(0, 4), slice(4, 6))]
        assert_close(torch.cat(chunks), flat(want)[0])


def test_resets():
    """A reset before a step that does not count is done, and the state stays so."""
    net = elman.GRU(5, 4, 2, dtype=F64)
    x, mask, reset = torch.randn(7, 4, 5, dtype=F64), mask_of(7, 4), mask_of(7, 4, 3, 0.3)
    for to in ("zeros", "initial"):
        state = torch.randn(2, 4, 4, dtype=F64)
        out, last = net(x, state, mask=mask, reset=reset, reset_to=to)
        now, outputs = state, []
        for t in range(7):
            begun = state if to == "initial" else torch.zeros_like(state)
            now = torch.where(reset[t].view(1, -1, 1), begun, now)
            _, after = net(x[t : t + 1], now)
            now = torch.where(mask[t].view(1, -1, 1), after, now)
            outputs.append(now[1])
        same([out, last], [torch.stack(outputs), now])


OPTIONS: dict[str, dict[str, Any]] = {
    "drawn": {"zoneout": 0.3, "recurrent_dropout": 0.2, "dropout": 0.3},
    "learned": {"learn_initial": True, "residual": True},
    "checkpoint": {"checkpoint": 3},
    "heads": {"heads": 2, "tape": "recompute"},
    "clipped": {"clip_gradient": 0.05},
}


@pytest.mark.parametrize("name", OPTIONS)
def test_beside_other_options(name):
    """With each option of a module engine c gives what engine reference gives."""
    need_engine("c")
    net = elman.GRU(4, 4, 2, dtype=F64, **OPTIONS[name])
    x, mask = torch.randn(7, 3, 4, dtype=F64, requires_grad=True), mask_of(7, 3)
    found = []
    for engine in ("c", "reference"):
        torch.manual_seed(0)
        with forced(engine):
            found.append(results(net, *net(x, mask=mask, reset=~mask), [x]))
    for what, value in found[0].items():
        assert_close(value, found[1][what])


def test_static_and_several_inputs():
    """Every input of a step is left unread; one of a whole sequence is read."""
    for cell, inputs, call in (
        (cells.ealstm, (5,), {"static": torch.randn(3, 2, dtype=F64)}),
        (cells.t_lstm, (5, ()), {}),
    ):
        sizes = {"S": 2} if call else {}
        net = elman.Recurrent(cell, 5, 4, dtype=F64, **sizes)
        mask = mask_of(6, 3)
        shapes = [(6, 3, n) if n else (6, 3) for n in inputs]
        xs = [torch.rand(shape, dtype=F64) for shape in shapes]
        nan = [torch.where(mask.view(6, 3, *[1] * (x.dim() - 2)), x, torch.nan) for x in xs]
        out, last = net(one_or_all(nan), mask=mask, **call)
        sample = mask[:, 0]
        own = {name: value[:1] for name, value in call.items()}
        alone, end = net(one_or_all([x[sample, :1] for x in xs]), **own)
        assert_close(out[sample, 0], alone[:, 0])
        same([value[:, 0] for value in last], [value[:, 0] for value in end])
        out.sum().backward()
        assert all(p.grad.isfinite().all() for p in net.parameters())


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own, in functional_call
def test_transforms():
    """Gradients by sample, forward mode, and second derivatives, as on engine reference."""
    need_engine("c")
    net = elman.Recurrent(cells.gru, 3, 4, engine="c", dtype=F64)
    x, mask = torch.randn(5, 3, 3, dtype=F64), mask_of(5, 3)
    parameters, move = dict(net.named_parameters()), torch.randn_like(x)

    def loss(own: Any, x: Any, mask: Any) -> Any:
        out, h = functional_call(net, own, (x,), {"mask": mask, "masked_output": "zeros"})
        return out.sin().sum() + h.cos().sum()

    def every() -> list[Any]:
        by_sample = vmap(grad(loss), (None, 1, 1), 0)
        sample = by_sample(parameters, x.unsqueeze(2), mask.unsqueeze(2))
        moved = jvp(lambda x: loss(parameters, x, mask), (x,), (move,))
        twice = grad(lambda x: grad(loss, 1)(parameters, x, mask).square().sum())(x)
        return [*sample.values(), *moved, twice]

    got = every()
    with forced("reference"):
        same(got, every())
    hidden = vmap(lambda mask: net(x, mask=mask)[0])(torch.stack([mask, ~mask]))
    same(hidden, [net(x, mask=own)[0] for own in (mask, ~mask)])


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_compiled():
    """The compiled call gives the eager one's bits, without a break of the graph."""
    torch._dynamo.reset()
    net = elman.LSTM(3, 4, num_layers=2, bidirectional=True)
    compiled = torch.compile(net, fullgraph=True, backend="aot_eager")
    x, mask = torch.randn(5, 3, 3), mask_of(5, 3)
    x = unknown(x, mask).requires_grad_()
    how: dict[str, Any] = {"lengths": torch.tensor([5, 2, 4]), "mask": mask}
    found = []
    for run in (net, compiled):
        for more in ({}, {"reset": mask_of(5, 3, 4, 0.3)}):
            out, last = run(x, masked_output="zeros", **how, **more)
            grads = torch.autograd.grad(out.sin().sum() + last[1].sum(), [x, *net.parameters()])
            found.append([out, *last, *grads])
    for k in (0, 1):
        for a, b in zip(found[k], found[k + 2], strict=True):
            assert torch.equal(a, b)
    torch._dynamo.reset()


def test_records():
    """What ran is recorded under the names of all options in use, and can be pinned."""
    need_engine("c")
    x, mask, reset = torch.randn(6, 2, 3), mask_of(6, 2), mask_of(6, 2, 1)
    h = torch.zeros(1, 2, 4, requires_grad=True)
    net, other = elman.GRU(3, 4, engine="c"), elman.GRU(3, 4, engine="c")
    net(x, mask=mask)
    net(x, h, mask=mask, reset=reset, reset_to="initial")
    record = json.loads(json.dumps(elman.nn.choices(net)))
    assert [text.count("+") for text in record["l0"]] == [1, 2]
    assert elman.nn.pin(other, record) == []
    other(x, mask=mask)
    other(x, h, mask=mask, reset=reset, reset_to="initial")
    assert {choice.why for choice in other.runners["l0"].choices.values()} == {"pinned"}
    assert "mask" in str(elman.explain(net, x, mask=mask, measure=False))


BAD: dict[str, tuple[Callable[[], dict[str, Any]], type[Exception], str]] = {
    "no tensor": (
        lambda: {"mask": [True]},
        InputError,
        r"mask must be a tensor, one flag per step, got list\n  hint  torch.as_tensor\(mask\)$",
    ),
    "other sizes": (
        lambda: {"mask": torch.zeros(3, 4)},
        ShapeError,
        r"mask must be \[T, B\] = \[4, 3\], got \[3, 4\]\n  hint  mask.T$",
    ),
    "a column": (
        lambda: {"mask": torch.zeros(4, 3, 1)},
        ShapeError,
        r"got \[4, 3, 1\]\n  hint  mask.squeeze\(-1\)$",
    ),
    "elsewhere": (
        lambda: {"mask": torch.zeros(4, 3, device="meta")},
        InputError,
        r"mask is on meta, but x is on cpu\n  hint  mask.to\('cpu'\)$",
    ),
    "complex": (
        lambda: {"mask": torch.zeros(4, 3, dtype=torch.complex64)},
        InputError,
        "mask must be bool or real numbers, got torch.complex64",
    ),
    "sparse": (lambda: {"mask": torch.zeros(4, 3).to_sparse()}, InputError, "mask is torch.sparse"),
    "no mask": (
        lambda: {"masked_output": "zeros"},
        InputError,
        "masked_output='zeros' has no effect without mask=",
    ),
    "no such output": (
        lambda: {"mask": torch.zeros(4, 3), "masked_output": "last"},
        InputError,
        "masked_output must be 'held' or 'zeros', got 'last'",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_mistakes(name):
    """Said with what it must be, by every module."""
    make, error, text = BAD[name]
    for net in (elman.GRU(5, 2), elman.Recurrent(cells.mgu, 5, 2)):
        with pytest.raises(error, match=text):
            net(torch.zeros(4, 3, 5), **make())


def test_mistakes_elsewhere():
    """Of packed rows, of a step, of a constructor, and where torch's own layer would run."""
    net = elman.GRU(5, 2)
    rows = pack_padded_sequence(torch.zeros(4, 3, 5), [4, 2, 1])
    with pytest.raises(InputError, match="mask is packed as x is"):
        net(rows, mask=torch.zeros(4, 3))
    with pytest.raises(ShapeError, match=r"mask must be \[3\], one flag per sample, got \[4\]"):
        net.step(torch.zeros(3, 5), mask=torch.zeros(4))
    with pytest.raises(InputError, match="mask is an argument of each call"):
        elman.Recurrent(cells.mgu, 5, 2, mask=torch.zeros(4, 3))
    with pytest.raises(EngineError, match="cannot run this GRU with mask: "):
        elman.GRU(5, 2, engine="aten")(torch.zeros(4, 3, 5), mask=torch.zeros(4, 3))

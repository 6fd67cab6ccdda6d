"""``reset=``: every call with resets gives what its episodes give one by one, in every form."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.func import functional_call, grad, jvp, vmap
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import elman
import elman.nn
from elman import cells
from elman.errors import EngineError, InputError, ShapeError
from helpers import assert_close, forced, need_engine

KINDS = ("RNN", "GRU", "LSTM")
TO = ("zeros", "initial")
F64 = torch.float64


def mask_of(T: int, B: int, seed: int = 0, share: float = 0.3) -> torch.Tensor:
    """Random resets; the second sample (if there is one) has none, the last one has all."""
    mask = torch.rand(T, B, generator=torch.Generator().manual_seed(seed)) < share
    mask[:, 1:2] = False
    mask[:, -1] = B > 2
    return mask


def states_of(net: Any, B: int, seed: int = 0) -> tuple[torch.Tensor, ...]:
    """Random initial states [layers · directions, B, n], with gradients."""
    source = torch.Generator().manual_seed(seed)
    _, last = net(torch.zeros(2, B, 5, dtype=F64))
    last = last if isinstance(last, tuple) else (last,)
    drawn = [torch.randn(s.shape, generator=source, dtype=F64) for s in last]
    if getattr(net, "cell", None) is cells.slstm:
        drawn[2] = drawn[2].abs() + 1  # a sum of exponentials, and what is divided by
    return tuple(state.requires_grad_() for state in drawn)


def packed_up(states: tuple[torch.Tensor, ...]) -> Any:
    return states if len(states) > 1 else states[0]


def in_episodes(
    net: Any, x: torch.Tensor, states: tuple[torch.Tensor, ...], mask: torch.Tensor, to: str
) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Each episode of each sample in a call of its own on engine reference, put together."""
    T, B = mask.shape
    reverse = [bool(net.bidirectional and k % 2) for k in range(states[0].shape[0])]
    outputs, ends = [], []
    for b in range(B):
        cuts = [0, *(t for t in range(1, T) if mask[t, b]), T]
        min_chunks, lasts = [], []
        for first, end in pairwise(cuts):
            begin = []
            for state in states:
                rows = []
                for k, back in enumerate(reverse):
                    own = state[k, b]
                    goes_on = first == 0 and not mask[0, b] if not back else end == T
                    rows.append(own if goes_on or to == "initial" else torch.zeros_like(own))
                begin.append(torch.stack(rows).unsqueeze(1))
            with forced("reference"):
                out, last = net(x[first:end, b : b + 1], packed_up(tuple(begin)))
            min_chunks.append(out)
            lasts.append(last if isinstance(last, tuple) else (last,))
        outputs.append(torch.cat(min_chunks))
        ends.append(
            [
                torch.stack([lasts[0 if back else -1][s][k] for k, back in enumerate(reverse)])
                for s in range(len(states))
            ]
        )
    return torch.cat(outputs, 1), [torch.cat(parts, 1) for parts in zip(*ends)]


def results(net: Any, out: Any, last: Any, leaves: list[torch.Tensor]) -> dict[str, Any]:
    """Values and gradients of a loss of all of them, by name."""
    last = last if isinstance(last, (tuple, list)) else (last,)
    loss = out.sin().sum() + sum((end * (k + 2)).cos().sum() for k, end in enumerate(last))
    own = [*leaves, *net.parameters()]
    grads = torch.autograd.grad(loss, own, allow_unused=True)
    names = [*(f"leaf {k}" for k in range(len(leaves))), *dict(net.named_parameters())]
    zeros = [torch.zeros_like(v) if g is None else g for g, v in zip(grads, own)]
    return {"out": out, **{f"last {k}": v for k, v in enumerate(last)}, **dict(zip(names, zeros))}


def agree(net: Any, to: str, T: int = 7, B: int = 4, **call: Any) -> None:
    """One call with resets against its episodes."""
    mask = mask_of(T, B)
    x = torch.randn(T, B, 5, dtype=F64, generator=torch.Generator().manual_seed(1))
    x.requires_grad_()
    states = states_of(net, B)
    got = net(x, packed_up(states), reset=mask, reset_to=to, **call)
    want = in_episodes(net, x, states, mask, to)
    mine, theirs = (results(net, *pair, [x, *states]) for pair in (got, want))
    for name, value in theirs.items():
        assert_close(mine[name], value, msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.parametrize("to", TO)
@pytest.mark.parametrize(
    "cell", [c for c in cells.CORE if len(c.inputs) == 1], ids=lambda c: c.name
)
def test_every_cell(cell, to):
    """Output, last states and every gradient, also of the initial states."""
    need_engine("c")
    agree(elman.Recurrent(cell, 5, 5, engine="c", dtype=F64), to)


@pytest.mark.parametrize("to", TO)
@pytest.mark.parametrize("engine", ["reference", "deer", "scan-backward", "auto"])
@pytest.mark.parametrize("cell", [cells.gru, cells.mingru, cells.lstm], ids=lambda c: c.name)
def test_every_engine(cell, engine, to):
    """A reset is part of the step, so that every engine has it."""
    agree(elman.Recurrent(cell, 5, 5, engine=engine, dtype=F64), to)


@pytest.mark.parametrize("to", TO)
@pytest.mark.parametrize(
    "options",
    [{"num_layers": 3}, {"bidirectional": True}, {"num_layers": 2, "bidirectional": True}],
    ids=str,
)
@pytest.mark.parametrize("kind", KINDS)
def test_stacks_and_directions(kind, options, to):
    """Layers reset together; both directions begin anew at the same boundaries."""
    need_engine("c")
    agree(getattr(elman, kind)(5, 5, engine="c", dtype=F64, **options), to)


@given(T=st.integers(1, 9), B=st.integers(1, 4), share=st.floats(0, 1), seed=st.integers(0, 9))
def test_any_mask(T, B, share, seed):
    """No reset, all reset, one step, one sample."""
    net = elman.Recurrent(cells.gru, 5, 5, dtype=F64, bidirectional=True)
    mask = torch.rand(T, B, generator=torch.Generator().manual_seed(seed)) < share
    x = torch.randn(T, B, 5, dtype=F64)
    states = states_of(net, B)
    for to in TO:
        out, last = net(x, packed_up(states), reset=mask.int(), reset_to=to)
        want, ends = in_episodes(net, x, states, mask, to)
        assert_close(out, want)
        assert_close(last, ends[0])


def same(got: Any, want: Any) -> None:
    """States, one or several."""
    for a, b in zip(*(s if isinstance(s, tuple) else (s,) for s in (got, want)), strict=True):
        assert_close(a, b)


@pytest.mark.parametrize("to", TO)
@pytest.mark.parametrize("kind", ["GRU", "LSTM", "Recurrent"])
@pytest.mark.parametrize("options", [{}, {"num_layers": 2, "bidirectional": True}], ids=str)
def test_layouts(kind, options, to):
    """Batch first, unbatched, packed and padded calls give the rows of the plain one."""
    torch.manual_seed(0)
    net = (
        elman.Recurrent(cells.gru, 5, 5, dtype=F64, **options)
        if kind == "Recurrent"
        else getattr(elman, kind)(5, 5, dtype=F64, **options)
    )
    T, lengths = 7, [7, 2, 5, 7]
    x, mask, states = torch.randn(T, 4, 5, dtype=F64), mask_of(T, 4), states_of(net, 4)
    how = {"reset_to": to}
    want, last = net(x, packed_up(states), reset=mask, **how)

    one = packed_up(tuple(s[:, 0] for s in states))
    assert_close(net(x[:, 0], one, reset=mask[:, 0], **how)[0], want[:, 0])

    net.batch_first = True
    out, ends = net(x.transpose(0, 1), packed_up(states), reset=mask.T, **how)
    assert_close(out, want.transpose(0, 1))
    same(ends, last)
    padded, some = net(x.transpose(0, 1), packed_up(states), reset=mask.T, lengths=lengths, **how)
    net.batch_first = False

    each = [
        net(
            x[:n, b : b + 1],
            packed_up(tuple(s[:, b : b + 1] for s in states)),
            reset=mask[:n, b : b + 1],
            **how,
        )
        for b, n in enumerate(lengths)
    ]
    for b, (out, _) in enumerate(each):
        assert_close(padded[b, : lengths[b]], out[:, 0])
        assert not padded[b, lengths[b] :].count_nonzero()

    def pack(value: torch.Tensor) -> Any:
        return pack_padded_sequence(value, lengths, enforce_sorted=False)

    rows, ends = net(pack(x), packed_up(states), reset=pack(mask.double()), **how)
    assert_close(pad_packed_sequence(rows)[0], padded.transpose(0, 1))
    same(ends, some)


def test_steps_of_a_stream():
    """One step at a time, with resets, is the whole sequence."""
    for net in (elman.LSTM(5, 5, 2, dtype=F64), elman.Recurrent(cells.lem, 5, 5, dtype=F64)):
        x, mask = torch.randn(6, 3, 5, dtype=F64), mask_of(6, 3)
        want, last = net(x, reset=mask)
        state, outputs = None, []
        for now, flags in zip(x, mask):
            out, state = net.step(now, state, reset=flags)
            outputs.append(out)
        assert_close(torch.stack(outputs), want)
        for a, b in zip(state, last):
            assert_close(a, b)


@pytest.mark.parametrize("to", TO)
def test_nothing_leaks(to):
    """NaN and infinities of one episode never reach the next, nor its gradients."""
    need_engine("c")
    net = elman.GRU(5, 5, engine="c", dtype=F64)
    x = torch.randn(6, 2, 5, dtype=F64)
    x[1, 0] = float("nan")
    x.requires_grad_()
    mask = torch.zeros(6, 2)
    mask[3] = 1
    out, _ = net(x, reset=mask, reset_to=to)
    assert out[1:3, 0].isnan().all()
    assert out[3:].isfinite().all()
    out[3:].sum().backward()
    assert x.grad[3:].isfinite().all()
    assert not x.grad[:3, 1].count_nonzero()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own, in functional_call
@pytest.mark.parametrize("to", TO)
def test_transforms(to):
    """Gradients by sample, forward mode, and second derivatives, as on engine reference."""
    need_engine("c")
    net = elman.Recurrent(cells.gru, 3, 4, engine="c", dtype=F64)
    x, mask = torch.randn(5, 3, 3, dtype=F64), mask_of(5, 3)
    h0, parameters = torch.randn(1, 3, 4, dtype=F64), dict(net.named_parameters())
    move = torch.randn_like(x)

    def loss(own: Any, x: Any, mask: Any, h0: Any) -> Any:
        out, h = functional_call(net, own, (x, h0), {"reset": mask, "reset_to": to})
        return out.sin().sum() + h.cos().sum()

    def every() -> list[Any]:
        sample = vmap(grad(loss), (None, 1, 1, 1), 0)(
            parameters, x.unsqueeze(2), mask.unsqueeze(2), h0.unsqueeze(2)
        )
        moved = jvp(lambda x: loss(parameters, x, mask, h0), (x,), (move,))
        twice = grad(lambda x: grad(loss, 1)(parameters, x, mask, h0).square().sum())(x)
        return [*sample.values(), *moved, twice]

    got = every()
    with forced("reference"):
        want = every()
    for a, b in zip(got, want):
        assert_close(a, b)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("to", TO)
@pytest.mark.parametrize("lengths", [None, [5, 2, 4]])
@pytest.mark.parametrize("two", [False, True])
def test_compiled(to, lengths, two):
    """The compiled call gives the eager one's bits, without a break of the graph."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    net = elman.LSTM(3, 4, num_layers=2, bidirectional=two)
    compiled = torch.compile(net, fullgraph=True, backend="aot_eager")
    x, mask = torch.randn(5, 3, 3, requires_grad=True), mask_of(5, 3)
    state = tuple(torch.randn(2 * (1 + two), 3, 4) for _ in range(2))
    counts = None if lengths is None else torch.tensor(lengths)
    found = []
    for run in (net, compiled):
        out, last = run(x, state, lengths=counts, reset=mask, reset_to=to)
        grads = torch.autograd.grad(out.sin().sum() + last[1].sum(), [x, *net.parameters()])
        found.append([out, *last, *grads])
    for a, b in zip(*found):
        assert torch.equal(a, b)
    torch._dynamo.reset()


def test_records():
    """What ran is recorded under the option's name, and can be pinned."""
    need_engine("c")
    x, mask = torch.randn(6, 2, 3), mask_of(6, 2)
    net = elman.GRU(3, 4, engine="c")
    net(x)
    net(x, reset=mask)
    net(x, torch.zeros(1, 2, 4), reset=mask, reset_to="initial")
    record = json.loads(json.dumps(elman.nn.choices(net)))
    shown = [text.split()[3] for text in record["l0"]]
    assert shown == ["T<=8", "+reset", "+reset_to_initial"]
    other = elman.GRU(3, 4, engine="c")
    assert elman.nn.pin(other, record) == []
    other(x, reset=mask)
    assert {choice.why for choice in other.runners["l0"].choices.values()} == {"pinned"}


BAD = {
    "no tensor": (
        lambda: [True],
        InputError,
        "reset must be a tensor, one flag per step, got list",
    ),
    "other sizes": (
        lambda: torch.zeros(3, 4),
        ShapeError,
        r"reset must be \[T, B\] = \[4, 3\], got \[3, 4\]\n  hint  reset.T$",
    ),
    "a column": (
        lambda: torch.zeros(4, 3, 1),
        ShapeError,
        r"got \[4, 3, 1\]\n  hint  reset.squeeze\(-1\)$",
    ),
    "an array": (
        lambda: torch.zeros(4, 3).numpy(),
        InputError,
        r"got ndarray\n  hint  torch.as_tensor\(reset\)",
    ),
    "a packed one": (
        lambda: pack_padded_sequence(torch.zeros(4, 3), [4, 4, 4]),
        InputError,
        "reset must be a tensor",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_masks(name):
    """Said with what it must be, by every module."""
    make, error, text = BAD[name]
    for net in (elman.GRU(5, 2), elman.Recurrent(cells.mgu, 5, 2)):
        with pytest.raises(error, match=text):
            net(torch.zeros(4, 3, 5), reset=make())
        rows = pack_padded_sequence(torch.zeros(4, 3, 5), [4, 2, 1])
        with pytest.raises(InputError, match="packed as x is"):
            net(rows, reset=torch.zeros(4, 3))
        with pytest.raises(ShapeError, match="other lengths"):
            net(rows, reset=pack_padded_sequence(torch.zeros(4, 3), [4, 3, 1]))
        with pytest.raises(InputError, match="'zeros' or 'initial'"):
            net(torch.zeros(4, 3, 5), reset=torch.zeros(4, 3), reset_to="nothing")
    for flags in ([True, False, True], 1):
        with pytest.raises(InputError, match="reset must be a tensor, one flag per sample"):
            elman.GRU(5, 2).step(torch.zeros(3, 5), reset=flags)
    for net in (elman.GRU(5, 2), elman.GRU(5, 2, batch_first=True)):
        with pytest.raises(
            ShapeError, match=r"reset must be \[3\], one flag per sample, got \[4\]"
        ):
            net.step(torch.zeros(3, 5), reset=torch.zeros(4))
        with pytest.raises(ShapeError, match=r"reset must be \[\], one flag per sample, got \[1\]"):
            net.step(torch.zeros(5), reset=torch.zeros(1))


def test_torchs_own_layer_has_none():
    """Where torch's layer would run, a reset is refused, never forgotten."""
    x, mask = torch.zeros(4, 3, 5), torch.zeros(4, 3)
    with pytest.raises(EngineError, match="cannot run this GRU with reset: "):
        elman.GRU(5, 2, engine="aten")(x, reset=mask)


@pytest.mark.parametrize(
    "options", [{}, {"heads": 2}, {"residual": True, "num_layers": 2}], ids=str
)
def test_autocast(options):
    """Where no engine has autocast's type, what torch cannot do is computed in the weights'."""
    net = elman.GRU(4, 4, **options)
    x, mask = torch.randn(5, 3, 4), mask_of(5, 3)
    want, last = net(x, reset=mask)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out, h = net(x, reset=mask)
        if options:
            assert net(x)[0].dtype == torch.bfloat16
    assert out.dtype == h.dtype == torch.bfloat16
    torch.testing.assert_close(out, want.bfloat16())
    torch.testing.assert_close(h, last.bfloat16())

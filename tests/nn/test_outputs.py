"""Several outputs of a cell, and the states behind every step, against loops written by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, jvp, vmap
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence

import elman
import elman.nn
from elman import cells
from elman.errors import EngineError, InputError
from elman.ops import mean, tanh
from helpers import assert_close, forced

F64 = torch.float64
I, H = 5, 7  # P = I: layers can be stacked, and residual
TORCHS_OWN = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::FutureWarning"
)  # of jvp and of compiling


@elman.cell(input="x[I]", state="h[H], c[H]", output="y[P], e", weights="W[H, I], R[H, H], C[P, H]")
def two(x, h, c, W, R, C):
    """A vector and a scalar come out."""
    c = 0.5 * c + W @ x
    h = tanh(c + R @ h)
    return C @ h, mean(c * h), h, c


def made(**options: Any) -> elman.Recurrent:
    torch.manual_seed(0)
    return elman.Recurrent(two, I, H, P=I, dtype=F64, **options)


def one_layer(weights: list[Tensor], x: Tensor, h: Tensor, c: Tensor, mask: Tensor) -> Any:
    """``two`` step by step: y, e, h, c of all steps, and h, c behind the last one."""
    W, R, C = weights
    rows: list[tuple[Tensor, ...]] = []
    for row, begins in zip(x, mask):
        h, c = (state.masked_fill(begins.unsqueeze(-1), 0) for state in (h, c))
        c = 0.5 * c + row @ W.T
        h = torch.tanh(c + h @ R.T)
        rows.append((h @ C.T, (c * h).mean(-1), h, c))
    return [torch.stack(values) for values in zip(*rows)], (h, c)


def by_hand(net: Any, x: Tensor, states: Any = None, mask: Tensor | None = None) -> dict[str, Any]:
    """What a module of ``two`` gives for x [T, B, I], every layer and direction by hand."""
    T, B, _ = x.shape
    two_ways = bool(net.bidirectional)
    mask = torch.zeros(T, B, dtype=torch.bool) if mask is None else mask
    lead = net.num_layers * (1 + two_ways)
    h0, c0 = x.new_zeros(2, lead, B, H) if states is None else states
    ends, out, values = [], x, []
    for layer in range(net.num_layers):
        ways = []
        for back in range(1 + two_ways):
            k = layer * (1 + two_ways) + back
            suffix = f"l{layer}{'_reverse' * back}"
            own = [getattr(net, f"{name}_{suffix}") for name in "WRC"]
            order = (lambda v: v.flip(0)) if back else (lambda v: v)
            found, end = one_layer(own, order(out), h0[k], c0[k], order(mask))
            ways.append([order(v) for v in found])
            ends.append(end)
        values = ways[0]
        if two_ways:
            wide = [[v if v.dim() > 2 else v.unsqueeze(-1) for v in way] for way in ways]
            values = [torch.cat(pair, -1) for pair in zip(*wide)]
        if net.residual and layer:
            values[0] = values[0] + out
        out = values[0]
    y, e, h, c = values
    last = [torch.stack(parts) for parts in zip(*ends)]
    return {"y": y, "e": e, "h": h, "c": c, "last h": last[0], "last c": last[1]}


def called(net: Any, *given: Any, **call: Any) -> dict[str, Any]:
    """The same by a call that asks for the states."""
    (y, e), (h, c), (last_h, last_c) = net(*given, outputs="states", **call)
    return {"y": y, "e": e, "h": h, "c": c, "last h": last_h, "last c": last_c}


def gradients(found: dict[str, Tensor], leaves: list[Tensor]) -> list[Tensor]:
    loss = sum((value * (k + 1)).sin().sum() for k, value in enumerate(found.values()))
    return list(torch.autograd.grad(loss, leaves, materialize_grads=True))


def compare(net: Any, got: dict[str, Tensor], want: dict[str, Tensor], x: Tensor) -> None:
    assert got.keys() == want.keys()
    for name, value in want.items():
        assert_close(got[name], value, msg=lambda text, name=name: f"{name}: {text}")
    leaves = [x, *net.parameters()]
    for one, other in zip(gradients(got, leaves), gradients(want, leaves), strict=True):
        assert_close(one, other)


def drawn(T: int = 6, B: int = 3, seed: int = 1) -> Tensor:
    source = torch.Generator().manual_seed(seed)
    return torch.randn(T, B, I, dtype=F64, generator=source).requires_grad_()


STACKS: list[dict[str, Any]] = [
    {},
    {"num_layers": 3},
    {"bidirectional": True},
    {"num_layers": 2, "residual": True},
]
every_stack = pytest.mark.parametrize("stack", STACKS, ids=str)
every_engine = pytest.mark.parametrize("engine", ["reference", "auto"])


@every_engine
@every_stack
def test_values_and_gradients(stack, engine):
    """Outputs, states of all steps, last states, and what flows back from all of them."""
    net, x = made(engine=engine, **stack), drawn()
    compare(net, called(net, x), by_hand(net, x), x)


@every_engine
@every_stack
def test_without_states_there_are_the_outputs(stack, engine):
    """A call hands out a tuple in declared order, and the last states as ever."""
    net, x = made(engine=engine, **stack), drawn()
    (y, e), last = net(x)
    want = by_hand(net, x)
    for got, name in zip((y, e, *last), ("y", "e", "last h", "last c"), strict=True):
        assert_close(got, want[name])


@every_stack
def test_resets_and_initial_states(stack):
    """The states behind a step are those before the following reset."""
    net, x = made(**stack), drawn()
    lead = len(net.runners)
    states = (
        torch.randn(lead, 3, H, dtype=F64, requires_grad=True),
        torch.randn(lead, 3, H, dtype=F64),
    )
    mask = torch.zeros(6, 3, dtype=torch.bool)
    if not net.bidirectional:  # by_hand knows of one direction alone
        mask[0, 0] = mask[3, 0] = mask[2, 1] = mask[5, 2] = True
    got = called(net, x, states, reset=mask)
    compare(net, got, by_hand(net, x, states, mask), x)


@pytest.mark.parametrize("checkpoint", [None, 2])
@every_stack
def test_lengths_and_packed(stack, checkpoint):
    """Every value is zero behind the end of its sequence, and packed like the input."""
    net, x, lengths = made(checkpoint=checkpoint, **stack), drawn(), [6, 2, 5]
    got = called(net, x, lengths=torch.tensor(lengths))
    alone = [by_hand(net, x[:n, b : b + 1]) for b, n in enumerate(lengths)]
    want = {
        name: torch.cat([one[name] if "last" in name else padded(one[name], 6) for one in alone], 1)
        for name in alone[0]
    }
    compare(net, got, want, x)
    rows = called(net, pack_padded_sequence(x, lengths, enforce_sorted=False))
    for name, value in want.items():
        if "last" not in name:
            like = pack_padded_sequence(value, lengths, enforce_sorted=False)
            assert isinstance(rows[name], PackedSequence)
            assert_close(rows[name].data, like.data)
            assert torch.equal(rows[name].batch_sizes, like.batch_sizes)


def padded(value: Tensor, steps: int) -> Tensor:
    return torch.cat([value, value.new_zeros(steps - len(value), *value.shape[1:])])


def test_unbatched_and_batch_first():
    """Every value lies as the input does."""
    net, x = made(batch_first=True), drawn()
    want = by_hand(net, x)
    got = called(net, x.transpose(0, 1))
    for name, value in want.items():
        assert_close(got[name], value if "last" in name else value.transpose(0, 1))
    alone = called(net, x[:, 1])
    for name, value in want.items():
        assert_close(alone[name], value[:, 1])


@pytest.mark.parametrize("batch_first", [False, True])
def test_streamed_outputs_are_those_of_the_sequence(batch_first):
    """A stream gives the outputs of the sequence, one after another."""
    net, x = made(num_layers=2, batch_first=batch_first), drawn()
    want, state = by_hand(net, x), None
    for t, row in enumerate(x.detach()):
        (y, e), state = net.step(row, state)
        assert_close(y, want["y"][t])
        assert_close(e, want["e"][t])
    (y, e), _ = net.step(x[0, 0])
    assert_close(y, want["y"][0, 0])
    assert_close(e, want["e"][0, 0])


def test_dropout_is_between_layers_alone():
    """What the last layer hands out is as it is; layers below hand up their first output."""
    net = made(num_layers=2, dropout=1.0).train()
    x = drawn()
    got = called(net, x)
    below = torch.zeros_like(x)
    top = [getattr(net, f"{name}_l1") for name in "WRC"]
    zeros = x.new_zeros(3, H)
    (y, e, h, c), _ = one_layer(top, below, zeros, zeros, torch.zeros(6, 3, dtype=torch.bool))
    for name, value in {"y": y, "e": e, "h": h, "c": c}.items():
        assert_close(got[name], value)


def test_results_can_be_changed_in_place():
    """They lie side by side in one array, but are no views that torch protects."""
    net, x = made(), drawn()
    (y, e), (h, c), _ = net(x, outputs="states")
    for value in (y, e, h, c):
        value.mul_(2)
    want = by_hand(net, x)
    assert_close(h, 2 * want["h"])
    (mine,) = torch.autograd.grad(y.sum() + c.sum(), x)
    (theirs,) = torch.autograd.grad(2 * want["y"].sum() + 2 * want["c"].sum(), x)
    assert_close(mine, theirs)


@TORCHS_OWN
@pytest.mark.parametrize("stack", STACKS[1:], ids=str)
@pytest.mark.parametrize("outputs", [None, "states"])
def test_compiled(outputs, stack):
    """One graph, the eager numbers, with gradients; lengths and resets too."""
    torch._dynamo.reset()
    net, x = made(**stack), drawn()
    mask = torch.rand(6, 3, generator=torch.Generator().manual_seed(2)) < 0.3

    def flat(module: Any, **call: Any) -> dict[str, Tensor]:
        parts = module(x, outputs=outputs, **call)
        return {f"{i} {k}": v for i, part in enumerate(parts) for k, v in enumerate(part)}

    once = torch.compile(net, fullgraph=True, backend="aot_eager")
    for call in ({}, {"lengths": torch.tensor([6, 2, 5])}, {"reset": mask}):
        compare(net, flat(once, **call), flat(net, **call), x)


@TORCHS_OWN
def test_transforms():
    """grad, vmap, jvp and second derivatives of all that is handed out."""
    net, x = made(num_layers=2), drawn(T=3, B=2)
    weights = {name: p.detach() for name, p in net.named_parameters()}

    def loss(weights: Any, x: Tensor) -> Tensor:
        (y, e), (_, c), _ = functional_call(net, weights, (x,), {"outputs": "states"})
        return y.sin().sum() + e.square().sum() + c.cos().sum()

    def loss_by_hand(weights: Any, x: Tensor) -> Tensor:
        class Like:
            num_layers, bidirectional, residual = 2, False, False

        like = Like()
        vars(like).update(weights)
        want = by_hand(like, x)
        return want["y"].sin().sum() + want["e"].square().sum() + want["c"].cos().sum()

    mine, theirs = grad(loss)(weights, x.detach()), grad(loss_by_hand)(weights, x.detach())
    for name in weights:
        assert_close(mine[name], theirs[name])
    batch = torch.stack([x.detach(), 2 * x.detach()])
    mine, theirs = (vmap(grad(f), (None, 0))(weights, batch) for f in (loss, loss_by_hand))
    for name in weights:
        assert_close(mine[name], theirs[name])
    direction = torch.ones_like(x)
    ours, others = (
        jvp(lambda x, f=f: f(weights, x), (x.detach(),), (direction,))[1]
        for f in (loss, loss_by_hand)
    )
    assert_close(ours, others)
    seconds = []
    for function in (loss, loss_by_hand):
        (first,) = torch.autograd.grad(function(weights, x), x, create_graph=True)
        seconds.append(torch.autograd.grad(first.square().sum(), x)[0])
    assert_close(*seconds)


def test_gradcheck():
    """Numeric first and second derivatives of everything that comes out."""
    net = made()
    x = drawn(T=2, B=2)
    assert torch.autograd.gradcheck(lambda x: tuple(called(net, x).values()), x)
    assert torch.autograd.gradgradcheck(lambda x: called(net, x)["e"], x)


@pytest.mark.parametrize("options", [{}, {"num_layers": 2}, {"bidirectional": True}], ids=str)
@pytest.mark.parametrize("kind", ["RNN", "GRU", "LSTM"])
def test_drop_ins_hand_out_their_states(kind, options):
    """h and c of the last layer behind every step; the last row is the last state."""
    torch.manual_seed(0)
    net, theirs = getattr(elman, kind)(I, H, **options), getattr(nn, kind)(I, H, **options)
    theirs.load_state_dict(net.state_dict())
    x = torch.randn(6, 3, I)
    out, states, last = net(x, outputs="states")
    wanted_out, wanted = theirs(x)
    assert_close(out, wanted_out)
    states, last, wanted = (v if kind == "LSTM" else (v,) for v in (states, last, wanted))
    assert_close(states[0], out)
    assert len(states) == len(last) == len(wanted)
    for state, end in zip(states, last):
        forward = end[-2 if net.bidirectional else -1]
        assert_close(state[-1, :, :H], forward)
        if net.bidirectional:
            assert_close(state[0, :, H:], end[-1])
    for t in (1, 4) if not net.bidirectional else ():  # c of every step is that of a shorter call
        _, ends = net(x[:t])
        for state, end in zip(states, ends if kind == "LSTM" else (ends,)):
            assert_close(state[t - 1], end[-1])


@TORCHS_OWN
@every_engine
@pytest.mark.parametrize("of", [cells.mgu, cells.lstm], ids=lambda one: one.name)
def test_a_state_that_is_an_output(of, engine):
    """The input that ``residual`` adds is added to the output alone, compiled too, and forward and
    back again."""
    net = elman.Recurrent(of, H, H, 2, residual=True, dtype=F64, engine=engine)
    x = torch.randn(4, 2, H, dtype=F64, requires_grad=True)
    below = elman.Recurrent(of, H, H, dtype=F64, engine=engine)
    below.load_state_dict({k: v for k, v in net.state_dict().items() if k.endswith("l0")})
    once = net
    if engine == "auto" and of is cells.mgu:
        torch._dynamo.reset()
        once = torch.compile(net, fullgraph=True, backend="aot_eager")
    out, states, _ = once(x, outputs="states")
    states = states if isinstance(states, tuple) else (states,)
    for t in range(4):
        ends = net(x[: t + 1])[1]
        for state, end in zip(states, ends if isinstance(ends, tuple) else (ends,), strict=True):
            assert_close(state[t], end[-1])
    added = below(x)[0]
    assert_close(out, states[0] + added)
    (found,) = torch.autograd.grad(states[0].sum(), x, retain_graph=True)
    (both,) = torch.autograd.grad(out.sum(), x)
    (from_below,) = torch.autograd.grad(added.sum(), x)
    assert_close(found, both - from_below)


def test_engines_that_have_no_states_to_hand_out():
    """torch's own LSTM has no c of every step, and says so; its RNN and GRU have all there is."""
    x = torch.randn(4, 2, I)
    with pytest.raises(EngineError, match=r'with outputs="states"'):
        elman.LSTM(I, H, engine="aten")(x, outputs="states")
    out, states, _ = elman.GRU(I, H, engine="aten")(x, outputs="states")
    assert states is out
    with elman.using(engine="c"):
        torch.manual_seed(0)
        assert elman.LSTM(I, H)(x, outputs="states")[1][1].shape == (4, 2, H)


def test_projected_states():
    """h is the projection, c is as wide as the cell."""
    net = elman.LSTM(I, H, proj_size=3)
    out, (h, c), _ = net(torch.randn(4, 2, I), outputs="states")
    assert out.shape == h.shape == (4, 2, 3)
    assert c.shape == (4, 2, H)


def test_a_name_that_is_none():
    with pytest.raises(InputError, match="outputs must be None or \"states\", got 'state'") as told:
        elman.GRU(I, H)(torch.randn(4, 2, I), outputs="state")
    assert 'net(x, outputs="states")' in str(told.value)


def test_first_outputs_that_are_scalars():
    """A layer above has to read a vector; one layer, or two directions, do not."""

    @elman.cell(input="x[I]", state="h[H]", output="e, y[H]", weights="W[H, I], R[H, H]")
    def scalar_first(x, h, W, R):
        h = tanh(W @ x + R @ h)
        return mean(h), 2 * h, h

    x = torch.randn(4, 2, I)
    (e, y), h = elman.Recurrent(scalar_first, I, H)(x)
    assert e.shape == (4, 2)
    assert y.shape == (4, 2, H)
    assert_close(y[-1] / 2, h[-1])
    with pytest.raises(InputError, match="scalar_first has a scalar output"):
        elman.Recurrent(scalar_first, I, H, 2)


def test_records_name_what_is_handed_out():
    """A choice made for a call with states is pinned by its record, beside that without."""
    net, x = made(num_layers=2), drawn().detach()
    net(x), net(x, outputs="states")
    record = elman.nn.choices(net)
    texts = " ".join(shown for layer in record.values() for shown in layer)
    assert "+states" in texts
    assert "+first_output" in texts
    again = made(num_layers=2)
    assert not elman.nn.pin(again, record)
    assert elman.nn.choices(again).keys() == record.keys()
    for got, want in zip(called(again, x).values(), called(net, x).values()):
        assert torch.equal(got, want)


@pytest.mark.parametrize("cell", [cells.lstm, cells.slstm, cells.gru, cells.sru], ids=str)
def test_states_of_any_cell(cell):
    """What is handed out at a step is what a call that ends there leaves, by each engine."""
    torch.manual_seed(0)
    net, x = elman.Recurrent(cell, I, I, dtype=F64), drawn().detach()
    out, states, last = net(x, outputs="states")
    one = len(net.cell.states) == 1
    assert_close(out, net(x)[0])
    states, last = ((v,) if one else v for v in (states, last))
    for state, end in zip(states, last, strict=True):
        assert_close(state[-1:], end)
    _, ends = net(x[:3])
    for state, end in zip(states, (ends,) if one else ends, strict=True):
        assert_close(state[2:3], end)
    with forced("reference"):
        _, again, _ = net(x, outputs="states")
    for state, other in zip(states, (again,) if one else again, strict=True):
        assert_close(state, other)


@elman.cell(
    input="x[I]",
    static="s[S]",
    state="h[H], c[H]",
    output="y[I], u[H]",
    weights="W[H, I], R[H, H], V[H, S], C[I, H]",
)
def with_static(x, s, h, c, W, R, V, C):
    """An output of the static input alone, which no layer but the last one computes."""
    u = tanh(V @ s)
    h = tanh(W @ x + R @ h + u)
    return C @ h, 2 * u, h, 0.5 * c + h


@pytest.mark.parametrize("stack", [{}, {"num_layers": 3}, {"bidirectional": True}], ids=str)
@pytest.mark.parametrize("outputs", [None, "states"])
def test_static_inputs(stack, outputs):
    """What layers hold of static inputs differs with what they hand out."""
    torch.manual_seed(0)
    net = elman.Recurrent(with_static, I, H, S=3, dtype=F64, **stack)
    x, s = drawn(), torch.randn(3, 3, dtype=F64, requires_grad=True)
    found = []
    for engine in ("reference", "auto"):
        with forced(engine):
            parts = net(x, static=s, outputs=outputs)
        values = [value for part in parts for value in part]
        loss = sum((value * (k + 1)).sin().sum() for k, value in enumerate(values))
        found.append([*values, *torch.autograd.grad(loss, [x, s, *net.parameters()])])
    for got, want in zip(*found, strict=True):
        assert_close(got, want)
    last = f"l{net.num_layers - 1}"
    u = 2 * torch.tanh(s @ getattr(net, f"V_{last}").T).expand(6, 3, H)
    assert_close(found[0][1][..., :H], u)


def test_shown_by_name():
    """explain and draw say which output is which; one that is a state has the state's name."""

    @elman.cell(input="x[I]", state="h[H]", output="y[P], e, k[H]", weights="W[H, I], C[P, H]")
    def shown(x, h, W, C):
        h = tanh(W @ x + h)
        return C @ h, mean(h * h), h, h

    text = str(elman.explain(shown, input_size=4, hidden_size=6, P=3, measure=False))
    for part in ("next: h′, y = C @ h′, e = mean", "k = h′", "output: y, e, h′", "∂C += dout.y ⊗"):
        assert part in text, part
    assert "dout.k" in text
    svg = elman.draw(shown, P=3).svg
    for part in ("out.y", "out.e", "dout.y", "dout.k"):
        assert part in svg, part


def test_arguments_that_stand_elsewhere():
    """What belongs to a call is told so where a module is made."""
    for name in ("outputs", "reset", "lengths"):
        with pytest.raises(InputError, match=f"{name} is an argument of each call") as told:
            elman.Recurrent(cells.gru, I, H, **{name: None})
        assert f"net(x, {name}=…)" in str(told.value)

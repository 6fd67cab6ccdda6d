"""What a sequence begins with that is given no state: parameters (``learn_initial=``), or what the
cell says (``init=``)."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence

import elman
from elman import cells
from elman.errors import InputError, ShapeError
from elman.ops import mean, tanh
from helpers import assert_close, forced

F64 = torch.float64
I, H, T, B = 5, 6, 7, 3


def named(kind: Any) -> str:
    return getattr(kind, "name", str(kind))


KINDS = ("RNN", "GRU", "LSTM")
STACKS: list[dict[str, Any]] = [{}, {"num_layers": 2}, {"num_layers": 2, "bidirectional": True}]
every_stack = pytest.mark.parametrize("stack", STACKS, ids=str)


@elman.cell(input="x[I]", state="h[H], n", weights="W[H, I], R[H, H]")
def with_scalar(x, h, n, W, R):
    h = tanh(W @ x + R @ h + n)
    return h, 0.5 * n + mean(h)


BEGUN = torch.linspace(-1, 1, H, dtype=F64)


@elman.cell(
    input="x[I]", state="h[H], n, k[H]", weights="W[H, I], R[H, H]", init={"h": BEGUN, "n": -1.5}
)
def begins(x, h, n, k, W, R):
    h = tanh(W @ x + R @ h + n)
    return h, 0.5 * n + mean(h), 0.3 * k + h


def made(kind: Any, **options: Any) -> Any:
    torch.manual_seed(0)
    if kind is begins:
        return elman.Recurrent(kind, I, H, dtype=F64, **options)
    if isinstance(kind, str):
        net = getattr(elman, kind)(I, H, learn_initial=True, dtype=F64, **options)
    else:
        net = elman.Recurrent(kind, I, H, learn_initial=True, dtype=F64, **options)
    with torch.no_grad():
        for name, value in net.named_parameters():
            if name.startswith("initial_"):
                value.normal_()
    return net


def learned(net: Any) -> list[Tensor]:
    """What sequences begin with, learned or not."""
    return [value for name, value in net.state_dict(keep_vars=True).items() if "initial_" in name]


def given(net: Any, batch: int) -> Any:
    """What is learned, as a caller would give it."""
    states = [v.unsqueeze(1).expand(v.shape[0], batch, *v.shape[1:]) for v in learned(net)]
    return states[0] if len(states) == 1 else tuple(states)


def results(net: Any, x: Tensor, *state: Any, **call: Any) -> list[Tensor]:
    """Values, last states and every gradient."""
    out, last = net(x, *state, **call)
    out = out.data if isinstance(out, PackedSequence) else out
    last = last if isinstance(last, tuple) else (last,)
    loss = sum(((k + 1) * v).sin().sum() for k, v in enumerate((out, *last)))
    return [out, *last, *torch.autograd.grad(loss, list(net.parameters()))]


def same(got: list[Tensor], want: list[Tensor]) -> None:
    for mine, other in zip(got, want, strict=True):
        assert_close(mine, other)


@every_stack
@pytest.mark.parametrize("kind", [*KINDS, with_scalar, begins], ids=named)
def test_what_is_learned_is_what_could_be_given(kind, stack):
    """Values and gradients are those of the same states given by hand, on engine reference."""
    net, x = made(kind, **stack), torch.randn(T, B, I, dtype=F64)
    shapes = {name: tuple(v.shape) for name, v in net.state_dict().items() if "initial" in name}
    assert shapes["initial_h"] == (len(net.runners), H)
    assert kind is not with_scalar or shapes["initial_n"] == (len(net.runners),)
    with forced("reference"):
        want = results(net, x, given(net, B))
        packed = results(net, x, given(net, B), lengths=[7, 2, 5])
    same(results(net, x), want)
    same(results(net, x, lengths=[7, 2, 5]), packed)
    rows = pack_padded_sequence(x, [7, 2, 5], enforce_sorted=False)
    same(results(net, rows)[1:], packed[1:])
    alone = results(net, x[:, 0])
    with forced("reference"):
        state = given(net, 1)
        state = state[:, 0] if isinstance(state, Tensor) else tuple(s[:, 0] for s in state)
        same(alone, results(net, x[:, 0], state))


@pytest.mark.parametrize("kind", KINDS)
def test_begins_as_torchs(kind):
    """Zeros at first and after a reset of parameters, and the draws are torch's."""
    torch.manual_seed(0)
    net = getattr(elman, kind)(I, H, learn_initial=True)
    torch.manual_seed(0)
    theirs = getattr(nn, kind)(I, H)
    for name, value in theirs.named_parameters():
        assert torch.equal(value, net.get_parameter(name))
    x = torch.randn(T, B, I)
    assert_close(net(x)[0], theirs(x)[0])
    with torch.no_grad():
        net.initial_h.fill_(3.0)
    net.reset_parameters()
    assert not net.initial_h.any()
    assert "learn_initial=True" in repr(net)
    assert getattr(elman, kind)(I, H, heads=2, learn_initial=True).initial_h.shape == (1, H)


def test_what_a_cell_says():
    """Of each layer and direction; other states begin with zeros; it is saved, moved, and never
    trained."""
    net = made(begins, num_layers=2, bidirectional=True)
    assert_close(net.initial_h, BEGUN.expand(4, H))
    assert net.initial_n.tolist() == [-1.5] * 4
    assert not net.initial_k.any()
    assert {name.partition("_l")[0] for name, _ in net.named_parameters()} == {"W", "R"}
    with torch.no_grad():
        net.initial_h.zero_()
    again = pickle.loads(pickle.dumps(net))
    assert not again.initial_h.any()
    again.load_state_dict(made(begins, num_layers=2, bidirectional=True).state_dict())
    net.reset_parameters()
    assert torch.equal(net.initial_h, again.initial_h)
    assert net.float().initial_n.dtype == torch.float32
    assert net(torch.ones(T, B, I))[0].dtype == torch.float32


def test_what_a_cell_says_is_learned_from_there():
    """``learn_initial=`` makes it a parameter; of layers with states of their own by layer."""
    net = elman.Recurrent([cells.gru, begins], I, [3, H], learn_initial=True, dtype=F64)
    names = [name for name, _ in net.named_parameters() if "initial" in name]
    assert names == ["initial_h_l0", "initial_h_l1", "initial_n_l1", "initial_k_l1"]
    assert not net.initial_h_l0.any()
    assert_close(net.initial_h_l1, BEGUN[None])
    mixed = elman.Recurrent([cells.gru, begun_gru], I, [H, H], dtype=F64)
    assert_close(mixed.initial_h, torch.stack((torch.zeros(H), torch.full((H,), 2.0))).double())
    with pytest.raises(ShapeError, match=r"init of h\[H\] is \[6\], not \[5\]"):
        elman.Recurrent(begins, I, 5)


@elman.cell(input="x[I]", state="h[H]", weights="W[H, I]", init={"h": lambda h: h.fill_(2.0)})
def begun_gru(x, h, W):
    return tanh(W @ x) * h


def test_a_cells_begins_with_zeros():
    net = elman.Recurrent(cells.lstm, I, H, 2, learn_initial=True)
    assert net.initial_c.shape == (2, H)
    assert not net.initial_c.any()
    assert "learn_initial=True" in repr(net)
    again = copy.deepcopy(net)
    again.load_state_dict(net.state_dict())


def in_episodes(net: Any, x: Tensor, mask: Tensor, state: Any, start: Any) -> list[Tensor]:
    """Each sample in calls of its own, each episode from ``start`` [per state: lead, 1, n]."""
    outs, ends = [], []
    for b in range(x.shape[1]):
        pieces, now = [], [s[:, b : b + 1] for s in state]
        for t in range(len(x)):
            now = [begin[:, :1] if mask[t, b] else s for s, begin in zip(now, start)]
            out, last = net(x[t : t + 1, b : b + 1], now[0] if len(now) == 1 else tuple(now))
            now = last if isinstance(last, tuple) else (last,)
            pieces.append(out)
        outs.append(torch.cat(pieces))
        ends.append(now)
    return [torch.cat(outs, 1), *(torch.cat(parts, 1) for parts in zip(*ends))]


@pytest.mark.parametrize("kind", ["GRU", "LSTM", with_scalar, begins], ids=named)
@pytest.mark.parametrize("stack", STACKS[:2], ids=str)
@pytest.mark.parametrize("carried", [False, True])
@pytest.mark.parametrize("reset_to", [None, "initial", "zeros"])
def test_resets(kind, stack, carried, reset_to):
    """An episode begins with what is learned, whatever state was carried into the call;
    ``initial`` is that state, and ``zeros`` zeros."""
    net, x = made(kind, **stack), torch.randn(T, B, I, dtype=F64)
    mask = torch.rand(T, B, generator=torch.Generator().manual_seed(4)) < 0.4
    mask[0, 0], mask[:, 1] = True, False
    begin = [v.unsqueeze(1).expand(v.shape[0], B, *v.shape[1:]) for v in learned(net)]
    state = [torch.randn_like(v) for v in begin] if carried else begin
    if reset_to == "zeros":
        start = [torch.zeros_like(v) for v in begin]
    else:
        start = state if carried and reset_to == "initial" else begin
    call = {} if reset_to is None else {"reset_to": reset_to}
    tensors = (state[0] if len(state) == 1 else tuple(state),) if carried else ()
    own = list(net.parameters())

    def gradients(values: list[Tensor]) -> list[Tensor]:
        loss = sum(((k + 1) * v).sin().sum() for k, v in enumerate(values))
        return list(torch.autograd.grad(loss, own, materialize_grads=True))

    def of_call(**more: Any) -> list[Tensor]:
        out, last = net(x, *tensors, reset=mask, **call, **more)
        return [out, *(last if isinstance(last, tuple) else (last,))]

    with forced("reference"):
        # every sample's own start: initial is that of the sample
        want = [
            torch.cat(parts, 1)
            for parts in zip(
                *(
                    in_episodes(
                        net,
                        x[:, b : b + 1],
                        mask[:, b : b + 1],
                        [s[:, b : b + 1] for s in state],
                        [s[:, b : b + 1] for s in start],
                    )
                    for b in range(B)
                )
            )
        ]
    got = of_call()
    same(got, want)
    same(gradients(got), gradients(want))


def test_reverse_direction_and_lengths():
    """Both directions begin anew with what each has learned."""
    net, x = made("GRU", bidirectional=True), torch.randn(T, 1, I, dtype=F64)
    mask = torch.zeros(T, 1, dtype=torch.bool)
    mask[4] = True
    first, second = net(x[:4])[0], net(x[4:])[0]
    assert_close(net(x, reset=mask)[0], torch.cat((first, second)))
    many = torch.cat((x, x), 1)
    short = net(many, lengths=[7, 6], reset=mask.expand(T, 2))[0]
    assert_close(short[:, :1], torch.cat((first, second)))
    assert_close(short[4:6, 1:], net(x[4:6])[0])


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("stack", STACKS[1:], ids=str)
@pytest.mark.parametrize("kind", ["LSTM", begins], ids=named)
def test_compiled(kind, stack):
    torch._dynamo.reset()
    net, x = made(kind, **stack), torch.randn(T, B, I, dtype=F64)
    mask = torch.rand(T, B, generator=torch.Generator().manual_seed(4)) < 0.4
    once = torch.compile(net, fullgraph=True, backend="aot_eager")
    for call in ({}, {"reset": mask}, {"lengths": torch.tensor([7, 2, 5]), "reset": mask}):
        same(results(once, x, **call), results(net, x, **call))


@pytest.mark.parametrize("kind", ["LSTM", begins], ids=named)
def test_stream(kind):
    """A stream begins with it, and does so again after a reset."""
    net, x = made(kind), torch.randn(T, B, I, dtype=F64)
    state, outs = None, []
    done = torch.zeros(T, B, dtype=torch.bool)
    done[3, 1] = True
    for t in range(T):
        out, state = net.step(x[t], state, reset=done[t])
        outs.append(out)
    assert_close(torch.stack(outs), net(x, reset=done)[0])
    stream = elman.Stream(net)
    stream(x)
    stream.reset([1])
    whole = net(x)[0]
    assert_close(stream(x)[:, 1], whole[:, 1])


def test_torchs_layers_have_none():
    """Where torch's own layer would run, nothing begins with zeros."""
    net, x = made("GRU"), torch.ones(T, B, I, dtype=F64)
    with forced("aten"):
        want = net(x)[0]
        assert_close(want[0], net.step(x[0])[0])
    with pytest.warns(UserWarning, match="step by step on engine reference"):
        half = net.to(torch.bfloat16)(x.bfloat16())[0]
    torch.testing.assert_close(half.double(), want, rtol=0.05, atol=0.02)
    with pytest.raises(InputError, match="reset_to must be 'zeros' or 'initial'"):
        net.double()(torch.ones(T, B, I, dtype=F64), reset=torch.ones(T, B), reset_to="learned")


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_transforms():
    """Gradients by sample, of what is learned too, with resets."""
    net, x = made("GRU", num_layers=2), torch.randn(T, B, I, dtype=F64)
    mask = torch.rand(T, B, generator=torch.Generator().manual_seed(4)) < 0.4
    weights = {name: value.detach() for name, value in net.named_parameters()}

    def loss(weights: Any, x: Tensor, mask: Tensor) -> Tensor:
        given = (x.unsqueeze(1),)
        return functional_call(net, weights, given, {"reset": mask.unsqueeze(1)})[0].sin().sum()

    each = vmap(grad(loss), (None, 1, 1))(weights, x, mask)
    for name, value in net.named_parameters():
        for b in range(B):
            (want,) = torch.autograd.grad(
                loss(dict(net.named_parameters()), x[:, b], mask[:, b]), value
            )
            assert_close(each[name][b], want)

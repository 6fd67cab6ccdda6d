"""Random numbers inside a cell: every engine and every form of a call draws the same ones."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import functional_call, grad, vmap
from torch.nn.functional import layer_norm
from torch.utils._pytree import tree_leaves

import elman
from conformance.formulas import noisy
from elman import compiler, ops
from elman.errors import InputError, ShapeError, TraceError
from elman.frontend.cell import cell
from elman.ir.draws import BITS, SCALE, drawn, stream
from elman.plan.build import program
from helpers import assert_close, forced, need_engine
from specs import spec_of

F64 = torch.float64
ENGINES = ("reference", "c", "deer")


def numbers(keys: Tensor, number: int, sizes: tuple[int, ...]) -> Tensor:
    """u [..., n] of keys [2, ...], of a vector of so many gate blocks."""
    high, low = (half.long().unsqueeze(-1) for half in keys)
    parts: list[Any] = [
        drawn(high, low, torch.arange(size), stream(number, at))  # type: ignore[arg-type]
        for at, size in enumerate(sizes)
    ]
    return torch.cat(parts, -1).double() * SCALE


def made(**options: Any) -> tuple[Any, Tensor]:
    """A module of :func:`noisy` in float64, and an input."""
    torch.manual_seed(0)
    return elman.Recurrent(noisy, 5, 13, dtype=F64, **options), torch.randn(7, 4, 5, dtype=F64)


@cell(input="x[H]", state="h[H]")
def drawing(x, h):
    """Numbers as they are drawn: what decides nothing."""
    return ops.concat(ops.uniform(h)) + 0 * x + 0 * h


@cell(input="x[H]", state="h[H]")
def once(x, h):
    """The same numbers in every step."""
    return ops.uniform(h, per="sequence") + 0 * x + 0 * h


def test_layers_directions_samples_and_steps_draw_apart():
    """No two rows of any two of them are alike; per sequence all steps are."""
    x = torch.zeros(5, 3, 16)
    net = elman.Recurrent(drawing, 16, 16, engine="reference")
    both = elman.Recurrent(drawing, 16, 16, bidirectional=True, engine="reference")
    rows = [net(x)[0].flatten(0, 1), *both(x)[0].flatten(0, 1).chunk(2, -1)]
    assert len(torch.cat(rows).unique()) > 0.999 * 3 * 15 * 16
    fixed = elman.Recurrent(once, 16, 16, engine="reference")(x)[0]
    assert (fixed == fixed[:1]).all()
    assert len(fixed[0].unique()) == 3 * 16


@cell(input="x[I]", state="h[H]", weights="W[H, I], R[H, H], b[H]")
def zoned(x, h, W, R, b):
    """Zoneout alone."""
    return ops.zoneout(ops.tanh(W @ x + R @ h + b), h, 0.5)


@cell(input="x[I]", state="h[H]", weights="W[H, I], R[H, H], b[H]")
def dropped(x, h, W, R, b):
    """Dropout alone, of each kind."""
    return ops.tanh(W @ ops.dropout(x, 0.5) + R @ ops.dropout(h, 0.5, per="sequence") + b)


@cell(input="x[I]", state="h[H]", weights="W[H, I], R[H, H], b[H]")
def loud(x, h, W, R, b):
    """Noise of a size that is learnt."""
    return ops.tanh(W @ x + R @ h + ops.exp(b) * ops.noise(b))


def test_gradients_sample_by_sample():
    """vmap draws for each sample anew, and refuses to do so unasked, as of torch's dropout."""
    torch.manual_seed(0)
    net = elman.Recurrent(dropped, 2, 3, dtype=F64)
    weights = {name: w.detach() for name, w in net.named_parameters()}
    x = torch.randn(5, 4, 2, dtype=F64)

    def loss(weights: dict[str, Tensor], x: Tensor) -> Tensor:
        return functional_call(net, weights, (x.unsqueeze(1),))[0].sum()

    torch.manual_seed(1)
    each = vmap(grad(loss), in_dims=(None, 0), randomness="different")(weights, x)
    assert all(len(g.flatten(1).unique(dim=0)) == 5 for g in each.values())
    with pytest.raises(RuntimeError, match="randomness"):
        vmap(grad(loss), in_dims=(None, 0))(weights, x)


@pytest.mark.parametrize("tape", ["auto", "save"])
@pytest.mark.parametrize("formula", [noisy, zoned, dropped, loud])
def test_numbers_are_drawn_again_not_kept(formula, tape):
    """Nothing on the tape, nor in the memory between phases, follows from draws alone."""
    dims = {"H": 64, "I": 64}
    spec = spec_of(dims.items(), wants=frozenset("xWRb"), tape=tape)
    of = program(compiler.pair_of(formula, compiler.training_rules(formula)), spec)
    sweeps = [of.forward, of.backward]
    for phase in (p for s in sweeps if s is not None for p in (s.before, s.step, s.after)):
        for value, buffer in phase.buffers.items():
            if buffer.where in ("tape", "chunk"):
                assert value.op not in ("uniform", "ge", "lt", "log", "cos")
    if tape == "auto":
        plain = program(compiler.pair_of(formula), spec)
        assert len(of.tape) <= len(plain.tape)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(dtype):
    """A module of such a type draws the same numbers and computes in float32, where it trains; so
    does autocast."""

    def results(net, x, call):
        torch.manual_seed(1)
        values = tree_leaves(net(x, **call))
        total = sum(value.float().sum() for value in values)
        return [*values, *torch.autograd.grad(total, list(net.parameters()))]

    net = elman.Recurrent(noisy, 3, 8, 2, learn_initial=True, precision="ieee")
    x = torch.randn(4, 2, 3).to(dtype)
    half = copy.deepcopy(net).to(dtype)
    net.load_state_dict(half.state_dict())
    for call in ({}, {"lengths": [4, 2]}, {"reset": torch.ones(4, 2)}):
        want, got = results(net, x.float(), call), results(half, x, call)
        for mine, other in zip(got, want, strict=True):
            assert mine.dtype == dtype
            torch.testing.assert_close(mine, other.to(dtype))
    state = x.new_ones(2, 2, 8).requires_grad_()
    (d_state,) = torch.autograd.grad(half(x, (state, state))[0].float().sum(), state)
    assert d_state.dtype == dtype
    with pytest.raises(InputError, match=r"x of noisy is torch\.float32"):
        half(x.float())
    with torch.autocast("cpu", torch.bfloat16):
        assert net(x.float())[0].dtype == half(x)[0].dtype == torch.bfloat16
    with forced("reference"):
        assert half.eval()(x)[0].dtype == dtype


MISTAKES = {
    "ops.dropout(h, 1.5)": "p of dropout must be a number in",
    "ops.zoneout(h, h, True)": "p of zoneout must be a number in",
    "ops.dropout(h, 0.5, per='batch')": "per must be 'step' or 'sequence'",
    "ops.zoneout(x, h, 0.5)": "cannot zone out",
    "ops.noise(W)": "noise takes a vector or a scalar",
    "ops.uniform('[H]')": "cannot read the dim",
}


@pytest.mark.parametrize("text", MISTAKES)
def test_mistakes_are_told_at_their_line(text):
    """What cannot be drawn says so, and what to write."""
    with pytest.raises((TraceError, ShapeError), match=MISTAKES[text]) as told:

        @cell(input="x[I]", state="h[H]", weights="W[H, I]")
        def wrong(x, h, W):
            return eval(text) + h

    assert "eval(text)" in str(told.value) or "<string>" in str(told.value)


def test_nothing_is_drawn_outside_of_a_formula():
    """A number alone is no formula."""
    with pytest.raises(TraceError, match="inside a cell"):
        ops.noise("H")


def test_extremes():
    """p = 0 is the value itself and draws nothing; p = 1 leaves nothing, or nothing new."""

    @cell(input="x[H]", state="h[H]")
    def ends(x, h):
        kept = ops.dropout(x, 0) + ops.zoneout(h, x, 0.0)
        return kept + ops.dropout(x, 1) + 0 * ops.zoneout(h, x, 1)

    net = elman.Recurrent(ends, 3, 3, engine="reference")
    x = torch.randn(4, 2, 3)
    assert_close(net(x)[0], torch.cumsum(x, 0))


def test_explained_and_drawn_as_trained():
    """What is shown is the formula with its numbers; of a module that does not train, without."""
    net, x = made(engine="reference")
    trained = elman.explain(net, x, measure=False).all
    assert "uniform.6(key_high, key_low)" in trained
    assert "sequence_high" in trained
    told = elman.explain(net.eval(), x, measure=False).all
    assert "uniform" not in told
    assert "draw0" not in told
    assert "uniform" in elman.explain(noisy, measure=False).all
    assert "uniform" in elman.draw(noisy, hidden_size=8).svg


def haste(net: Any, x: Tensor, masks: list[Tensor] | None, p: float) -> Tensor:
    """LayerNormLSTM of haste 0.4.0 as its script says, gates in our order.

    Args:
        net: of :data:`elman.cells.zoneout_lstm_layernorm`, whose weights are taken.
        x [T, B, I]: the input.
        masks [B, H]: of each step, 0 where a unit keeps its old value; None: expected values.
        p: share of units that do.
    """
    W, R, b, gx, gh, gc, bc = (w for _, w in net.named_parameters())
    h = c = x.new_zeros(x.shape[1], net.hidden_size)
    out, wide = [], (4 * net.hidden_size,)
    for t, row in enumerate(x):
        v = layer_norm(h @ R.T, wide, gh) + layer_norm(row @ W.T, wide, gx) + b
        i, f, g, o = v.chunk(4, 1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        new = o.sigmoid() * layer_norm(c, c.shape[1:], gc, bc).tanh()
        h = p * h + (1 - p) * new if masks is None else (new - h) * masks[t] + h
        out.append(h)
    return torch.stack(out)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("trains", [True, False])
def test_zoneout_lstm_is_hastes(engine, trains):
    """Output and all gradients, with haste's masks drawn from the same keys; and in evaluation."""
    need_engine(engine)
    torch.manual_seed(0)
    options: dict[str, Any] = {"hold_h": 0.3, "dtype": F64, "engine": engine}
    net = elman.Recurrent(elman.cells.zoneout_lstm_layernorm, 5, 13, **options).train(trains)
    for weight in net.parameters():
        torch.nn.init.normal_(weight, 0.5, 0.5)
    x = torch.randn(7, 4, 5, dtype=F64, requires_grad=True)
    torch.manual_seed(1)
    keys = torch.randint(1 << BITS, (1, 2, 7, 4), dtype=torch.int32)[0]
    masks = [(numbers(keys[:, t], 0, (13,)) >= 0.3).double() for t in range(7)]
    want = haste(net, x, masks if trains else None, 0.3)
    torch.manual_seed(1)
    got, _ = net(x)
    d = torch.randn(7, 4, 13, dtype=F64)
    leaves = [x, *net.parameters()]
    assert_close(got, want)
    for one, other in zip(*(torch.autograd.grad(value, leaves, d) for value in (got, want))):
        assert_close(one, other)


@pytest.mark.parametrize("engine", ENGINES)
def test_single_precision_draws_the_same_numbers(engine):
    """float32 decides as float64 does."""
    need_engine(engine)
    net, x = made(engine=engine)
    found = []
    for one, given in ((net, x), (copy.deepcopy(net).float(), x.float())):
        torch.manual_seed(3)
        found.append(one(given)[0].double())
    torch.testing.assert_close(*found, rtol=1e-3, atol=1e-4)


def test_zoneout_of_both_states():
    """With ``hold_c`` cells keep their value too, as Krueger et al. have it."""
    net = elman.Recurrent(elman.cells.zoneout_lstm_layernorm, 5, 13, hold_h=0.0, hold_c=1.0)
    _, (_, c) = net(torch.randn(7, 4, 5))
    assert (c == 0).all()


@cell(input="x[H]", state="h[H]", output="y[H], z[H]", weights="R[H, H]")
def two(x, h, R):
    """What is handed up draws by sequence, what is handed out besides by step."""
    new = ops.tanh(R @ ops.dropout(h, 0.3, per="sequence") + x)
    return new, ops.dropout(new, 0.5), new


@pytest.mark.parametrize("engine", ["reference", "c"])
def test_layers_that_hand_up_a_part_take_all_keys(engine):
    """A layer below draws nothing for an output that nobody reads; the numbers of the rest stay."""
    need_engine(engine)
    torch.manual_seed(0)
    net = elman.Recurrent(two, 6, 6, 2, dtype=F64, engine=engine)
    x = torch.randn(5, 3, 6, dtype=F64)
    torch.manual_seed(3)
    (_, z), states, _ = net(x, outputs="states")
    torch.manual_seed(3)
    (y, same_z), _ = net(x)
    assert_close(states, y)
    assert_close(same_z, z)
    assert ((z == 0) | torch.isclose(z, 2 * y)).all()
    assert 0.2 < (z == 0).double().mean() < 0.8

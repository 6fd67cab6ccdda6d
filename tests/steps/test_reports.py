"""What users of torch's own scan, and of jax's, reported: each as elman.scan, with the plain loop's
values and gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

import elman
from step_runs import STEPS_CLOSE, differences, found_by, plain_scan

F64 = torch.float64
ENGINES = ["reference", "c"]


def normal(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=F64)


def weight(*shape: int, seed: int = 1) -> nn.Parameter:
    return nn.Parameter(0.4 * normal(*shape, seed=seed))


def scan_on(engine: str) -> Any:
    def scan(step: Any, init: Any, xs: Any, **how: Any) -> tuple[Any, Any]:
        return elman.scan(step, init, xs, engine=engine, **how)

    return scan


def agrees(step: Any, init: Any, xs: Any, parameters: Any, engine: str, **how: Any) -> None:
    want = found_by(plain_scan, step, init, xs, parameters, **how)
    got = found_by(scan_on(engine), step, init, xs, parameters, **how)
    off = differences(got, want, STEPS_CLOSE[F64][0])
    assert not off, "\n".join(off)


# pytorch #195977: inductor refuses a scan whose carry is what an operation saves for its backward
# ("scan might be aliasing the input or the output!").

SAVED: dict[str, Callable[[Tensor], Tensor]] = {
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "exp": lambda v: torch.exp(-v.abs()),
    "relu": torch.relu,
    "softmax": lambda v: torch.softmax(v, -1),
    "sqrt": lambda v: torch.sqrt(v * v + 1),
}
RETURNED: dict[str, Callable[[Tensor], tuple[Tensor, Tensor]]] = {
    "itself": lambda s: (s, s),
    "a clone as output": lambda s: (s, s.clone()),
    "a clone as carry": lambda s: (s.clone(), s),
    "two clones": lambda s: (s.clone(), s.clone()),
}


@pytest.mark.parametrize("returned", RETURNED)
@pytest.mark.parametrize("name", SAVED)
def test_a_carry_that_its_operation_saves(name, returned):
    w = weight(8, 8)

    def body(s: Tensor, x: Tensor) -> Any:
        return RETURNED[returned](SAVED[name](s @ w + x))

    agrees(body, torch.zeros(4, 8, dtype=F64), normal(6, 4, 8), [w], "reference")


def test_a_carry_that_its_operation_saves_on_c():
    w = weight(8, 8)

    def body(s: Tensor, x: Tensor) -> Any:
        s = torch.tanh(s @ w + x)
        return s, s.clone()

    agrees(body, torch.zeros(4, 8, dtype=F64), normal(16, 4, 8), [w], "c")


# pytorch #153679: scans one after another, each over the outputs of that before it; under inductor
# gradients of all layers but the last are wrong (4 of 6).


def layers(scan: Any, xs: Tensor, parameters: Any, closed: bool) -> tuple[Tensor, list[Tensor]]:
    lasts = []
    for w_x, w_h, b in parameters:
        init: Any = torch.zeros(2, 6, dtype=F64)

        def body(h: Any, x: Any, w_x: Tensor = w_x, w_h: Tensor = w_h, b: Tensor = b) -> Any:
            h = torch.tanh(x @ w_x.t() + b + h @ w_h.t())
            return h, h.clone()

        def given(s: Any, x: Any) -> Any:  # weights as carries, as the report has them, too
            h, *weights = s
            h, y = body(h, x, *weights)
            return (h, *weights), y

        if closed:
            last, xs = scan(body, init, xs)
        else:
            (last, *_), xs = scan(given, (init, w_x, w_h, b), xs)
        lasts.append(last)
    return xs, lasts


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("count", [2, 3])
def test_scans_one_after_another(engine, count):
    parameters = [
        [weight(6, 6, seed=3 * k), weight(6, 6, seed=3 * k + 1), weight(6, seed=3 * k + 2)]
        for k in range(count)
    ]
    found = []
    for scan in (plain_scan, scan_on(engine)):
        xs = normal(5, 2, 6).requires_grad_()
        out, lasts = layers(scan, xs, parameters, closed=True)
        loss = (out * normal(5, 2, 6, seed=9)).sum() + sum(last.square().sum() for last in lasts)
        found.append([out, *torch.autograd.grad(loss, [xs, *tree_leaves(parameters)])])
    for got, want in zip(found[1], found[0], strict=True):
        torch.testing.assert_close(got, want, rtol=1e-8, atol=1e-9)


def test_weights_in_the_carry():
    """Without samples, they are carries as any other; the axes of each have other sizes."""
    parameters = [[weight(6, 6, seed=k), weight(6, 6, seed=k + 1), weight(6, seed=k + 2)]
                  for k in (0, 3)]  # fmt: skip
    found = []
    for scan in (plain_scan, scan_on("reference")):
        xs = normal(5, 2, 6).requires_grad_()
        out, _ = layers(scan, xs, parameters, closed=False)
        loss = (out * normal(5, 2, 6, seed=9)).sum()
        found.append([out, *torch.autograd.grad(loss, [xs, *tree_leaves(parameters)])])
    for got, want in zip(found[1], found[0], strict=True):
        torch.testing.assert_close(got, want, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_phase_network(engine):
    """The second report there: two layers with gains of both signs and an offset each."""

    class Phase(nn.Module):
        def __init__(self, seed: int) -> None:
            super().__init__()
            self.gamma_plus = weight(6, seed=seed)
            self.gamma_minus = weight(6, seed=seed + 1)
            self.phi_offset = weight(6, seed=seed + 2)

        def forward(self, s: Tensor, x: Tensor) -> Any:
            d = torch.sin(x - s + self.phi_offset)
            s = s + 0.1 * (torch.exp(self.gamma_plus) * d.clamp(min=0)
                           + torch.exp(self.gamma_minus) * d.clamp(max=0))  # fmt: skip
            return s, s.clone()

    a, b = Phase(0), Phase(3)
    found = []
    for scan in (plain_scan, scan_on(engine)):
        _, ys = scan(a, torch.zeros(2, 6, dtype=F64), normal(16, 2, 6))
        _, ys = scan(b, torch.zeros(2, 6, dtype=F64), ys)
        loss = (ys * normal(16, 2, 6, seed=9)).sum()
        found.append([*torch.autograd.grad(loss, [*a.parameters(), *b.parameters()])])
    for got, want in zip(found[1], found[0], strict=True):
        torch.testing.assert_close(got, want, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_list_of_states(engine):
    """The first report there: one scan over a list of layers' states, each added to."""
    layers = nn.ModuleList(nn.Linear(8, 4) for _ in range(3)).double()

    def body(states: Any, x: Tensor) -> Any:
        new = []
        for state, layer in zip(states, layers, strict=True):
            x = state + layer(torch.cat((state, x), -1))
            new.append(x)
        return new, x.clone()

    init = [0.5 * normal(2, 4, seed=k) for k in range(3)]
    agrees(body, init, normal(5, 2, 4, seed=4), [*layers.parameters()], engine)


# pytorch #184528 (and #184529, its correction): gradients of closed-over weights miss what passes
# through the carry, where the first carry asks for none.


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("final", [False, True])
def test_a_weight_where_the_first_carry_asks_for_no_gradient(engine, final):
    a = nn.Parameter(torch.tensor(0.7, dtype=F64))

    def body(c: Tensor, x: Tensor) -> Any:
        c = a * c + x
        return c, c * c

    found = []
    for scan in (plain_scan, scan_on(engine)):
        carry, ys = scan(body, torch.tensor(0.2, dtype=F64), normal(5))
        loss = ys.sum() + (carry if final else 0)
        found.append(torch.autograd.grad(loss, a)[0])
    torch.testing.assert_close(found[1], found[0], rtol=1e-8, atol=1e-9)


# pytorch #191846: a backward by an associative scan. In its review, a derivative that is not finite
# becomes NaN, and spreads to numbers that have nothing to do with it.


@pytest.mark.parametrize("engine", ENGINES)
def test_a_derivative_that_is_not_finite(engine):
    found = []
    for scan in (plain_scan, scan_on(engine)):
        init = torch.ones(2, dtype=F64, requires_grad=True)
        xs = torch.tensor([[2.0, 2.0], [0.0, 4.0], [2.0, 2.0]], dtype=F64, requires_grad=True)
        carry, ys = scan(lambda c, x: ((c := c / x), c.clone()), init, xs)
        found.append(torch.autograd.grad(ys.sum() + carry.sum(), [init, xs]))
    (got, by_x), (want, by_x_wanted) = found[1], found[0]
    assert want.tolist() == [torch.inf, 0.75]
    torch.testing.assert_close(got, want)
    torch.testing.assert_close(by_x, by_x_wanted)


# pytorch #189225: an exporter gives nn.GRU the other formula, with the reset gate before the
# product. (Exported formulas of elman's are compared in tests/export.)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_reset_gate_behind_its_product(engine):
    """The two formulas differ by the recurrent bias of the candidate, which is large here."""
    cell, layer = nn.GRUCell(4, 8).double(), nn.GRU(4, 8).double()
    for name, value in cell.named_parameters():
        nn.init.normal_(value, std=1.5)
        getattr(layer, f"{name}_l0").data.copy_(value.data)
    x, h = normal(9, 3, 4), normal(3, 8, seed=2)
    out, last = elman.Loop(cell, engine=engine)(x, h)
    want, want_last = layer(x, h.unsqueeze(0))
    torch.testing.assert_close(out, want, rtol=1e-8, atol=1e-9)
    torch.testing.assert_close(last, want_last[0], rtol=1e-8, atol=1e-9)


# pytorch #191855: an exported pair of LSTMs or GRUs, one of them reversed, has the number of steps
# of its example in it.


@pytest.mark.parametrize("kind", [nn.LSTMCell, nn.GRUCell])
@pytest.mark.parametrize("engine", ENGINES)
def test_both_directions_in_sequences_of_other_lengths(kind, engine):
    there, back = (kind(4, 6).double() for _ in range(2))
    kept = normal(4, 1, seed=8)

    def both(run: Any, x: Tensor, lengths: Tensor) -> Tensor:
        out = run(there, x, lengths, False)
        return torch.cat([out, run(back, x, lengths, True) * kept[:1].expand_as(out)], -1)

    def fused(cell: nn.Module, x: Tensor, lengths: Tensor, reverse: bool) -> Tensor:
        return elman.Loop(cell, reverse=reverse, engine=engine)(x, lengths=lengths)[0]

    def plain(cell: nn.Module, x: Tensor, lengths: Tensor, reverse: bool) -> Tensor:
        rows = []
        for b, length in enumerate(lengths.tolist()):
            order = range(length)[::-1] if reverse else range(length)
            state, ys = None, {}
            for t in order:
                state = cell(x[t, b : b + 1], state)
                ys[t] = state[0] if isinstance(state, tuple) else state
            filled = [ys.get(t, torch.zeros(1, 6, dtype=F64)) for t in range(len(x))]
            rows.append(torch.cat(filled))
        return torch.stack(rows, 1)

    parameters = [*there.parameters(), *back.parameters()]
    for steps in (6, 9, 4):
        x, lengths = normal(steps, 3, 4, seed=steps), torch.tensor([steps, 2, steps - 1])
        found = []
        for run in (plain, fused):
            y = both(run, x, lengths)
            loss = (y * normal(*y.shape, seed=5)).sum()
            found.append([y, *torch.autograd.grad(loss, parameters)])
        for got, want in zip(found[1], found[0], strict=True):
            torch.testing.assert_close(got, want, rtol=1e-8, atol=1e-9)


# Others around torch's scan: what it refuses of carries, closures and outputs.


@pytest.mark.parametrize("engine", ENGINES)
def test_a_closure_that_is_a_carry_too(engine):
    """pytorch #191582: aliases of inputs."""
    h0 = weight(3, 4)

    def body(h: Tensor, x: Tensor) -> Any:
        h = torch.tanh(h + x) + 0.1 * h0
        return h, h

    found = []
    for scan in (plain_scan, scan_on(engine)):
        carry, ys = scan(body, h0, normal(5, 3, 4))
        found.append([carry, ys, torch.autograd.grad(ys.sum() + carry.sum(), h0)[0]])
    for got, want in zip(found[1], found[0], strict=True):
        torch.testing.assert_close(got, want, rtol=1e-8, atol=1e-9)


def test_two_weights_that_are_views_of_one():
    """pytorch/executorch #8769: closed-over tensors that share memory."""
    both = weight(2, 4)
    re, im = both[0], both[1]

    def body(s: Any, x: Tensor) -> Any:
        a, b = s
        return (re * a - im * b + x, re * b + im * a), a

    found = []
    for scan in (plain_scan, scan_on("reference")):
        _, ys = scan(body, (normal(3, 4), normal(3, 4, seed=2)), normal(5, 3, 4))
        found.append([ys, torch.autograd.grad(ys.square().sum(), both)[0]])
    for got, want in zip(found[1], found[0], strict=True):
        torch.testing.assert_close(got, want, rtol=1e-8, atol=1e-9)


def test_a_carry_of_parameters_and_outputs_of_a_dict():
    """The body of torch's own test of scan."""

    def body(carry: Any, x: Tensor) -> Any:
        new = {"param": carry["param"] @ x + carry["bias"], "bias": carry["bias"].sin()}
        return new, (tree_map(lambda v: v.clone(), new), {"dummy": x.sin()})

    init = {"param": 0.3 * normal(5, 5), "bias": normal(5, 5, seed=2)}
    xs = 0.3 * normal(4, 5, 5, seed=3)
    for reverse in (False, True):
        agrees(body, init, xs, [], "reference", reverse=reverse)


def test_a_sum_of_integers():
    """The first example of torch's own scan."""
    last, ys = elman.scan(
        lambda c, x: ((c + x), (c + x).clone()), torch.zeros(1), torch.arange(1, 5),
        engine="reference",
    )  # fmt: skip
    assert last.tolist() == [10]
    assert ys.flatten().tolist() == [1, 3, 6, 10]


def test_counts_below_numbers():
    """pytorch #166516: a cumulative sum and how often it is below a number, and no outputs."""
    c = normal(20, seed=3).abs() * 5

    def body(s: Any, x: Any) -> Any:
        total, count = s
        total = total + x[0] * x[1]
        return (total, count + (total < c).int()), ()

    init = torch.zeros(20, dtype=F64), torch.zeros(20, dtype=torch.int32)
    for steps in (7, 12):
        a, b = normal(steps, 20).exp(), normal(steps, 20, seed=2).exp()
        (total, count), ys = elman.scan(body, init, (a, b), engine="reference")
        assert ys == ()
        assert torch.equal(count, ((a * b).cumsum(0) < c).sum(0).int())
        torch.testing.assert_close(total, (a * b).sum(0))


# jax #40150: gradients through a scan whose carry is a dict of many scalars.


@pytest.mark.parametrize("engine", ENGINES)
def test_a_carry_of_many_scalars(engine):
    nodes = 12
    rate = nn.Parameter(torch.tensor(0.3, dtype=F64))

    def body(s: Any, x: Tensor) -> Any:
        new, surprise = {}, torch.zeros((), dtype=F64)
        for k in range(nodes):
            mean, precision = s[f"mean_{k}"], s[f"precision_{k}"]
            parent = s[f"mean_{(k + 1) % nodes}"]
            volatility = torch.exp(rate * parent.clamp(-2, 2))
            expected = 1 / (1 / precision + volatility)
            error = x - mean
            precision = expected + 1
            mean = mean + error / precision
            surprise = surprise + 0.5 * (expected * error * error - torch.log(expected))
            new |= {f"mean_{k}": mean, f"precision_{k}": precision}
        return new, surprise

    init = {}
    for k in range(nodes):
        init |= {f"mean_{k}": normal(seed=k), f"precision_{k}": 1 + normal(seed=50 + k).abs()}
    agrees(body, init, normal(6), [rate], engine)


# jax #36799: a scan whose carry is a small matrix in float64 (the Cholesky factor of a
# quasiseparable matrix).


@pytest.mark.parametrize("engine", ENGINES)
def test_a_cholesky_factor(engine):
    def body(f: Tensor, x: Any) -> Any:
        p, q, a, d = x
        ci = torch.sqrt(d - p @ f @ p)
        w = (q - a @ f @ p) / ci
        return a @ f @ a.transpose(-1, -2) + torch.outer(w, w), (ci, w)

    n = 6
    xs = 0.2 * normal(n, 3), 0.2 * normal(n, 3, seed=2), 0.3 * normal(n, 3, 3, seed=3)
    agrees(body, torch.zeros(3, 3, dtype=F64), (*xs, 2 + normal(n, seed=4).abs()), [], engine)


# jax #5900: a loop that is ended by a flag in its carry, with the gradient of a power.


def test_a_loop_that_a_flag_ends():
    def body(s: Any, t: Tensor) -> Any:
        value, base, going = s
        value = torch.where(going, value * base, value)
        return (value, base, t < 3), value

    base = torch.tensor(3.0, dtype=F64, requires_grad=True)
    init = torch.ones((), dtype=F64), base, torch.tensor(True)
    (value, *_), _ = elman.scan(body, init, torch.arange(6), engine="reference")
    (grad,) = torch.autograd.grad(value, base)
    assert value.item() == pytest.approx(81)
    assert grad.item() == pytest.approx(108)

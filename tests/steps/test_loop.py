"""elman.Loop is a module as any other: what torch does to modules, it does to a loop, and its
values and gradients are those of the plain loop over the cell."""

from __future__ import annotations

import contextlib
import copy
import functools
import gc
import io
import os
import pickle
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.utils import parametrizations, parametrize, prune
from torch.utils._pytree import tree_flatten, tree_leaves
from torch.utils.checkpoint import checkpoint

import elman
from elman.errors import ElmanError, InputError, StepError, StepWarning
from elman.steps.recording import recorder
from step_runs import STEPS_CLOSE, differences, found_by, plain_scan

F64 = torch.float64
T, B, I, H = 5, 3, 4, 6
ENGINES = ["reference", "c"]
CALM = {"rtol": STEPS_CLOSE[F64][0], "atol": STEPS_CLOSE[F64][1]}


class Gated(nn.Module):
    """A cell of its own; with dropout of its candidate where p is not 0."""

    def __init__(self, p: float = 0.0) -> None:
        super().__init__()
        self.gate, self.candidate = nn.Linear(I + H, H), nn.Linear(I + H, H)
        self.drop = nn.Dropout(p)

    def forward(self, x: Tensor, h: Tensor) -> Tensor:
        both = torch.cat([x, h], -1)
        z = torch.sigmoid(self.gate(both))
        return z * h + (1 - z) * self.drop(torch.tanh(self.candidate(both)))


class OutAndState(nn.Module):
    """(out, state) whose output, several tensors by name, is no state."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.head = nn.GRUCell(I, H), nn.Linear(H, 2)

    def forward(self, x: Tensor, h: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        h = self.cell(x, h)
        logits = self.head(h)
        return {"logits": logits, "value": logits.square().sum(-1), "input": x}, h


class Unreadable(nn.Module):
    """A cell whose state passes through what no formula has."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(I, H)
        self.w = nn.Parameter(torch.randn(1, 1, 3) / 3)

    def forward(self, x: Tensor, h: Tensor) -> Tensor:
        c = nn.functional.conv1d(h.unsqueeze(1), self.w, padding=1).squeeze(1)
        return torch.tanh(self.a(x) + c)


class Both(NamedTuple):
    h: Tensor
    c: Tensor


def made(kind: Any, *sizes: Any, seed: int = 0, dtype: torch.dtype = F64) -> Any:
    torch.manual_seed(seed)
    return kind(*sizes).to(dtype)


def gru(seed: int = 0, dtype: torch.dtype = F64) -> nn.GRUCell:
    return made(nn.GRUCell, I, H, seed=seed, dtype=dtype)


def normal(*shape: int, seed: int = 1, dtype: torch.dtype = F64) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=F64).to(dtype)


def sequence(**options: Any) -> tuple[Tensor, Tensor]:
    return normal(T, B, I, **options), normal(B, H, seed=2, **options)


def plain(cell: Any, x: Tensor, h: Any) -> tuple[Tensor, Any]:
    """The loop itself, of cells that return their state."""
    rows = []
    for t in range(len(x)):
        h = cell(x[t], h)
        rows.append(h if isinstance(h, Tensor) else h[0])
    return torch.stack(rows), h


def step_of(cell: Any) -> Any:
    def step(h: Any, x: Any) -> Any:
        h = cell(x, h)
        return h, (h if isinstance(h, Tensor) else tree_leaves(h)[0])

    return step


def as_scan(loop: Any) -> Any:
    def scan(step: Any, init: Any, xs: Any) -> tuple[Any, Any]:
        out, last = loop(xs, init)
        return last, out

    return scan


def agrees(loop: Any, step: Any, init: Any, xs: Any, **options: Any) -> None:
    """Values and every gradient are those of the plain loop."""
    parameters = [p for p in loop.parameters() if p.requires_grad]
    want = found_by(plain_scan, step, init, xs, parameters, **options)
    got = found_by(as_scan(loop), step, init, xs, parameters)
    off = differences(got, want, STEPS_CLOSE[F64][0])
    assert not off, "\n".join(off)


def close(got: Any, want: Any, **how: Any) -> None:
    a, spec = tree_flatten(got)
    b, other = tree_flatten(want)
    assert spec == other
    for one, two in zip(a, b, strict=True):
        torch.testing.assert_close(one, two, **(how or CALM))


def gradients(out: Tensor, of: Any) -> list[Tensor]:
    weight = normal(*out.shape, seed=9).to(out.dtype)
    return [*torch.autograd.grad((out * weight).sum(), [*of])]


@contextlib.contextmanager
def traces(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Counts how often a step is traced."""
    from elman.steps import tracing

    count: list[int] = []
    record = recorder.record

    def counted(*args: Any, **kwargs: Any) -> Any:
        count.append(1)
        return record(*args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(recorder, "record", counted)
        patch.setattr(tracing, "record", counted)
        yield count


# ---- agreement


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("kind", [nn.GRUCell, nn.RNNCell])
def test_values_and_gradients(kind, engine):
    cell = made(kind, I, H)
    agrees(elman.Loop(cell, engine=engine), step_of(cell), *sequence()[::-1])


@pytest.mark.parametrize("engine", ENGINES)
def test_lstm(engine):
    cell = made(nn.LSTMCell, I, H)
    x, h = sequence()
    agrees(elman.Loop(cell, engine=engine), step_of(cell), (h, normal(B, H, seed=3)), x)


def test_a_function():
    w = normal(H, H).requires_grad_()
    loop = elman.Loop(lambda x, h: torch.tanh(h @ w + x), engine="reference")
    x, h = normal(T, B, H), normal(B, H, seed=2)
    out, last = loop(x, h)
    want, end = plain(lambda x, h: torch.tanh(h @ w + x), x, h)
    close((out, last), (want, end))
    close(gradients(out, [w]), gradients(want, [w]))


@pytest.mark.parametrize("engine", ENGINES)
def test_no_batch_and_one_sample_and_one_step(engine):
    cell = gru()
    loop = elman.Loop(cell, engine=engine)
    for shape, state in (
        ((T, I), (H,)),
        ((T, 1, I), (1, H)),
        ((1, B, I), (B, H)),
        ((1, 1, I), (1, H)),
        ((1, I), (H,)),
    ):
        agrees(loop, step_of(cell), normal(*state, seed=2), normal(*shape))


def test_other_batches_and_lengths_after_one():
    cell = gru()
    loop = elman.Loop(cell, engine="reference")
    for steps, batch in ((5, 3), (2, 7), (9, 1), (1, 2), (5, 3)):
        agrees(loop, step_of(cell), normal(batch, H, seed=2), normal(steps, batch, I))


def test_a_batch_as_large_as_the_state():
    cell = gru()
    for size in (I, H, 101, 37):
        loop = elman.Loop(cell, engine="reference")
        agrees(loop, step_of(cell), normal(size, H, seed=2), normal(2, size, I))


def test_non_contiguous_and_expanded():
    cell = gru()
    loop = elman.Loop(cell, engine="c")
    _x, h = sequence()
    for of, state in (
        (normal(B, T, I).transpose(0, 1), h),
        (normal(T, B, 2 * I)[..., ::2], normal(H, B).t()),
        (normal(T, 1, I).expand(T, B, I), normal(1, H).expand(B, H)),
        (normal(1, B, I).expand(T, B, I), torch.zeros((), dtype=F64).expand(B, H)),
    ):
        close(loop(of, state), plain(cell, of, state))
    row = normal(T, 1, I).requires_grad_()
    got, want = (run(row.expand(T, B, I), h)[0] for run in (loop, lambda *a: plain(cell, *a)))
    close(gradients(got, [row]), gradients(want, [row]))


@pytest.mark.parametrize("engine", ENGINES)
def test_batch_first(engine):
    cell = gru()
    x, h = normal(B, T, I), normal(B, H, seed=2)
    out, last = elman.Loop(cell, batch_first=True, engine=engine)(x, h)
    want, end = plain(cell, x.transpose(0, 1), h)
    close((out, last), (want.transpose(0, 1), end))


def test_batch_first_with_options():
    cell = gru()
    x, h = normal(B, T, I), normal(B, H, seed=2)
    flags = (normal(B, T, seed=4) > 0.5).to(F64)
    usual, first = (elman.Loop(cell, batch_first=f, engine="reference") for f in (False, True))
    for name in ("reset", "mask"):
        out, last = first(x, h, **{name: flags})
        want, end = usual(x.transpose(0, 1), h, **{name: flags.t()})
        close((out, last), (want.transpose(0, 1), end))


def test_reverse():
    cell = gru()
    x, h = sequence()
    out, last = elman.Loop(cell, reverse=True, engine="reference")(x, h)
    want, end = plain(cell, x.flip(0), h)
    close((out, last), (want.flip(0), end))


def test_reverse_begins_at_each_sequences_end():
    cell = gru()
    x, h = sequence()
    lengths = torch.tensor([5, 2, 4])
    out, last = elman.Loop(cell, reverse=True, engine="reference")(x, h, lengths=lengths)
    for b, n in enumerate(lengths.tolist()):
        want, end = plain(cell, x[:n, b : b + 1].flip(0), h[b : b + 1])
        close((out[:n, b], last[b]), (want.flip(0)[:, 0], end[0]))
        assert not out[n:, b].any()


def test_reverse_with_a_mask_and_resets():
    cell = gru()
    x, h = sequence()
    flags = (normal(T, B, seed=4) > 0).to(F64)
    usual, back = (elman.Loop(cell, reverse=f, engine="reference") for f in (False, True))
    out, last = back(x, h, mask=flags)
    want, end = usual(x.flip(0), h, mask=flags.flip(0))
    close((out, last), (want.flip(0), end))
    out, last = back(x, h, reset=flags)
    want, end = usual(x.flip(0), h, reset=flags.flip(0))
    close((out, last), (want.flip(0), end))


def test_tuple_and_dict_inputs():
    w = normal(I, H)

    def of_tuple(x: Any, h: Tensor) -> Tensor:
        return torch.tanh(x[0] @ w + h * x[1])

    def of_dict(x: Any, h: Tensor) -> Tensor:
        return torch.tanh(x["a"] @ w + h * x["b"])

    a, b, h = normal(T, B, I), normal(T, B, 1, seed=5), normal(B, H, seed=2)
    for step, x in ((of_tuple, (a, b)), (of_dict, {"a": a, "b": b})):
        loop = elman.Loop(step, engine="reference")
        agrees(loop, step_of(step), h, x)


def test_carry_first():
    cell = gru()

    class Step(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell = cell

        def forward(self, h: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
            h = self.cell(x, h)
            return h, 2 * h

    step = Step()
    loop = elman.Loop(step, carry_first=True, engine="reference")
    agrees(loop, step, *sequence()[::-1])


def test_outputs_that_are_no_states():
    module = made(OutAndState)
    loop = elman.Loop(module, engine="c")

    def step(h: Tensor, x: Tensor) -> Any:
        out, h = module(x, h)
        return h, out

    agrees(loop, step, *sequence()[::-1])
    out, _ = loop(*sequence())
    assert out.keys() == {"logits", "value", "input"}
    assert out["value"].shape == (T, B)


@pytest.mark.parametrize("kind", ["named tuple", "dict", "nested"])
def test_states_in_trees(kind):
    cell = made(nn.LSTMCell, I, H)

    def of_named(x: Tensor, s: Any) -> Any:
        return Both(*cell(x, (s.h, s.c)))

    def of_dict(x: Tensor, s: Any) -> Any:
        h, c = cell(x, (s["h"], s["c"]))
        return {"h": h, "c": c}

    def nested(x: Tensor, s: Any) -> Any:
        h, c = cell(x, (s["a"][0], s["b"].c))
        return {"a": [h], "b": Both(h + s["b"].h, c)}

    a, b, c = (normal(B, H, seed=seed) for seed in (2, 3, 4))
    step, init = {
        "named tuple": (of_named, Both(a, b)),
        "dict": (of_dict, {"h": a, "c": b}),
        "nested": (nested, {"a": [a], "b": Both(b, c)}),
    }[kind]
    loop = elman.Loop(step, engine="reference")
    agrees(loop, step_of(step), init, normal(T, B, I))
    _, last = loop(normal(T, B, I), init)
    assert tree_flatten(last)[1] == tree_flatten(init)[1]
    assert type(last) is type(init)


def test_states_side_by_side():
    class Synaptic(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Linear(I, H)

        def forward(self, x: Tensor, syn: Tensor, mem: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            syn = 0.9 * syn + self.w(x)
            mem = 0.8 * mem + syn
            return torch.sigmoid(mem), syn, mem

    module = made(Synaptic)

    def step(s: Any, x: Tensor) -> Any:
        out, *s = module(x, *s)
        return tuple(s), out

    loop = elman.Loop(module, engine="reference")
    agrees(loop, step, (normal(B, H, seed=2), normal(B, H, seed=3)), normal(T, B, I))


# ---- no state


@pytest.mark.parametrize("kind", [nn.GRUCell, nn.RNNCell, nn.LSTMCell])
@pytest.mark.parametrize("steps", [T, 2, 1])
def test_no_state_of_torchs_cells(kind, steps):
    cell = made(kind, I, H)
    x = normal(steps, B, I)
    zero = torch.zeros(B, H, dtype=F64)
    state = (zero, zero) if kind is nn.LSTMCell else zero
    loop = elman.Loop(cell, engine="reference")
    want = plain(cell, x, state)
    out, last = loop(x)
    close((out, last), want)
    params = [*cell.parameters()]
    close(gradients(out, params), gradients(want[0], params))


def test_no_state_of_a_cell_that_makes_its_own():
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w, self.r = nn.Linear(I, H), nn.Linear(H, H)
            self.h0 = nn.Parameter(torch.randn(H))

        def forward(self, x: Tensor, h: Tensor | None = None) -> tuple[Tensor, Tensor]:
            if h is None:
                h = self.h0.expand(len(x), -1)
            h = torch.tanh(self.w(x) + self.r(h))
            return 2 * h, h

    module = made(Own)
    x = normal(T, B, I)
    out, last = elman.Loop(module, engine="reference")(x)
    rows, h = [], None
    for t in range(T):
        y, h = module(x[t], h)
        rows.append(y)
    close((out, last), (torch.stack(rows), h))
    params = [*module.parameters()]
    close(gradients(out, params), gradients(torch.stack(rows), params))


@pytest.mark.parametrize("option", ["lengths", "reset", "mask"])
def test_no_state_with_options(option):
    cell = gru()
    x = normal(T, B, I)
    value = {
        "lengths": torch.tensor([5, 1, 3]),
        "reset": (normal(T, B, seed=4) > 0).to(F64),
        "mask": torch.tensor([[0, 1, 1], [1, 0, 1], [1, 1, 1], [0, 0, 1], [1, 1, 0]]).to(F64),
    }[option]
    loop = elman.Loop(cell, engine="reference")
    zero = torch.zeros(B, H, dtype=F64)
    close(loop(x, **{option: value}), loop(x, zero, **{option: value}))


def test_no_state_batch_first_and_reverse():
    cell = gru()
    x = normal(B, T, I)
    zero = torch.zeros(B, H, dtype=F64)
    loop = elman.Loop(cell, batch_first=True, reverse=True, engine="reference")
    close(loop(x), loop(x, zero))


# ---- a module


def test_parameters_are_the_cells():
    cell = gru()
    loop = elman.Loop(cell, engine="reference")
    loop(*sequence())
    assert [*loop.parameters()] == [*cell.parameters()]
    assert [name for name, _ in loop.named_modules()] == ["", "cell"]
    assert [*loop.state_dict()] == [f"cell.{name}" for name in cell.state_dict()]
    assert not [*loop.buffers()]


def test_state_dict():
    one, two = (elman.Loop(gru(seed), engine="reference") for seed in (0, 1))
    before = one(*sequence())[0]
    assert not torch.allclose(before, two(*sequence())[0])
    two.load_state_dict(one.state_dict())
    close(two(*sequence())[0], before)
    two.load_state_dict(elman.Loop(gru(1)).state_dict(), assign=True)
    close(two(*sequence()), plain(gru(1), *sequence()))


def test_train_and_eval_reach_dropout():
    torch.manual_seed(0)
    loop = elman.Loop(Gated(0.5).double(), engine="reference")
    x, h = sequence()
    loop.eval()
    assert not loop.cell.drop.training
    close(loop(x, h), plain(loop.cell, x, h))
    close(loop(x, h), loop(x, h))
    loop.train()
    assert loop.cell.drop.training
    assert not torch.allclose(loop(x, h)[0], loop(x, h)[0])
    loop.eval()
    close(loop(x, h), plain(loop.cell, x, h))


def test_other_types_of_numbers():
    loop = elman.Loop(gru(dtype=torch.float32), engine="reference")
    for dtype, how in (
        (torch.float32, {"rtol": 1e-4, "atol": 1e-5}),
        (F64, CALM),
        (torch.float32, {"rtol": 1e-4, "atol": 1e-5}),
        (torch.bfloat16, {"rtol": 3e-2, "atol": 3e-2}),
    ):
        loop.to(dtype)
        out, last = loop(*sequence(dtype=dtype))
        assert out.dtype == last.dtype == dtype
        close((out, last), plain(loop.cell, *sequence(dtype=dtype)), **how)


def test_bfloat16_without_a_warning_or_as_a_loop():
    """bfloat16 runs fused or with a warning, never with other results."""
    loop = elman.Loop(gru(dtype=torch.bfloat16))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", StepWarning)
        out, _ = loop(*sequence(dtype=torch.bfloat16))
    want, _ = plain(loop.cell, *sequence(dtype=torch.bfloat16))
    assert out.dtype == torch.bfloat16
    torch.testing.assert_close(out, want, rtol=3e-2, atol=3e-2)


@pytest.mark.parametrize("cell", [gru, lambda: made(Unreadable)], ids=["fused", "plain"])
@pytest.mark.parametrize("used", [False, True])
@pytest.mark.parametrize("how", ["deepcopy", "pickle", "torch.save"])
def test_copies_have_weights_of_their_own(cell, used, how):
    x, h = sequence()
    fused = cell is gru
    loop = elman.Loop(cell(), engine="reference" if fused else "auto")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", StepWarning)
        if used:
            loop(x, h)
        if how == "deepcopy":
            twin = copy.deepcopy(loop)
        elif how == "pickle":
            twin = pickle.loads(pickle.dumps(loop))
        else:
            file = io.BytesIO()
            torch.save(loop, file)
            file.seek(0)
            twin = torch.load(file, weights_only=False)
        assert not {*twin.parameters()} & {*loop.parameters()}
        with torch.no_grad():
            for p in twin.parameters():
                p.mul_(0.5)
        close(twin(x, h), plain(twin.cell, x, h))
        close(loop(x, h), plain(loop.cell, x, h))
        out = twin(x, h)[0]
        assert all(g is not None for g in torch.autograd.grad(out.sum(), [*twin.parameters()]))


def test_another_cell():
    loop = elman.Loop(gru(0), engine="reference")
    loop(*sequence())
    loop.cell = gru(1)
    close(loop(*sequence()), plain(loop.cell, *sequence()))


@pytest.mark.parametrize("kind", [nn.RNNCell, Unreadable, Gated])
@pytest.mark.parametrize("before", [nn.GRUCell, Unreadable])
def test_a_cell_of_another_kind(before, kind):
    def of(kind: Any) -> Any:
        return made(kind, I, H) if issubclass(kind, nn.RNNCellBase) else made(kind)

    loop = elman.Loop(of(before))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", StepWarning)
        loop(*sequence())
        loop.cell = of(kind)
        agrees(loop, step_of(loop.cell), *sequence()[::-1])


def test_a_target_network():
    """As reinforcement learning has it: a copy of a net that is in use, moved slowly after it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        net = elman.Loop(gru())
        net(*sequence())
        target = copy.deepcopy(net).requires_grad_(False)
        with torch.no_grad():
            for ours, theirs in zip(net.parameters(), target.parameters(), strict=True):
                ours.mul_(2)
                theirs.lerp_(ours, 0.1)
        close(target(*sequence()), plain(target.cell, *sequence()))
        average = torch.optim.swa_utils.AveragedModel(net)
        close(average(*sequence()), plain(net.cell, *sequence()))


@pytest.mark.parametrize("of", [torch.optim.SGD, torch.optim.Adam])
def test_optimizers(of):
    x, h = sequence()
    ends = []
    for looped in (True, False):
        cell = gru()
        run: Any = elman.Loop(cell, engine="reference") if looped else None
        optimizer = of((run or cell).parameters(), lr=0.1)
        losses = []
        for _ in range(4):
            out, _ = run(x, h) if looped else plain(cell, x, h)
            loss = out.square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        ends.append([*losses, *[p.detach() for p in cell.parameters()]])
    close(ends[0], ends[1])
    assert ends[0][3] < ends[0][0]


@pytest.mark.parametrize("engine", ENGINES)
def test_frozen_parameters(engine):
    cell = gru()
    cell.weight_hh.requires_grad_(False)
    loop = elman.Loop(cell, engine=engine)
    agrees(loop, step_of(cell), *sequence()[::-1])
    loop(*sequence())[0].sum().backward()
    assert cell.weight_hh.grad is None
    assert cell.weight_ih.grad is not None
    cell.weight_hh.requires_grad_(True)  # thawed
    agrees(loop, step_of(cell), *sequence()[::-1])
    for p in cell.parameters():
        p.requires_grad_(False)
    assert not loop(*sequence())[0].requires_grad


def test_tied_parameters():
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(H, H), nn.Linear(H, H)
            self.b.weight = self.a.weight

        def forward(self, x: Tensor, h: Tensor) -> Tensor:
            return torch.tanh(self.a(h) + torch.sigmoid(self.b(h) + x))

    module = made(Tied)
    loop = elman.Loop(module, engine="reference")
    agrees(loop, step_of(module), normal(B, H, seed=2), normal(T, B, H))
    module.b.weight = nn.Parameter(normal(H, H, seed=7))  # no longer
    agrees(loop, step_of(module), normal(B, H, seed=2), normal(T, B, H))


def test_forward_hooks_of_the_loop():
    loop = elman.Loop(gru(), engine="reference")
    seen: list[Any] = []
    loop.register_forward_pre_hook(lambda module, args: (2 * args[0], *args[1:]))
    loop.register_forward_hook(lambda module, args, out: seen.append(out) or (out[0] + 1, out[1]))
    x, h = sequence()
    out, _ = loop(x, h)
    want, end = plain(loop.cell, 2 * x, h)
    close(out, want + 1)
    close(seen[0], (want, end))


def test_full_backward_hook_of_the_loop():
    loop = elman.Loop(gru(), engine="reference")
    seen: list[Any] = []
    loop.register_full_backward_hook(lambda module, gx, gy: seen.append((gx, gy)))
    x, h = (v.requires_grad_() for v in sequence())
    loop(x, h)[0].sum().backward()
    (gx, _), (gy, _) = seen[0]
    close(gx, x.grad)
    close(gy, torch.ones_like(gy))


def test_hooks_of_outputs():
    loop = elman.Loop(gru(), engine="c")
    x, h = (v.requires_grad_() for v in sequence())
    found = []
    for run in (loop, lambda x, h: plain(loop.cell, x, h)):
        out, last = run(x, h)
        seen: list[Tensor] = []
        out.register_hook(lambda g, seen=seen: seen.append(g) or 2 * g)
        last.register_hook(lambda g, seen=seen: seen.append(g) or 3 * g)
        grads = torch.autograd.grad((out * out).sum() + last.sum(), [x, h])
        assert len(seen) == 2
        found.append(grads)
    # a loop's last output is its last state, too, there: its hook sees what the loop does not
    assert all(torch.isfinite(g).all() for g in found[0])


def test_retain_grad_and_retain_graph():
    loop = elman.Loop(gru(), engine="c")
    x, h = (v.requires_grad_() for v in sequence())
    out, last = loop(x, h)
    loss = (out * normal(*out.shape, seed=9)).sum() + last.sum()
    first = torch.autograd.grad(loss, [x, h, *loop.parameters()], retain_graph=True)
    second = torch.autograd.grad(loss, [x, h, *loop.parameters()], retain_graph=True)
    close([*first], [*second])
    out.retain_grad()
    loss.backward()
    close(x.grad, first[0])
    close(out.grad, normal(*out.shape, seed=9))
    with pytest.raises(RuntimeError):
        loss.backward()


PARAMETRIZED: dict[str, Callable[[nn.GRUCell], Any]] = {
    "weight_norm": lambda cell: parametrizations.weight_norm(cell, "weight_hh"),
    "orthogonal": lambda cell: parametrizations.orthogonal(cell, "square"),
    "pruning": lambda cell: prune.l1_unstructured(cell, "weight_hh", 0.5),
    "spectral_norm": lambda cell: parametrizations.spectral_norm(cell, "weight_hh").eval(),
}


@pytest.mark.parametrize("used", [False, True])
@pytest.mark.parametrize("name", ["weight_norm", "pruning", "spectral_norm"])
def test_weights_that_are_computed(name, used):
    cell = gru()
    loop = elman.Loop(cell, engine="reference")
    if used:
        loop(*sequence())
    PARAMETRIZED[name](cell)
    cell.eval()
    agrees(loop, step_of(cell), *sequence()[::-1])
    with torch.no_grad():
        for p in cell.parameters():
            p.mul_(1.1)
    agrees(loop, step_of(cell), *sequence()[::-1])


def test_weights_that_are_computed_by_ones_own_module():
    class Half(nn.Module):
        def forward(self, w: Tensor) -> Tensor:
            return 0.5 * torch.tanh(w)

    cell = gru()
    parametrize.register_parametrization(cell, "weight_hh", Half())
    loop = elman.Loop(cell, engine="c")
    agrees(loop, step_of(cell), *sequence()[::-1])
    parametrize.remove_parametrizations(cell, "weight_hh")
    agrees(loop, step_of(cell), *sequence()[::-1])


def test_spectral_norm_in_training_is_refused_or_equal():
    """Each of its calls changes a buffer: a loop has T of them."""
    ends = []
    for looped in (True, False):
        cell = gru()
        torch.manual_seed(0)
        parametrizations.spectral_norm(cell, "weight_hh")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", StepWarning)
            out = (elman.Loop(cell) if looped else functools.partial(plain, cell))(*sequence())
        ends.append([out, *cell.buffers(), gradients(out[0], cell.parameters())])
    close(ends[0], ends[1])


def test_gradients_of_x_and_state_alone():
    cell = gru()
    cell.requires_grad_(False)
    loop = elman.Loop(cell, engine="c")
    for learn in ((True, False), (False, True), (True, True)):
        a, b = (v.requires_grad_(flag) for v, flag in zip(sequence(), learn))
        of = [v for v in (a, b) if v.requires_grad]
        close(gradients(loop(a, b)[0], of), gradients(plain(cell, a, b)[0], of))


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("engine", ENGINES)
def test_without_gradients(mode, engine):
    loop = elman.Loop(gru(), engine=engine)
    with mode():
        out, last = loop(*sequence())
        close((out, last), plain(loop.cell, *sequence()))
    assert not out.requires_grad
    agrees(loop, step_of(loop.cell), *sequence()[::-1])  # and with them, afterwards
    with mode():
        close(loop(*sequence()), plain(loop.cell, *sequence()))
        x, h = sequence()  # made inside
        close(loop(x, h), plain(loop.cell, x, h))


def test_detached_chunks():
    cell = gru()
    loop = elman.Loop(cell, engine="c")
    x, h = normal(12, B, I), normal(B, H, seed=2)
    found = []
    for run in (loop, lambda x, h: plain(cell, x, h)):
        state, total = h, []
        for chunk in x.split(5):  # of 5, 5 and 2
            out, state = run(chunk, state.detach())
            total.append(gradients(out, cell.parameters()))
        found.append([state, total])
    close(found[0], found[1])
    state, outs = h, []
    for chunk in x.split(4):  # not detached
        out, state = loop(chunk, state)
        outs.append(out)
    want, _ = plain(cell, x, h)
    close(gradients(torch.cat(outs), cell.parameters()), gradients(want, cell.parameters()))


def test_ddp(tmp_path):
    cell = gru()
    x, h = sequence()
    want = [g.clone() for g in gradients(plain(cell, x, h)[0], cell.parameters())]
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        net = nn.parallel.DistributedDataParallel(elman.Loop(cell, engine="reference"))
        for _ in range(2):
            net.zero_grad()
            out, _ = net(x, h)
            (out * normal(*out.shape, seed=9)).sum().backward()
            close([p.grad for p in cell.parameters()], want)
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoint(reentrant):
    loop = elman.Loop(gru(), engine="c")
    x, h = (v.requires_grad_() for v in sequence())
    out, _ = checkpoint(loop, x, h, use_reentrant=reentrant)
    weight = normal(*out.shape, seed=9)
    (out * weight).sum().backward()
    of = [x, h, *loop.parameters()]
    close([v.grad for v in of], gradients(plain(loop.cell, x, h)[0], of))


# ---- torch.func


@pytest.mark.parametrize("engine", ["reference", "auto"])
def test_hooks_of_saved_tensors(engine):
    """The first call, which compares, keeps no more for backward than a second: offloading and
    checkpoints count."""
    loop = elman.Loop(gru(), engine=engine)
    counts = []
    for _ in range(2):
        saved: list[Tensor] = []
        with torch.autograd.graph.saved_tensors_hooks(
            lambda v, saved=saved: saved.append(v) or v, lambda v: v
        ):
            loop(*sequence())
        counts.append(len(saved))
    assert counts[0] == counts[1]


def test_functional_call():
    loop = elman.Loop(gru(), engine="reference")
    other = {f"cell.{name}": p.detach() for name, p in gru(1).named_parameters()}
    want = plain(gru(1), *sequence())
    close(functional_call(loop, other, sequence()), want)
    close(loop(*sequence()), plain(loop.cell, *sequence()))
    close(functional_call(loop, other, sequence()), want)


@pytest.mark.parametrize("used", [False, True], ids=["first", "used"])
def test_func_grad(used):
    loop = elman.Loop(gru(), engine="reference")
    x, h = sequence()
    if used:
        loop(x, h)
    params = dict(loop.named_parameters())

    def loss(params: Any, x: Tensor, h: Tensor) -> Tensor:
        return functional_call(loop, params, (x, h))[0].square().sum()

    got = torch.func.grad(loss, argnums=(0, 1, 2))(params, x, h)
    leaves = [p.detach().requires_grad_() for p in (*params.values(), x, h)]
    twin = dict(zip([name.removeprefix("cell.") for name in params], leaves))
    out, _ = plain(lambda x, h: functional_call(loop.cell, twin, (x, h)), *leaves[-2:])
    close([*got[0].values(), *got[1:]], [*torch.autograd.grad(out.square().sum(), leaves)])


@pytest.mark.parametrize("used", [False, True], ids=["first", "used"])
def test_func_vmap(used):
    loop = elman.Loop(gru(), engine="reference")
    xs, hs = normal(4, T, B, I), normal(4, B, H, seed=2)
    if used:
        loop(xs[0], hs[0])
    want = torch.stack([plain(loop.cell, x, h)[0] for x, h in zip(xs, hs)])
    close(torch.vmap(lambda x, h: loop(x, h)[0])(xs, hs), want)
    want = torch.stack([plain(loop.cell, x, hs[0])[0] for x in xs])
    close(torch.vmap(lambda x: loop(x, hs[0])[0])(xs), want)


@pytest.mark.parametrize("used", [False, True], ids=["first", "used"])
def test_an_ensemble_of_weights(used):
    loop = elman.Loop(gru(), engine="reference")
    x, h = sequence()
    if used:
        loop(x, h)
    cells = [gru(seed) for seed in range(3)]
    params, _ = torch.func.stack_module_state(cells)
    params = {f"cell.{name}": p.detach() for name, p in params.items()}
    out = torch.vmap(lambda p: functional_call(loop, p, (x, h))[0])(params)
    close(out, torch.stack([plain(cell, x, h)[0].detach() for cell in cells]))


@pytest.mark.filterwarnings("ignore:.torch.jit.script:DeprecationWarning")  # torch.func.jvp's own
@pytest.mark.parametrize("used", [False, True], ids=["first", "used"])
def test_func_jvp(used):
    loop = elman.Loop(gru(), engine="reference")
    x, h = sequence()
    if used:
        loop(x, h)
    tangent = normal(T, B, I, seed=6), normal(B, H, seed=7)
    got = torch.func.jvp(lambda x, h: loop(x, h)[0], (x, h), tangent)
    close([*got], [*torch.func.jvp(lambda x, h: plain(loop.cell, x, h)[0], (x, h), tangent)])


def test_per_sample_gradients():
    loop = elman.Loop(gru(), engine="reference")
    params = {name: p.detach() for name, p in loop.named_parameters()}
    x, h = sequence()

    def loss(params: Any, x: Tensor, h: Tensor) -> Tensor:
        return functional_call(loop, params, (x.unsqueeze(1), h.unsqueeze(0)))[0].square().sum()

    got = torch.vmap(torch.func.grad(loss), in_dims=(None, 1, 0))(params, x, h)
    for b in range(B):
        out, _ = plain(loop.cell, x[:, b : b + 1], h[b : b + 1])
        want = torch.autograd.grad(out.square().sum(), [*loop.parameters()])
        close([g[b] for g in got.values()], [*want])


@pytest.mark.parametrize("engine", ENGINES)
def test_second_derivatives(engine):
    loop = elman.Loop(gru(), engine=engine)
    x, h = (v.requires_grad_() for v in sequence())
    found = []
    for run in (loop, lambda x, h: plain(loop.cell, x, h)):
        of = [x, h, *loop.parameters()]
        out, last = run(x, h)
        loss = (out * normal(*out.shape, seed=9)).sum() + last.square().sum()
        first = torch.autograd.grad(loss, of, create_graph=True)
        penalty = sum(g.square().sum() for g in first)
        found.append([*first, *torch.autograd.grad(penalty, of)])
    close(found[0], found[1])


# ---- what cannot be run


def test_no_steps():
    loop = elman.Loop(gru(), engine="reference")
    with pytest.raises((InputError, ElmanError), match="step"):
        loop(normal(0, B, I), normal(B, H))
    with pytest.raises((InputError, ElmanError), match="step"):
        loop(normal(0, B, I))


@pytest.mark.filterwarnings("ignore::elman.errors.StepWarning")
def test_no_steps_of_a_plain_loop():
    loop = elman.Loop(made(Unreadable))
    with pytest.raises(ElmanError, match="step"):
        loop(normal(0, B, I), normal(B, H))


def test_inputs_of_other_lengths():
    loop = elman.Loop(lambda x, h: h + x[0] + x[1], engine="reference")
    with pytest.raises(ElmanError, match="steps"):
        loop((normal(T, B, H), normal(T + 1, B, H)), normal(B, H))


def test_what_is_no_tensor():
    loop = elman.Loop(gru(), engine="reference")
    for x in (None, 3, [], "x", torch.tensor(1.0)):
        with pytest.raises((ElmanError, TypeError)):
            loop(x, normal(B, H))


def test_options_that_are_not_there():
    loop = elman.Loop(gru(), engine="reference")
    with pytest.raises(TypeError, match="length"):
        loop(*sequence(), length=3)
    with pytest.raises(ElmanError, match="mask"):
        loop(*sequence(), masked_output="zeros")


@pytest.mark.filterwarnings("ignore::elman.errors.StepWarning")
def test_the_users_own_error_is_shown():
    class Wrong(nn.Module):
        def forward(self, x: Tensor, h: Tensor) -> Tensor:
            return torch.tanh(x @ torch.ones(7, 7, dtype=F64) + h)

    with pytest.raises(StepError, match=r"test_loop\.py:\d+"):
        elman.Loop(Wrong(), engine="reference")(*sequence())
    with pytest.raises((RuntimeError, StepError), match="shape"):
        elman.Loop(Wrong())(*sequence())


def test_repr():
    assert repr(elman.Loop(gru(), reverse=True)).startswith("Loop(\n  reverse=True\n  (cell): GRU")


# ---- threads, processes, memory


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("used", [True, False], ids=["used", "first"])
def test_two_threads(engine, used):
    """Two threads train and predict with one loop and one scan at once."""
    cell = gru()
    loop = elman.Loop(cell, engine=engine)
    step = step_of(cell)
    x, h = sequence()
    if used:
        loop(x, h)
        elman.scan(step, h, x, engine=engine)
    want = plain(cell, x, h)[0].detach()
    grads = gradients(plain(cell, x, h)[0], cell.parameters())
    errors: list[BaseException] = []
    barrier = threading.Barrier(4)

    def work(kind: int) -> None:
        try:
            barrier.wait(60)
            for _ in range(6):
                with torch.no_grad() if kind % 2 else contextlib.nullcontext():
                    if kind < 2:
                        out = loop(x, h)[0]
                    else:
                        out = elman.scan(step, h, x, engine=engine)[1]
                close(out.detach(), want)
                assert out.requires_grad == (not kind % 2)
                if kind % 2 == 0:
                    close(gradients(out, cell.parameters()), grads)
        except BaseException as error:
            errors.append(error)

    workers = [threading.Thread(target=work, args=(kind,)) for kind in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(120)
    assert not errors, errors[0]


def test_another_thread_computes_while_a_step_is_traced():
    """Tracing a step changes nothing for other threads: random numbers, modes, distributions."""
    stop, errors = threading.Event(), list[BaseException]()

    def work() -> None:
        try:
            w = normal(H, H).requires_grad_()
            generator = torch.Generator().manual_seed(0)
            while not stop.is_set():
                a = torch.randn(4, H, generator=generator, dtype=F64)
                out = torch.tanh(a @ w).sum()
                out.backward()
                with pytest.raises(ValueError, match="scale"):
                    torch.distributions.Normal(torch.zeros(2), -torch.ones(2), validate_args=True)
        except BaseException as error:
            errors.append(error)

    worker = threading.Thread(target=work)
    worker.start()
    try:
        for seed in range(8):
            elman.Loop(made(Gated, seed=seed), engine="reference")(*sequence())
    finally:
        stop.set()
        worker.join(60)
    assert not errors, errors[0]


def test_numbers_drawn_are_those_of_the_seed():
    """Tracing and judging draw no numbers of the user's."""
    torch.manual_seed(0)
    want = torch.rand(3)
    loop = elman.Loop(gru(), engine="reference")
    torch.manual_seed(0)
    loop(*sequence())
    close(torch.rand(3), want)


def test_a_fork_after_use():
    if not hasattr(os, "fork"):
        pytest.skip("no fork")
    loop = elman.Loop(gru(), engine="c")
    x, h = sequence()
    want = loop(x, h)[0].detach()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pid = os.fork()
    if not pid:  # pragma: no cover
        status = 1
        try:
            torch.set_num_threads(1)
            with torch.no_grad():
                same = torch.allclose(loop(x, h)[0], want)
                other = elman.Loop(gru(1), engine="reference")(x, h)[0]
            grads = loop(x, h)[0].sum()
            status = 0 if same and torch.isfinite(other).all() and grads.requires_grad else 2
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def entries() -> int:
    from elman.steps.binding import Entry

    gc.collect()
    return sum(isinstance(o, Entry) for o in gc.get_objects())


def test_calls_leave_nothing_behind(monkeypatch):
    cell = gru()
    loop = elman.Loop(cell, engine="reference")
    x, h = sequence()
    loop(x, h)
    with torch.no_grad():
        loop(x, h)
    before = entries()
    with traces(monkeypatch) as count:
        for _ in range(5):
            loop(x, h)[0].sum().backward()
            with torch.no_grad():
                loop(x, h)
    assert not count
    assert entries() == before


def test_a_loop_that_is_gone_leaves_nothing_behind():
    x, h = sequence()
    before = entries()
    for seed in range(3):
        loop = elman.Loop(gru(seed), engine="reference")
        loop(x, h)
        del loop
    assert entries() == before


@pytest.mark.parametrize("what", ["lambda", "method", "partial", "new modules"])
def test_no_step_is_traced_twice(monkeypatch, what):
    cell = gru()
    x, h = sequence()

    class Own:
        def step(self, h: Tensor, x: Tensor) -> Any:
            h = cell(x, h)
            return h, h

    def with_factor(k: float, h: Tensor, x: Tensor) -> Any:
        h = k * cell(x, h)
        return h, h

    own = Own()
    with traces(monkeypatch) as count:
        for seed in range(4):
            step: Any = {
                "lambda": lambda h, x, cell=cell: (cell(x, h),) * 2,
                "method": own.step,
                "partial": functools.partial(with_factor, 0.5),
                "new modules": functools.partial(with_factor, 0.5),
            }[what]
            if what == "new modules":
                cell = gru(seed)
            elman.scan(step, h, x, engine="reference")
            if not seed:
                first = len(count)
    assert len(count) == first, f"traced {len(count)} times"


def test_an_unreadable_step_is_not_traced_in_each_call(monkeypatch):
    loop = elman.Loop(made(Unreadable))
    with warnings.catch_warnings(), traces(monkeypatch) as count:
        warnings.simplefilter("ignore", StepWarning)
        loop(*sequence())
        first = len(count)
        for _ in range(3):
            loop(*sequence())
    assert len(count) == first


def test_states_are_not_written_to():
    loop = elman.Loop(gru(), engine="c")
    x, h = sequence()
    kept = x.clone(), h.clone()
    out, last = loop(x, h)
    last.detach().zero_()
    out2, _ = loop(x, h)
    close((x, h), kept)
    close(out2, out)


def test_values_inside_a_step_are_its_outputs():
    """Names that a step has no option for say what to write."""
    loop, x, h = elman.Loop(torch.nn.GRUCell(3, 4)), torch.randn(5, 2, 3), torch.zeros(2, 4)
    with pytest.raises(InputError, match=r'a step has no outputs=(.|\n)*return {"y": y'):
        loop(x, h, outputs="states")
    with pytest.raises(InputError, match=r"a step has no static=(.|\n)*may be anything"):
        loop(x, h, static=x)


class Doubled(torch.autograd.Function):
    """Twice a value, which states its own gradient."""

    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, d):
        return 2 * d


def test_values_that_are_written_where_a_condition_holds():
    """old[condition] = number, and sums, products, functions of old[condition], are torch.where;
    how many values a condition selects no formula knows."""

    def step(x: Tensor, m: Tensor, how: str = "") -> tuple[Tensor, Tensor]:
        m = 0.9 * m + x
        fired, m = (m > 0.3).to(m.dtype), m.clone()
        if not how:
            m[fired > 0] = 0.25
        elif how == "less":
            m[fired > 0] -= 1.0
        elif how == "function":
            over = m > 0.2
            m[over] = torch.sqrt(m[over] - 0.1 * fired[over]) + torch.log(m[over])
        elif how == "other":
            m[fired > 0] = m[m > 0.3] * 0.5
        elif how == "own gradient":
            m[fired > 0] = Doubled.apply(m[fired > 0])
        else:
            m[fired > 0] = m[fired > 0].mean()
        return fired, m

    x, m = torch.randn(6, 2, 3), torch.zeros(2, 3)
    for how in ("", "less", "function"):
        one = functools.partial(step, how=how)
        given, again = (x.clone().requires_grad_() for _ in range(2))
        _, want = plain(lambda x, m, one=one: one(x, m)[1], given, m)
        with warnings.catch_warnings():
            warnings.simplefilter("error", StepWarning)
            got = elman.Loop(one)(again, m)[1]
        torch.testing.assert_close(got, want)
        torch.autograd.backward((got.square().sum(), want.square().sum()))
        torch.testing.assert_close(given.grad, again.grad)
    for how in ("mean", "other", "own gradient"):
        with pytest.warns(StepWarning, match=r"values that a condition sel(.|\n)*torch.where"):
            elman.Loop(functools.partial(step, how=how))(x, m)


def test_norms_without_eps():
    """RMSNorm's default eps is that of the step's dtype, also where it is compared in float64."""
    torch.manual_seed(0)
    norm, x, h = torch.nn.RMSNorm(4), torch.randn(5, 3, 4), torch.randn(3, 4)

    def step(x, h):
        h = torch.tanh(norm(h * 1e-3) + norm(x))
        return h, h

    ys, last = elman.Loop(step)(x, h)
    for row in x:
        _, h = step(row, h)
    torch.testing.assert_close(last, h)
    torch.testing.assert_close(ys[-1], h)

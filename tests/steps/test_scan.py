"""elman.scan: carries, inputs and outputs of every form; options of a call; random numbers; what
cannot be read."""

from __future__ import annotations

import contextlib
import copy
import gc
import threading
import warnings
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
import torch.distributions as td
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812  # torch's own habit
from torch.utils._pytree import tree_flatten, tree_map

import elman
from elman.errors import ElmanError, InputError, ShapeError, StepError, StepWarning
from step_runs import STEPS_CLOSE, differences, found_by, plain_scan

F64 = torch.float64
T, B, I, H = 5, 3, 4, 6
HERE = Path(__file__).name
CALM = {"rtol": STEPS_CLOSE[F64][0], "atol": STEPS_CLOSE[F64][1]}
ENGINES = ["reference", "c"]


def normal(*shape: int, seed: int = 1, dtype: torch.dtype = F64) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=F64).to(dtype)


def scan_on(engine: str, **options: Any) -> Any:
    def scan(step: Any, init: Any, xs: Any, **how: Any) -> tuple[Any, Any]:
        return elman.scan(step, init, xs, engine=engine, **options, **how)

    return scan


fused = scan_on("reference")


def agrees(
    step: Any,
    init: Any,
    xs: Any,
    parameters: Sequence[Tensor] = (),
    engine: str = "reference",
    **how: Any,
) -> None:
    want = found_by(plain_scan, step, init, xs, parameters, **how)
    got = found_by(scan_on(engine), step, init, xs, parameters, **how)
    off = differences(got, want, STEPS_CLOSE[F64][0])
    assert not off, "\n".join(off)


def close(got: Any, want: Any, **how: Any) -> None:
    a, spec = tree_flatten(got)
    b, other = tree_flatten(want)
    assert spec == other
    for one, two in zip(a, b, strict=True):
        torch.testing.assert_close(one, two, **(how or CALM))


def same_types(step: Any, init: Any, xs: Any) -> None:
    """Values, types of numbers and shapes are those of the plain loop."""
    close(fused(step, init, xs), plain_scan(step, init, xs))


def gradients(out: Tensor, of: Any) -> list[Tensor]:
    return [*torch.autograd.grad((out * normal(*out.shape, seed=9).to(out.dtype)).sum(), [*of])]


W, R = normal(I, H, seed=11), normal(H, H, seed=12) / 3


def rnn(h: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    h = torch.tanh(x @ W + h @ R)
    return h, h


class Both(NamedTuple):
    h: Tensor
    c: Any


# ---- carries


@pytest.mark.parametrize("engine", ENGINES)
def test_a_counter_and_a_flag(engine):
    def step(s: Any, x: Tensor) -> Any:
        h, count, seen = s
        h = torch.where(seen.unsqueeze(-1), h, torch.zeros_like(h)) + torch.tanh(x)
        seen = seen | (x.sum(-1) > 0.5)
        count = count + seen.long()
        return (h, count, seen), (h * count.unsqueeze(-1), count, seen)

    init = (normal(B, H), torch.zeros(B, dtype=torch.long), torch.zeros(B, dtype=torch.bool))
    agrees(step, init, normal(T, B, H, seed=2), engine=engine)
    got = scan_on(engine)(step, init, normal(T, B, H, seed=2))
    close(got, plain_scan(step, init, normal(T, B, H, seed=2)))


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.uint8, torch.bool])
def test_types_of_counters(dtype):
    def step(s: Any, x: Tensor) -> Any:
        h, n = s
        n = (n + 1).to(dtype) if dtype is not torch.bool else ~n
        return (torch.tanh(h + x), n), (h * n, n)

    same_types(step, (normal(B, H), torch.zeros(B, 1, dtype=dtype)), normal(T, B, H, seed=2))


def test_a_large_counter_stays_exact():
    def step(s: Any, x: Tensor) -> Any:
        h, n = s
        n = n * 3 + 1
        return (torch.tanh(h + x), n), n

    init = (normal(B, H, dtype=torch.float32), torch.full((B,), 2**24 + 1))
    xs = normal(T, B, H, dtype=torch.float32)
    try:
        _, ns = fused(step, init, xs)
    except StepError:
        return  # refused: a float32 holds no such number
    assert torch.equal(ns, plain_scan(step, init, xs)[1])


def test_two_types_of_floats():
    def step(s: Any, x: Tensor) -> Any:
        h, total = s
        h = torch.tanh(h + x)
        return (h, total + h.double().sum(-1)), (h, total)

    init = (normal(B, H, dtype=torch.float32), torch.zeros(B, dtype=F64))
    xs = normal(T, B, H, dtype=torch.float32)
    close(fused(step, init, xs), plain_scan(step, init, xs), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("engine", ENGINES)
def test_carries_without_axes(engine):
    def step(s: Tensor, x: Tensor) -> Any:
        s = 0.5 * s + torch.tanh(x)
        return s, s * s

    agrees(step, torch.tensor(0.3, dtype=F64), normal(T), engine=engine)


def test_a_carry_without_axes_and_inputs_of_a_batch():
    def step(s: Tensor, x: Tensor) -> Any:
        s = 0.5 * s + torch.tanh(x).mean()
        return s, s * x

    agrees(step, torch.tensor(0.3, dtype=F64), normal(T, B))


def test_a_carry_without_axes_next_to_one_of_a_batch():
    def step(s: Any, x: Tensor) -> Any:
        h, k = s
        h = torch.tanh(k * h + x)
        return (h, 0.9 * k), h

    agrees(step, (normal(B, H), torch.tensor(0.7, dtype=F64)), normal(T, B, H, seed=2))


def test_a_carry_of_the_whole_batch():
    def step(s: Any, x: Tensor) -> Any:
        h, mean = s
        h = torch.tanh(h + x - mean)
        return (h, 0.9 * mean + 0.1 * h.mean(0)), h

    agrees(step, (normal(B, H), torch.zeros(H, dtype=F64)), normal(T, B, H, seed=2))


@pytest.mark.parametrize("engine", ENGINES)
def test_unbatched(engine):
    def step(h: Tensor, x: Tensor) -> Any:
        h = torch.tanh(W.t() @ x + R @ h)
        return h, h.sum()

    agrees(step, normal(H), normal(T, I), engine=engine)


def test_a_batch_of_one_and_one_step():
    agrees(rnn, normal(1, H), normal(T, 1, I))
    agrees(rnn, normal(B, H), normal(1, B, I))
    agrees(rnn, normal(1, H), normal(1, 1, I))


@pytest.mark.parametrize("B", [1, 2, 3])
@pytest.mark.parametrize("layers", [1, 2])
def test_samples_along_the_second_axis(B, layers):
    """A state [layers, B, H], whatever B is, and rows of samples that are closed over."""
    gru, memory = nn.GRU(3, 4, num_layers=layers).double(), normal(B, 5, 3, seed=2)

    def step(h: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        y, h = gru(x[None] + memory.mean(1)[None], h)
        return h, y[0]

    agrees(step, normal(layers, B, 4), normal(6, B, 3), [*gru.parameters()])


def test_matrices_and_batches_of_two_axes():
    def step(s: Tensor, x: Any) -> Any:
        k, v = x
        s = 0.9 * s + k.unsqueeze(-1) * v.unsqueeze(-2)
        return s, torch.einsum("bij,bi->bj", s, k)

    agrees(step, normal(B, I, H), (normal(T, B, I), normal(T, B, H, seed=3)))

    def two(h: Tensor, x: Tensor) -> Any:
        h = torch.tanh(h @ R + x)
        return h, h

    agrees(two, normal(2, B, H), normal(T, 2, B, H, seed=3))


def test_named_tuples_and_dicts_and_lists():
    def step(s: Any, x: Any) -> Any:
        h = torch.tanh(x["a"] @ W + s.h @ R)
        c = {"m": s.c["m"] + h, "n": [x["b"][0] * s.c["n"][0]]}
        return Both(h, c), {"y": (h, c["n"][0]), "z": [x["b"][0]]}

    init = Both(normal(B, H), {"m": normal(B, H, seed=2), "n": [normal(B, 1, seed=3)]})
    xs = {"a": normal(T, B, I, seed=4), "b": (normal(T, B, 1, seed=5),)}
    agrees(step, init, xs)
    last, ys = fused(step, init, xs)
    assert type(last) is Both
    assert ys.keys() == {"y", "z"}


def test_a_carry_that_is_handed_on():
    def step(s: Any, x: Tensor) -> Any:
        h, k, other = s
        h = torch.tanh(k * h + x)
        return (h, k, h), other

    agrees(step, (normal(B, H), normal(B, H, seed=2), normal(B, H, seed=3)), normal(T, B, H))


@pytest.mark.parametrize("engine", ["reference", "auto"])
@pytest.mark.parametrize("name", ["itself", "of itself"])
def test_a_carry_that_is_handed_on_and_an_output(name, engine):
    def step(s: Any, x: Tensor) -> Any:
        h, k = s
        h = torch.tanh(h + x)
        return (h, k), k if name == "itself" else 2 * k

    agrees(step, (normal(B, H), normal(B, H, seed=2)), normal(T, B, H), engine=engine)


def test_carries_that_are_shifted():
    def step(s: Any, x: Tensor) -> Any:
        a, b, c = s
        return (x, a, b), torch.tanh(a + c)

    agrees(step, tuple(normal(B, H, seed=k) for k in range(3)), normal(T, B, H))


def test_carries_that_change_places():
    def step(s: Any, x: Tensor) -> Any:
        a, b = s
        return (b, torch.tanh(a + x)), a

    agrees(step, (normal(B, H), normal(B, H, seed=2)), normal(T, B, H))


def test_one_tensor_as_two_carries():
    def step(s: Any, x: Tensor) -> Any:
        a, b = s
        return (torch.tanh(a + x), torch.sigmoid(b - x)), a * b

    h = normal(B, H).requires_grad_()
    found = [run(step, (h, h), normal(T, B, H))[1] for run in (fused, plain_scan)]
    close(gradients(found[0], [h]), gradients(found[1], [h]))


FORMS: dict[str, Any] = {
    "grows": lambda s, x: ((s[0], s[0], x), x),
    "is wider": lambda s, x: ((torch.cat([s[0], x], -1),), x),
    "is narrower": lambda s, x: ((s[0][..., :1],), x),
    "is narrower, and fits": lambda s, x: ((s[0].sum(-1, keepdim=True),), x),
    "has another axis": lambda s, x: ((s[0].unsqueeze(-1),), x),
}


@pytest.mark.parametrize("form", FORMS)
def test_a_carry_of_another_form_is_refused(form):
    with pytest.raises(StepError):
        fused(FORMS[form], (normal(B, H),), normal(T, B, H))


def test_a_carry_of_another_type():
    """Types of the last carry are the plain loop's, or the step is refused."""

    def step(h: Tensor, x: Tensor) -> Any:
        return torch.tanh(h + x).float(), h

    try:
        last, _ys = fused(step, normal(B, H), normal(T, B, H, dtype=torch.float32))
    except StepError:
        return
    h, rows = normal(B, H), []
    for t in range(T):
        rows.append(h)
        h = torch.tanh(h + normal(T, B, H, dtype=torch.float32)[t]).float()
    assert last.dtype == h.dtype
    close(last, h, rtol=1e-5, atol=1e-6)


def test_no_carry_at_all():
    def step(s: Any, x: Tensor) -> Any:
        return s, torch.tanh(x)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", StepWarning)
        last, ys = elman.scan(step, (), normal(T, B, H))
    assert last == ()
    close(ys, torch.tanh(normal(T, B, H)))


# ---- inputs


def test_axes_of_steps():
    for dim in (1, -2, 2):
        x = normal(T, B, I).movedim(0, dim)
        last, ys = elman.scan(rnn, normal(B, H), x, dim=dim, engine="reference")
        want, rows = plain_scan(rnn, normal(B, H), normal(T, B, I))
        close((last, ys), (want, rows.movedim(0, dim)))


def test_reverse():
    agrees(rnn, normal(B, H), normal(T, B, I), reverse=True)


def test_an_axis_of_steps_with_outputs_without_that_axis():
    def step(h: Tensor, x: Tensor) -> Any:
        h = torch.tanh(x @ W + h @ R)
        return h, h.sum(-1)

    _, ys = elman.scan(step, normal(B, H), normal(B, T, I), dim=1, engine="reference")
    close(ys, plain_scan(step, normal(B, H), normal(B, T, I).transpose(0, 1))[1].t())


def test_inputs_without_a_batch():
    def step(h: Tensor, x: Any) -> Any:
        a, t, dt = x
        h = torch.tanh(h * dt + a @ W + t)
        return h, h

    agrees(step, normal(B, H), (normal(T, B, I), normal(T, H, seed=2), normal(T, seed=3)))


def test_integer_and_boolean_inputs():
    table = normal(7, H).requires_grad_()

    def step(h: Tensor, x: Any) -> Any:
        token, done = x
        h = torch.where(done.unsqueeze(-1), torch.zeros_like(h), h)
        h = torch.tanh(h + F.embedding(token, table))
        return h, h

    tokens = torch.arange(T * B).reshape(T, B) % 7
    agrees(step, normal(B, H), (tokens, tokens % 3 == 0), [table])


def test_a_place_of_each_sample():
    """What is computed of the size of the batch alone."""

    def step(h: Tensor, x: Tensor) -> Any:
        h = torch.tanh(h + x * torch.arange(len(h)).unsqueeze(-1))
        return h, h

    for engine in ("reference", "auto"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", StepWarning)
            try:
                agrees(step, normal(B, H), normal(T, B, H), engine=engine)
            except StepError:
                assert engine != "auto"


def test_a_failure_of_any_kind_is_a_plain_loop_under_auto(monkeypatch):
    """What goes wrong while a step is read, or compared, is no error of a user of engine auto."""
    from elman.steps import judge

    def fails(*args: Any, **kwargs: Any) -> Any:
        raise KeyError("s1")

    monkeypatch.setattr(judge, "check", fails)

    def step(h: Tensor, x: Tensor) -> Any:
        h = torch.tanh(0.5 * h + x)
        return h, h

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", StepWarning)
        agrees(step, normal(B, H), normal(T, B, H), engine="auto")
    with pytest.raises(StepError):
        fused(step, normal(B, H), normal(T, B, H))


def test_tensors_of_earlier_calls_are_let_go():
    """A step that closes over what is computed for each call keeps at most the last one alive."""
    alive = []
    for seed in range(4):
        memory = torch.tanh(normal(B, H, seed=seed).requires_grad_())

        def step(h: Tensor, x: Tensor, memory: Tensor = memory) -> Any:
            h = torch.tanh(h + x * memory)
            return h, h

        fused(step, normal(B, H), normal(T, B, H))[1].sum().backward()
        alive.append(weakref.ref(memory))
        del memory, step
    gc.collect()
    assert [of() is not None for of in alive[:-1]] == [False] * 3


def test_steps_as_an_input():
    def step(h: Tensor, x: Any) -> Any:
        t, a = x
        h = torch.where(t % 2 == 0, torch.tanh(h + a), h)
        return h, h

    agrees(step, normal(B, H), (torch.arange(T), normal(T, B, H)))


@pytest.mark.parametrize("engine", ["reference", "auto"])
def test_inputs_that_are_none(engine):
    """As in jax, None has no tensors and is handed on; or it is refused by name."""

    def step(h: Tensor, x: Any) -> Any:
        a, none = x
        assert none is None
        h = torch.tanh(a @ W + h @ R)
        return h, h

    try:
        got = elman.scan(step, normal(B, H), (normal(T, B, I), None), engine=engine)
    except InputError:
        return
    close(got, plain_scan(rnn, normal(B, H), normal(T, B, I)))


def test_inputs_that_are_none_of_a_loop():
    def step(x: Any, h: Tensor) -> Tensor:
        return torch.tanh(x[0] @ W + h @ R)

    try:
        got = elman.Loop(step, engine="reference")((normal(T, B, I), None), normal(B, H))
    except InputError:
        return
    close(got, plain_scan(rnn, normal(B, H), normal(T, B, I))[::-1])


def test_states_that_are_none():
    def step(s: Any, x: Tensor) -> Any:
        h, none = s
        h = torch.tanh(x @ W + h @ R)
        return (h, none), h

    try:
        (last, none), ys = fused(step, (normal(B, H), None), normal(T, B, I))
    except ElmanError:
        return
    assert none is None
    close((last, ys), plain_scan(rnn, normal(B, H), normal(T, B, I)))


def test_states_that_are_numbers():
    def step(s: Any, x: Tensor) -> Any:
        h, k = s
        h = torch.tanh(x @ W + k * (h @ R))
        return (h, k), h

    try:
        (last, k), ys = fused(step, (normal(B, H), 1.0), normal(T, B, I))
    except ElmanError:
        return
    assert k == 1.0
    close((last, ys), plain_scan(rnn, normal(B, H), normal(T, B, I)))


@pytest.mark.parametrize("engine", ["reference", "auto"])
def test_no_steps(engine):
    with pytest.raises(ElmanError, match="step"):
        elman.scan(rnn, normal(B, H), normal(0, B, I), engine=engine)


def test_no_steps_say_nothing_of_later_calls():
    def step(h: Tensor, x: Tensor) -> Any:
        h = torch.tanh(x @ W - h @ R)
        return h, h

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", StepWarning)
        for engine in ("auto", "reference"):
            with contextlib.suppress(Exception):  # another test's
                elman.scan(step, normal(B, H), normal(0, B, I), engine=engine)
    agrees(step, normal(B, H), normal(T, B, I), engine="auto")
    agrees(step, normal(B, H), normal(T, B, I))


def test_what_is_no_sequence():
    for xs in (None, [], 3, torch.tensor(1.0), {"a": 1}):
        with pytest.raises(ElmanError, match="xs"):
            elman.scan(rnn, normal(B, H), xs)
    with pytest.raises(ShapeError, match="steps"):
        elman.scan(rnn, normal(B, H), (normal(T, B, I), normal(T + 1, B, I)))


def test_expanded_and_strided():
    for x, h in (
        (normal(T, 1, I).expand(T, B, I), normal(1, H).expand(B, H)),
        (normal(I, B, T).permute(2, 1, 0), normal(H, B).t()),
        (normal(2 * T, B, 2 * I)[::2, :, ::2], normal(B, 2 * H)[:, ::2]),
        (normal(1, 1, 1).expand(T, B, I), torch.zeros((), dtype=F64).expand(B, H)),
    ):
        close(elman.scan(rnn, h, x, engine="c"), plain_scan(rnn, h, x))


# ---- operations


@pytest.mark.parametrize(
    "op",
    [
        lambda v: torch.logaddexp(v, 0.5 * v),
        lambda v: F.prelu(v + 0.1234, torch.tensor([0.2], dtype=F64)),
        lambda v: F.glu(torch.cat([v, v], -1), -1),
        lambda v: torch.triu(v.unsqueeze(1) * v.unsqueeze(2), 1).sum(1),
        lambda v: F.softshrink(v) + F.mish(v) + F.celu(v),
        lambda v: torch.threshold(v, 0.1234, -0.2),
        lambda v: v * torch.sgn(v + 0.1234),
    ],
    ids=["logaddexp", "prelu", "glu", "triu", "shrink", "threshold", "sgn"],
)
def test_operations_without_a_row_are_taken_apart_by_torch(op):
    def step(h: Tensor, x: Tensor) -> Any:
        h = torch.tanh(op(h + x))
        return h, h

    agrees(step, normal(B, H), normal(T, B, H, seed=2))


def test_a_new_tensor_of_one_number():
    def step(h: Tensor, x: Tensor) -> Any:
        h = torch.tanh(h + x) * x.new_full(x.shape, 0.3)
        return h, h

    agrees(step, normal(B, H), normal(T, B, H, seed=2))


@pytest.mark.parametrize(
    "move",
    [
        lambda v: v.transpose(1, 2),
        lambda v: v.movedim(1, -1),
        lambda v: v.flip(1, 3),
        lambda v: v.roll((1, -1), (2, 3)),
        lambda v: torch.cat([v[..., 1:], v.mean(-1, keepdim=True), v[..., :1]], -1),
        lambda v: torch.cat([v, v.amax(2, keepdim=True).expand_as(v)], 2),
        lambda v: v.mean(-1, keepdim=True).expand_as(v).flatten(2),
        lambda v: v[:, :, [2, 0, 0]][..., ::2],
        lambda v: v.flatten(2).unflatten(2, (2, 6)).transpose(1, 3),
    ],
    ids=["transpose", "movedim", "flip", "roll", "cat", "join", "repeat", "index", "view"],
)
@pytest.mark.parametrize("linear", [True, False], ids=["vector", "slices"])
def test_units_of_many_axes_are_moved(move, linear):
    table = normal(24, 24, seed=3) / 5

    def step(h: Tensor, x: Tensor) -> Any:
        h = torch.tanh(h + x)
        moved = move((h.flatten(1) @ table).view(-1, 2, 3, 4) if linear else h)
        return h + 0.1 * moved.flatten(1).sum(1).view(-1, 1, 1, 1), moved

    agrees(step, normal(B, 2, 3, 4), normal(T, B, 2, 3, 4, seed=2))


# ---- outputs


OUTPUTS: dict[str, Callable[[Any, Any], Any]] = {
    "the input": lambda h, x: (torch.tanh(x @ W + h @ R), x),
    "a part of the input": lambda h, x: (torch.tanh(x @ W + h @ R), x[..., :2]),
    "the carry before": lambda h, x: (torch.tanh(x @ W + h @ R), h),
    "the same tensor twice": lambda h, x: ((h := torch.tanh(x @ W + h @ R)), (h, h, [h])),
    "a view of the carry": lambda h, x: ((h := torch.tanh(x @ W + h @ R)), h.unflatten(-1, (2, 3))),
    "a constant": lambda h, x: (torch.tanh(x @ W + h @ R), torch.ones(2, dtype=F64)),
    "a constant of each sample": lambda h, x: (torch.tanh(x @ W + h @ R), torch.zeros_like(h)),
    "a weight": lambda h, x: (torch.tanh(x @ W + h @ R), W),
    "a function of weights": lambda h, x: (torch.tanh(x @ W + h @ R), (W * W).sum(0)),
    "a function of inputs": lambda h, x: (torch.tanh(x @ W + h @ R), x.sort(-1).values),
    "a flag": lambda h, x: ((h := torch.tanh(x @ W + h @ R)), h > 0),
    "a place": lambda h, x: ((h := torch.tanh(x @ W + h @ R)), h.argmax(-1)),
    "a number of the batch": lambda h, x: ((h := torch.tanh(x @ W + h @ R)), h.mean()),
    "nothing": lambda h, x: (torch.tanh(x @ W + h @ R), ()),
    "detached": lambda h, x: ((h := torch.tanh(x @ W + h @ R)), h.detach()),
    "float32": lambda h, x: ((h := torch.tanh(x @ W + h @ R)), h.float()),
}


@pytest.mark.parametrize("name", OUTPUTS)
def test_outputs(name):
    step = OUTPUTS[name]
    init, xs = normal(B, H), normal(T, B, I)
    if name == "nothing":
        last, ys = fused(step, init, xs)
        assert ys == ()
        close(last, plain_scan(rnn, init, xs)[0])
        return
    close(fused(step, init, xs), plain_scan(step, init, xs))
    agrees(step, init, xs)


@pytest.mark.parametrize("plain", [False, True], ids=["fused", "plain"])
def test_outputs_that_are_no_tensors(plain):
    def step(h: Tensor, x: Tensor) -> Any:
        h = torch.tanh(x @ W + (spectrum(h) if plain else h) @ R)
        return h, {"y": h, "none": None, "three": 3, "yes": True, "half": 0.5, "word": "a"}

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", StepWarning)
        _, ys = elman.scan(
            step, normal(B, H), normal(T, B, I), engine="auto" if plain else "reference"
        )
    assert ys.keys() == {"y", "none", "three", "yes", "half", "word"}
    assert ys["none"] is None
    assert ys["word"] == "a"
    for name, value in (("three", 3), ("yes", True), ("half", 0.5)):
        assert isinstance(ys[name], type(value))
        assert ys[name] == value


def test_an_output_may_be_written_to():
    h, x = normal(B, H), normal(T, B, I)
    last, (ys, xs) = fused(lambda h, x: ((h := torch.tanh(x @ W + h @ R)), (h, x)), h, x)
    want = plain_scan(rnn, h, x)
    with torch.no_grad():
        last.zero_()
        ys.mul_(2)
        xs.zero_()
    close(x, normal(T, B, I))  # the plain loop's stacked rows are a copy
    close(ys, 2 * want[1])


def test_a_carry_handed_on_may_be_written_to():
    k = normal(B, H)
    (_, same), _ = fused(lambda s, x: ((torch.tanh(s[0] + x), s[1]), s[0]), (k, k), normal(T, B, H))
    close(same, k)


def test_a_step_that_does_not_read_its_input():
    agrees(lambda h, x: ((h := torch.tanh(h @ R)), h), normal(B, H), normal(T, B, I))
    agrees(lambda h, x: ((h := torch.tanh(h @ R)), h), normal(B, H), torch.arange(T))


def test_a_step_that_does_not_read_its_state():
    agrees(lambda h, x: ((h := torch.tanh(x @ W)), h), normal(B, H), normal(T, B, I))


# ---- torch.func


@pytest.mark.parametrize("engine", ENGINES)
def test_second_derivatives(engine):
    w = R.clone().requires_grad_()
    found = []
    for run in (scan_on(engine), plain_scan):
        x, h = normal(T, B, I).requires_grad_(), normal(B, H).requires_grad_()

        def step(h: Tensor, x: Tensor) -> Any:
            h = torch.tanh(x @ W + h @ w)
            return h, h.square()

        last, ys = run(step, h, x)
        loss = (ys * normal(T, B, H, seed=9)).sum() + last.sum()
        first = torch.autograd.grad(loss, [x, h, w], create_graph=True)
        second = torch.autograd.grad(sum(g.square().sum() for g in first), [x, h, w])
        found.append([*first, *second])
    close(found[0], found[1])


@pytest.mark.filterwarnings("ignore:.torch.jit.script:DeprecationWarning")  # torch.func.jvp's own
@pytest.mark.parametrize("name", ["grad", "jvp", "vjp", "vmap", "jacrev", "hessian"])
def test_transforms_of_functions(name):
    x, h = normal(T, B, I), normal(B, H, seed=2)

    def of(run: Any) -> Any:
        def value(x: Tensor, h: Tensor, w: Tensor) -> Tensor:
            def step(h: Tensor, x: Tensor) -> Any:
                h = torch.tanh(x @ W + h @ w)
                return h, h

            return run(step, h, x)[1]

        return value

    def ensemble(f: Any) -> Any:
        def both(x: Tensor, h: Tensor, w: Tensor) -> Tensor:
            xs, ws = torch.stack([x, 2 * x]), torch.stack([w, w / 2])
            return torch.vmap(f, (0, None, 0))(xs, h, ws)

        return both

    transform: Any = {
        "grad": lambda f: torch.func.grad(lambda *a: f(*a).square().sum(), (0, 1, 2)),
        "jvp": lambda f: lambda *a: torch.func.jvp(f, a, tuple(torch.ones_like(v) for v in a)),
        "vjp": lambda f: lambda *a: torch.func.vjp(f, *a)[1](normal(T, B, H, seed=3)),
        "vmap": ensemble,
        "jacrev": lambda f: (
            lambda *a: torch.func.jacrev(lambda h: f(a[0], h, a[2])[-1].sum(-1))(a[1])
        ),
        "hessian": lambda f: (
            lambda *a: torch.func.hessian(lambda h: f(a[0], h, a[2])[-1].sum())(a[1])
        ),
    }[name]
    close(transform(of(fused))(x, h, R), transform(of(plain_scan))(x, h, R))


def test_a_scan_inside_of_a_scan():
    def inner(c: Tensor, x: Tensor) -> Any:
        c = torch.tanh(c + x)
        return c, c

    def outer(run: Any) -> Any:
        def step(h: Tensor, x: Tensor) -> Any:
            c, ys = run(inner, h, x.unflatten(-1, (2, H)).movedim(1, 0))
            return c, ys.sum(0)

        return step

    xs, init = normal(T, B, 2 * H), normal(B, H)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", StepWarning)
        got = elman.scan(outer(lambda *a: elman.scan(*a, engine="reference")), init, xs)
    close(got, plain_scan(outer(plain_scan), init, xs))


# ---- options


def spectrum(h: Tensor) -> Tensor:
    """The same numbers, by a way that no formula has."""
    return torch.fft.irfft(torch.fft.rfft(h), n=h.shape[-1])


def by_hand(
    step: Any,
    init: Any,
    xs: Any,
    *,
    lengths: Any = None,
    reset: Any = None,
    reset_to: str = "zeros",
    mask: Any = None,
    masked_output: str = "held",
    held: Sequence[bool] = (),
) -> tuple[Any, Any]:
    """The loop with options. held: which outputs are states, and which."""
    state, rows = [*init], []

    def where(flag: Any, a: Tensor, b: Tensor) -> Tensor:
        return torch.where(flag.reshape(-1, *[1] * (a.dim() - 1)), a, b)

    for t in range(len(xs)):
        before = state
        if reset is not None:
            fresh = init if reset_to == "initial" else [torch.zeros_like(s) for s in init]
            state = [where(reset[t] != 0, f, s) for f, s in zip(fresh, state)]
        new, ys = step(tuple(state), xs[t])
        ys = [*ys]
        counts = inside = torch.ones(len(init[0]), dtype=torch.bool)
        if lengths is not None:
            counts = inside = t < torch.as_tensor(lengths)
            ys = [where(counts, y, torch.zeros_like(y)) for y in ys]
        if mask is not None:
            known = mask[t] != 0
            keep = [
                state[at] if at is not None and masked_output == "held" else torch.zeros_like(y)
                for at, y in zip(held, ys)
            ]
            ys = [where(known | ~inside, y, k) for y, k in zip(ys, keep)]
            counts = counts & known
        state = [where(counts, n, s) for n, s in zip(new, state)]
        state = [where(inside, s, b) for s, b in zip(state, before)]  # no reset past the end
        rows.append(ys)
    return tuple(state), tuple(torch.stack(column) for column in zip(*rows))


def two_states(plain: bool) -> Any:
    """Two states, one of which is an output, and an output that is none."""

    def step(s: Any, x: Tensor) -> Any:
        h, c = s
        c = 0.5 * c + x @ W
        h = torch.tanh(c + (spectrum(h) if plain else h) @ R)
        return (h, c), (h, h.sum(-1) + 1)

    return step


LENGTHS = torch.tensor([5, 2, 4])
RESET = torch.tensor([[0, 1, 0], [0, 0, 0], [1, 0, 1], [0, 0, 0], [0, 1, 1]])
MASK = torch.tensor([[0, 1, 1], [1, 0, 1], [1, 1, 1], [0, 0, 1], [1, 1, 0]])
OPTIONS: dict[str, dict[str, Any]] = {
    "lengths": {"lengths": LENGTHS},
    "lengths as a list": {"lengths": [5, 2, 4]},
    "lengths of full sequences": {"lengths": [5, 5, 5]},
    "reset": {"reset": RESET.double()},
    "reset as flags": {"reset": RESET.bool()},
    "reset to zeros": {"reset": RESET.bool(), "reset_to": "zeros"},
    "reset to the first state": {"reset": RESET.bool(), "reset_to": "initial"},
    "mask": {"mask": MASK.double()},
    "mask as flags": {"mask": MASK.bool()},
    "mask, held": {"mask": MASK.bool(), "masked_output": "held"},
    "mask, zeros": {"mask": MASK.bool(), "masked_output": "zeros"},
    "mask and reset": {"mask": MASK.bool(), "reset": RESET.bool()},
    "lengths and reset": {"lengths": LENGTHS, "reset": RESET.bool(), "reset_to": "initial"},
    "lengths and mask": {"lengths": LENGTHS, "mask": MASK.bool()},
    "all": {"lengths": LENGTHS, "mask": MASK.bool(), "reset": RESET.bool()},
}


def with_options(engine: str, step: Any, options: Any) -> None:
    found = []
    for run in (scan_on(engine, **options), lambda *a: by_hand(*a, **options, held=(0, None))):
        init = (normal(B, H).requires_grad_(), normal(B, H, seed=2).requires_grad_())
        x = normal(T, B, I).requires_grad_()
        last, ys = run(step, init, x)
        loss = sum((v * normal(*v.shape, seed=9)).sum() for v in (*last, *ys))
        found.append([*last, *ys, *torch.autograd.grad(loss, [*init, x])])
    close(found[0], found[1])


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("plain", [False, True], ids=["fused", "plain"])
def test_options(name, plain):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore" if plain else "error", StepWarning)
        with_options("auto" if plain else "reference", two_states(plain), OPTIONS[name])


def test_all_options_on_c():
    with_options("c", two_states(False), OPTIONS["all"])


@pytest.mark.parametrize("plain", [False, True], ids=["fused", "plain"])
@pytest.mark.parametrize("option", ["reset", "mask", "lengths"])
def test_options_of_reversed_scans(option, plain):
    """Options have the layout of xs; a sequence with a length begins at its own end."""
    step = two_states(plain)
    init, x = (normal(B, H), normal(B, H, seed=2)), normal(T, B, I)
    engine = "auto" if plain else "reference"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", StepWarning)
        if option == "lengths":
            last, ys = elman.scan(step, init, x, reverse=True, lengths=LENGTHS, engine=engine)
            for b, n in enumerate(LENGTHS.tolist()):
                rows = slice(b, b + 1)
                state = tuple(s[rows] for s in init)
                end, want = plain_scan(step, state, x[:n, rows], reverse=True)
                close([s[rows] for s in last], [*end])
                close([y[:n, rows] for y in ys], [*want])
            return
        flags = (RESET if option == "reset" else MASK).bool()
        last, ys = elman.scan(step, init, x, reverse=True, engine=engine, **{option: flags})
        end, want = elman.scan(step, init, x.flip(0), engine=engine, **{option: flags.flip(0)})
    close((last, ys), (end, tree_map(lambda y: y.flip(0), want)))


@pytest.mark.parametrize("option", ["reset", "mask"])
def test_options_along_another_axis(option):
    """Options have the layout of xs."""
    flags = (RESET if option == "reset" else MASK).bool()
    got = elman.scan(
        rnn, normal(B, H), normal(B, T, I), dim=1, engine="reference", **{option: flags.t()}
    )
    want = elman.scan(
        rnn, normal(B, H), normal(B, T, I).transpose(0, 1), engine="reference", **{option: flags}
    )
    close(got, (want[0], want[1].transpose(0, 1)))


@pytest.mark.parametrize("plain", [False, True], ids=["fused", "plain"])
def test_masked_numbers_are_not_read(plain):
    """x is not read in a masked step, even if it is NaN; gradients are numbers."""
    x = normal(T, B, I)
    x[~MASK.bool()] = float("nan")
    x.requires_grad_()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", StepWarning)
        last, (hs, sums) = elman.scan(
            two_states(plain),
            (normal(B, H), normal(B, H, seed=2)),
            x,
            mask=MASK.bool(),
            engine="auto" if plain else "reference",
        )
    assert all(v.isfinite().all() for v in (*last, hs, sums))
    (grad,) = torch.autograd.grad(hs.sum() + last[1].sum(), x)
    assert grad[MASK.bool()].isfinite().all()
    assert not grad[~MASK.bool()].nan_to_num(nan=1.0).any()


@pytest.mark.parametrize("plain", [False, True], ids=["fused", "plain"])
def test_numbers_past_the_end_are_not_read(plain):
    x = normal(T, B, I)
    for b, n in enumerate(LENGTHS.tolist()):
        x[n:, b] = float("nan")
    x.requires_grad_()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", StepWarning)
        last, ys = elman.scan(
            two_states(plain),
            (normal(B, H), normal(B, H, seed=2)),
            x,
            lengths=LENGTHS,
            engine="auto" if plain else "reference",
        )
    assert all(v.isfinite().all() for v in (*last, *ys))
    (grad,) = torch.autograd.grad(sum(v.sum() for v in (*last, *ys)), x)
    assert grad.isfinite().all()


OPTIONED: dict[str, Callable[[Any, Any], Any]] = {
    "the input": lambda h, x: ((h := torch.tanh(x @ W + h @ R)), x),
    "a function of inputs": lambda h, x: ((h := torch.tanh(x @ W + h @ R)), x.sort(-1).values),
    "the carry before": lambda h, x: (torch.tanh(x @ W + h @ R), h),
    "a weight": lambda h, x: (torch.tanh(x @ W + h @ R), W.sum(0).expand(len(x), -1) + 0 * h),
    "what torch computes": lambda h, x: ((h := torch.tanh(x @ W + h @ R)), spectrum(h)),
    "a flag": lambda h, x: ((h := torch.tanh(x @ W + h @ R)), h > 0),
    "twice": lambda h, x: ((h := torch.tanh(x @ W + h @ R)), (h, h)),
}


@pytest.mark.parametrize("name", OPTIONED)
@pytest.mark.parametrize("option", ["lengths", "mask", "reset"])
def test_options_and_outputs(name, option):
    """Outputs of every kind are those of the loop by hand."""

    def step(s: Any, x: Tensor) -> Any:
        h, y = OPTIONED[name](s[0], x)
        return (h,), y if isinstance(y, tuple) else (y,)

    option = {"lengths": "lengths", "mask": "mask as flags", "reset": "reset as flags"}[option]
    held = {"twice": (0, 0)}.get(name, (None,))
    got = scan_on("reference", **OPTIONS[option])(step, (normal(B, H),), normal(T, B, I))
    close(got, by_hand(step, (normal(B, H),), normal(T, B, I), **OPTIONS[option], held=held))


def test_wrong_options():
    init, x = normal(B, H), normal(T, B, I)
    for wrong in (
        {"lengths": [5, 2]},
        {"lengths": [6, 1, 1]},
        {"mask": torch.ones(B, T)},
        {"reset": torch.ones(T)},
        {"reset_to": "initial"},
        {"masked_output": "zeros"},
        {"mask": torch.ones(T, B), "masked_output": "zero"},
    ):
        with pytest.raises(ElmanError):
            elman.scan(rnn, init, x, engine="reference", **wrong)
    with pytest.raises(TypeError, match="lenghts"):
        elman.scan(rnn, init, x, lenghts=[5, 2, 4])


@pytest.mark.parametrize("name", ["static", "outputs", "draws"])
def test_options_of_layers_alone(name):
    """They say nothing of a step in torch's operations, and are refused."""
    value = {"static": normal(B, H), "outputs": "states", "draws": normal(T, B, 1, H)}[name]
    for engine in ("reference", "auto"):
        with pytest.raises((TypeError, InputError), match=name):
            elman.scan(rnn, normal(B, H), normal(T, B, I), engine=engine, **{name: value})


def test_autocast():
    """Types of results are the plain loop's."""
    linear = nn.Linear(H, H)

    def step(h: Tensor, x: Tensor) -> Any:
        h = torch.tanh(linear(h) + x)
        return h, h

    init, xs = normal(B, H, dtype=torch.float32), normal(T, B, H, dtype=torch.float32)
    with warnings.catch_warnings(), torch.autocast("cpu", torch.bfloat16):
        warnings.simplefilter("ignore", StepWarning)
        got = fused(step, init, xs)
        want = plain_scan(step, init, xs)
    close(got, want, rtol=3e-2, atol=3e-2)


# ---- random numbers

MANY = 40, 50, 20  # steps, samples, units


def drawn(step: Any, seed: int = 0, engine: str = "reference") -> Tensor:
    torch.manual_seed(seed)
    steps, batch, units = MANY
    return elman.scan(
        step, torch.zeros(batch, units, dtype=F64), torch.zeros(steps, batch, units, dtype=F64),
        engine=engine,
    )[1]  # fmt: skip


DRAWS: dict[str, tuple[Callable[[Tensor], Tensor], float, float]] = {  # mean, variance
    "rand_like": (torch.rand_like, 0.5, 1 / 12),
    "randn_like": (torch.randn_like, 0.0, 1.0),
    "rand": (lambda h: torch.rand(h.shape, dtype=F64), 0.5, 1 / 12),
    "randn": (lambda h: torch.randn(*h.shape, dtype=F64), 0.0, 1.0),
    "bernoulli": (lambda h: torch.bernoulli(torch.full_like(h, 0.3)), 0.3, 0.21),
    "bernoulli of the state": (lambda h: torch.bernoulli(0.3 + 0 * h), 0.3, 0.21),
    "bernoulli in place": (lambda h: torch.empty_like(h).bernoulli_(0.3), 0.3, 0.21),
    "normal_": (lambda h: torch.empty_like(h).normal_(1.0, 2.0), 1.0, 4.0),
    "uniform_": (lambda h: torch.empty_like(h).uniform_(-1, 2), 0.5, 9 / 12),
    "exponential_": (lambda h: torch.empty_like(h).exponential_(2.0), 0.5, 0.25),
    "Normal": (lambda h: td.Normal(0 * h + 1, torch.full_like(h, 2.0)).rsample(), 1.0, 4.0),
    "Normal of the state": (lambda h: td.Normal(0 * h, torch.exp(0 * h)).rsample(), 0.0, 1.0),
    "Independent": (lambda h: td.Independent(td.Normal(0 * h, 1.0), 1).rsample(), 0.0, 1.0),
    "bernoulli in place, of torch's default": (
        lambda h: torch.empty_like(h).bernoulli_(),
        0.5,
        0.25,
    ),
    "exponential_ of torch's default": (lambda h: torch.empty_like(h).exponential_(), 1.0, 1.0),
    "normal_ of torch's default": (lambda h: torch.empty_like(h).normal_(), 0.0, 1.0),
    "uniform_ of torch's default": (lambda h: torch.empty_like(h).uniform_(), 0.5, 1 / 12),
    "dropout": (lambda h: F.dropout(torch.ones_like(h), 0.4), 1.0, 0.4 / 0.6),
    "dropout of a half": (lambda h: F.dropout(torch.ones_like(h)), 1.0, 1.0),
    "dropout of the state": (lambda h: F.dropout(1 + 0 * h, 0.4), 1.0, 0.4 / 0.6),
}


@pytest.mark.parametrize("name", DRAWS)
def test_numbers_that_are_drawn(name):
    draw, mean, variance = DRAWS[name]

    def step(h: Tensor, x: Tensor) -> Any:
        u = draw(h)
        return 0.5 * h + u, u

    ys = drawn(step)
    count = ys.numel()
    assert abs(float(ys.mean()) - mean) < 5 * (variance / count) ** 0.5
    assert abs(float(ys.var()) - variance) < 0.1 * variance
    off = (ys - mean) / variance**0.5
    for one, two in (
        (off[1:], off[:-1]),  # over steps
        (off[:, 1:], off[:, :-1]),  # samples
        (off[..., 1:], off[..., :-1]),  # units
        (off[1:, 1:], off[:-1, :-1]),
    ):
        assert abs(float((one * two).mean())) < 5 / one.numel() ** 0.5
    assert not torch.equal(ys, drawn(step, seed=1))
    assert torch.equal(ys, drawn(step))
    torch.manual_seed(0)
    init, xs = torch.zeros(2, 3, dtype=F64), torch.zeros(4, 2, 3, dtype=F64)
    one, two = (fused(step, init, xs)[1] for _ in range(2))
    assert not torch.equal(one, two)


def test_two_draws_of_one_step():
    def step(h: Tensor, x: Tensor) -> Any:
        a, b = torch.randn_like(h), torch.randn_like(h)
        return 0.5 * h + a, torch.stack([a, b], -1)

    ys = drawn(step)
    assert abs(float((ys[..., 0] * ys[..., 1]).mean())) < 5 / ys[..., 0].numel() ** 0.5


def test_categorical_samples():
    logits = torch.tensor([0.2, 0.5, 0.3], dtype=F64).log()

    def step(h: Tensor, x: Tensor) -> Any:
        y = td.Categorical(logits=logits + 0 * h[:, :3]).sample()
        return 0.5 * h + y.unsqueeze(-1), y

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", StepWarning)
        ys = drawn(step, engine="auto")
    shares = torch.bincount(ys.flatten(), minlength=3) / ys.numel()
    assert (shares - logits.exp()).abs().max() < 0.06


@pytest.mark.parametrize("engine", ENGINES)
def test_gradients_through_dropout(engine):
    """The same numbers are dropped forward and backward."""
    drop = nn.Dropout(0.5)

    def step(h: Tensor, x: Tensor) -> Any:
        kept = drop(x)
        h = 0.5 * h + kept
        return h, kept

    init, x = torch.zeros(B, H, dtype=F64), normal(T, B, H).requires_grad_()
    last, kept = elman.scan(step, init, x, engine=engine)
    (grad,) = torch.autograd.grad(last.sum(), x)
    factor = kept.detach() / x.detach()  # 0 or 2
    assert {*factor.round(decimals=6).flatten().tolist()} == {0.0, 2.0}
    close(grad, factor * 0.5 ** torch.arange(T - 1, -1, -1).reshape(T, 1, 1).double())


def test_gradients_through_dropout_of_the_state():
    torch.manual_seed(0)
    drop = nn.Dropout(0.5)

    def step(h: Tensor, x: Tensor) -> Any:
        kept = drop(torch.tanh(h + x))
        return h * 0.5 + kept, (h, kept)

    x = normal(T, B, H).requires_grad_()
    last, (hs, kept) = fused(step, torch.zeros(B, H, dtype=F64), x)
    (grad,) = torch.autograd.grad(last.sum(), x)
    masks = (kept / torch.tanh(hs + x)).detach().round()
    twin = x.detach().clone().requires_grad_()
    h = torch.zeros(B, H, dtype=F64)
    for t in range(T):
        h = h * 0.5 + masks[t] * torch.tanh(h + twin[t])
    close(last, h)
    close(grad, torch.autograd.grad(h.sum(), twin)[0])


def test_gradients_of_a_reparametrized_sample():
    mean, scale = normal(H).requires_grad_(), normal(H, seed=2).exp().requires_grad_()

    def step(h: Tensor, x: Tensor) -> Any:
        z = td.Normal(mean + 0 * h, scale).rsample()
        return 0.5 * h + z, z

    _, zs = fused(step, torch.zeros(B, H, dtype=F64), normal(T, B, H))
    grads = torch.autograd.grad(zs.sum(), [mean, scale])
    noise = ((zs - mean) / scale).detach()
    close([*grads], [torch.full((H,), float(T * B), dtype=F64), noise.sum((0, 1))])


def test_dropout_does_nothing_in_eval():
    drop = nn.Dropout(0.5)

    def step(h: Tensor, x: Tensor) -> Any:
        h = torch.tanh(drop(h) @ R + x @ W)
        return h, h

    init, x = normal(B, H), normal(T, B, I)
    assert not torch.equal(fused(step, init, x)[1], fused(step, init, x)[1])
    drop.eval()
    agrees(step, init, x)
    drop.train()
    assert not torch.equal(fused(step, init, x)[1], fused(step, init, x)[1])


# ---- what cannot be read

KERNEL = normal(1, 1, 3, seed=21)


def branches(h: Tensor, x: Tensor) -> Any:
    if h.sum() > 0:
        h = h * 0.5
    h = torch.tanh(h + x)
    return h, h


def convolves(h: Tensor, x: Tensor) -> Any:
    h = torch.tanh(F.conv1d(h.unsqueeze(1), KERNEL, padding=1).squeeze(1) + x)
    return h, h


def to_numpy(h: Tensor, x: Tensor) -> Any:
    scale = float(np.abs(h.detach().numpy()).max())
    h = torch.tanh(h / (1 + scale) + x)
    return h, h


def takes_item(h: Tensor, x: Tensor) -> Any:
    h = torch.tanh(h * h.mean().item() + x)
    return h, h


def inverts(h: Tensor, x: Tensor) -> Any:
    eye = torch.eye(H, dtype=h.dtype)
    h = torch.tanh(torch.linalg.inv(eye + 0.1 * h.unsqueeze(-1) * h.unsqueeze(1)) @ x.unsqueeze(-1))
    return h.squeeze(-1), h.squeeze(-1)


def transforms(h: Tensor, x: Tensor) -> Any:
    h = torch.tanh(torch.fft.rfft(h).abs().sum(-1, keepdim=True) * 0.1 + h + x)
    return h, h


@torch.library.custom_op("elman_tests::halved", mutates_args=())
def halved(h: Tensor) -> Tensor:
    return 0.5 * h


halved.register_fake(torch.empty_like)
halved.register_autograd(lambda ctx, grad: 0.5 * grad)


def calls_unknown(h: Tensor, x: Tensor) -> Any:
    h = torch.tanh(halved(h) + x)
    return h, h


def line_in(step: Any, text: str) -> int:
    import inspect

    lines, first = inspect.getsourcelines(step)
    return first + next(k for k, line in enumerate(lines) if text in line)


UNREADABLE: dict[Any, tuple[str, str]] = {  # step: a word of its line, a word of the operation
    branches: ("if h.sum", r"number from a tensor"),
    convolves: ("conv1d", r"conv"),
    to_numpy: ("numpy())", r"numpy|number from a tensor"),
    takes_item: ("item()", r"number from a tensor|item"),
    inverts: ("linalg.inv", r"inv"),
    transforms: ("rfft", r"fft"),
    calls_unknown: ("halved(h)", r"halved"),
}


@pytest.mark.parametrize("step", UNREADABLE, ids=lambda step: step.__name__)
@pytest.mark.parametrize("engine", ENGINES)
def test_a_named_engine_refuses(step, engine):
    word, operation = UNREADABLE[step]
    with pytest.raises(StepError, match=operation) as error:
        elman.scan(step, normal(B, H), normal(T, B, H), engine=engine)
    text = str(error.value)
    assert f"{HERE}:{line_in(step, word)}" in text
    assert "hint" in text


@pytest.fixture
def nothing_warned(monkeypatch):
    from elman.steps import binding

    monkeypatch.setattr(binding, "_warned", set(), raising=False)


@pytest.mark.parametrize("step", UNREADABLE, ids=lambda step: step.__name__)
@pytest.mark.usefixtures("nothing_warned")
def test_auto_warns_once_and_runs_a_plain_loop(step):
    loop = elman.Loop(step, carry_first=True)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for _ in range(3):
            elman.scan(step, normal(B, H), normal(T, B, H))
        agrees(step, normal(B, H), normal(T, B, H), engine="auto")
        loop(normal(T, B, H), normal(B, H))
        with torch.no_grad():
            elman.scan(step, normal(B, H), normal(T, B, H))
        elman.scan(step, normal(2, H), normal(3, 2, H))
    steps = [w for w in said if issubclass(w.category, StepWarning)]
    assert len(steps) == 1
    assert Path(steps[0].filename).name == HERE
    assert "plain loop" in str(steps[0].message)


@pytest.mark.usefixtures("nothing_warned")
def test_each_step_has_a_warning_of_its_own():
    for step in (branches, takes_item):
        with pytest.warns(StepWarning, match=HERE) as said:
            elman.scan(step, normal(B, H), normal(T, B, H))
        assert len(said) == 1


@pytest.mark.usefixtures("nothing_warned")
def test_a_warning_that_is_an_error_is_one_each_time():
    for _ in range(2):
        with warnings.catch_warnings():
            warnings.simplefilter("error", StepWarning)
            with pytest.raises(StepWarning):
                elman.scan(branches, normal(B, H), normal(T, B, H))


class Encoder(nn.Module):
    """What reads inputs alone."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 2, 3, padding=1)
        self.bn = nn.BatchNorm1d(16)
        self.out = nn.Linear(32, H)
        self.table = nn.Embedding(7, H)

    def forward(self, h: Tensor, x: Any) -> Any:
        image, token = x
        features = self.bn(image.flatten(1))
        image = F.relu(self.conv(features.reshape(-1, 1, 4, 4)))
        h = torch.tanh(self.out(image.flatten(1)) + self.table(token) + h)
        return h, h


class Decoder(nn.Module):
    """What reads the state, and is no state."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.GRUCell(I, 16)
        self.conv = nn.ConvTranspose2d(1, 2, 3)
        self.inv = nn.Parameter(0.1 * torch.randn(16, 16))

    def forward(self, h: Tensor, x: Tensor) -> Any:
        h = self.cell(x, h)
        image = self.conv(torch.tanh(h).reshape(-1, 1, 4, 4))
        mixed = torch.linalg.inv(torch.eye(16, dtype=h.dtype) + self.inv)
        return h, {"image": image, "sorted": h.sort(-1).values, "mixed": h @ mixed, "h": h}


def module_of(kind: Any) -> Any:
    torch.manual_seed(0)
    return kind().double()


def images() -> tuple[Tensor, Tensor]:
    return normal(T, B, 4, 4), torch.arange(T * B).reshape(T, B) % 7


@pytest.mark.parametrize("engine", ENGINES)
def test_what_reads_inputs_alone_is_computed_before(engine):
    module = module_of(Encoder).eval()
    module.bn.running_mean.normal_()
    agrees(module, normal(B, H), images(), [*module.parameters()], engine=engine)


@pytest.mark.parametrize("engine", ENGINES)
def test_what_no_state_depends_on_is_computed_afterwards(engine):
    module = module_of(Decoder)
    agrees(module, normal(B, 16), normal(T, B, I), [*module.parameters()], engine=engine)


def test_both_with_options():
    module = module_of(Decoder)

    def step(s: Any, x: Tensor) -> Any:
        h, ys = module(s[0], x)
        return (h,), (ys["image"], ys["sorted"], ys["h"])

    for name in ("lengths", "mask as flags", "reset as flags"):
        got = scan_on("reference", **OPTIONS[name])(step, (normal(B, 16),), normal(T, B, I))
        held = (None, None, 0)
        want = by_hand(step, (normal(B, 16),), normal(T, B, I), **OPTIONS[name], held=held)
        close(got, want)


@pytest.mark.parametrize("engine", ["reference", "auto"])
@pytest.mark.parametrize("of", ["input", "state"])
def test_batch_norm_in_training_is_refused_or_equal(engine, of):
    found = []
    for run in (scan_on(engine), plain_scan):
        bn, w = nn.BatchNorm1d(H).double(), R.clone().requires_grad_()

        def step(h: Tensor, x: Tensor, bn: Any = bn, w: Tensor = w) -> Any:
            h = torch.tanh(bn(x) + h @ w) if of == "input" else torch.tanh(x + bn(h @ w))
            return h, h

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", StepWarning)
            try:
                last, ys = run(step, normal(B, H), normal(T, B, H))
            except StepError:
                assert engine == "reference"
                return
        found.append([last, ys, *gradients(ys, [w, bn.weight]), *bn.buffers()])
    close(found[0], found[1])


def test_batch_norm_of_the_state_in_eval():
    bn = nn.BatchNorm1d(H).double().eval()
    bn.running_mean.normal_()

    def step(h: Tensor, x: Tensor) -> Any:
        h = torch.tanh(x + bn(h @ R))
        return h, h

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", StepWarning)
        agrees(step, normal(B, H), normal(T, B, H), [*bn.parameters()], engine="auto")


@pytest.mark.filterwarnings("ignore::elman.errors.StepWarning")
def test_errors_of_the_step_itself_under_auto():
    """The user's own error comes out, as of a plain loop."""

    def step(h: Tensor, x: Tensor) -> Any:
        return torch.tanh(h @ W + x), h

    with pytest.raises((RuntimeError, StepError), match=r"shapes|size"):
        elman.scan(step, normal(B, H), normal(T, B, H))

    def raises(h: Tensor, x: Tensor) -> Any:
        raise KeyError("mine")

    with pytest.raises((KeyError, StepError), match="mine"):
        elman.scan(raises, normal(B, H), normal(T, B, H))


def test_threads_run_their_own_weights():
    """Steps of one formula share what was made of it, never their tensors."""
    wrong: list[float] = []

    def work(seed: int) -> None:
        cell = torch.nn.GRUCell(3, 4)
        step = lambda h, x: (h := cell(x, h), h)  # noqa: E731
        h, x = (
            torch.zeros(2, 4),
            torch.randn(3, 2, 3, generator=torch.Generator().manual_seed(seed)),
        )
        with torch.no_grad():
            want = h
            for row in x:
                want = cell(row, want)
            for _ in range(100):
                got = elman.scan(lambda h, x: step(h, x), h, x, engine="reference")[0]
                wrong.append(float((got - want).abs().max()))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert len(wrong) == 300
    assert max(wrong) < 1e-5


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_small_arguments_keep_their_digits(dtype):
    """Where a formula of exp and log alone would cancel."""

    def step(h: Any, x: Any) -> Any:
        return h, (torch.log1p(x), torch.sinh(x), F.logsigmoid(x + 9), F.softplus(x - 9, beta=2.0))

    x = torch.tensor([1e-12, -3e-9, 2e-5, -0.3, 0.7, 4.0, torch.inf], dtype=dtype).view(1, 7, 1)
    _, ys = elman.scan(step, torch.zeros(7, 1, dtype=dtype), x, engine="reference")
    _, want = step(None, x)
    for got, right in zip(ys, want, strict=True):
        torch.testing.assert_close(
            got, right, rtol=1e-5 if dtype == torch.float32 else 1e-12, atol=0
        )


def test_names_of_weights_that_are_alike():
    """a.b and a_b are two."""

    class Inner(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.b = nn.Parameter(torch.randn(4))

    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.a_b, self.x0 = Inner(), nn.Parameter(torch.randn(4)), Inner()

        def forward(self, h: Tensor, x: Tensor) -> Any:
            h = torch.tanh(h * self.a.b + x * self.a_b - self.x0.b)
            return h, h

    step, h, x = Outer(), torch.randn(3, 4), torch.randn(5, 3, 4)
    _, ys = elman.scan(step, h, x, engine="reference")
    torch.testing.assert_close(ys, plain_scan(step, h, x)[1])


def test_one_sample_whose_axis_is_squeezed_away():
    def step(h, x):
        h = torch.tanh(h + x)
        return h, 2 * h.squeeze(-1)

    for batch in (3, 1):
        init, xs = torch.zeros(batch), torch.randn(4, batch)
        ys = elman.scan(step, init, xs, engine="reference")[1]
        torch.testing.assert_close(ys, plain_scan(step, init, xs)[1])


def test_release_forgets_what_a_step_holds():
    weight = torch.randn(4, 4)
    known = weakref.ref(weight)

    def run(weight):
        def step(h, x):
            h = torch.tanh(h @ weight + x)
            return h, h

        return elman.scan(step, torch.zeros(2, 4), torch.randn(3, 2, 4), engine="reference")

    run(weight)
    del weight
    elman.release()
    gc.collect()
    assert known() is None


@pytest.mark.parametrize("engine", ["reference", "c"])
def test_bfloat16(engine):
    torch.manual_seed(0)
    cell = nn.GRUCell(8, 16).bfloat16()

    def step(h, x):
        h = cell(x, h)
        return h, 2 * h

    init, xs = torch.zeros(3, 16, dtype=torch.bfloat16), torch.randn(6, 3, 8).bfloat16()
    h, ys = elman.scan(step, init, xs, engine=engine)
    want_h, want = plain_scan(step, init, xs)
    assert h.dtype == ys.dtype == torch.bfloat16
    exact = found_by(plain_scan, cell_in_float64(cell), init.double(), xs.double())
    for got, own, name in ((h, want_h, "carry[0]"), (ys, want, "ys[0]")):
        off = (got.double() - exact[name]).abs().max()
        assert off <= 2 * (own.double() - exact[name]).abs().max() + 1e-2
    sum(v.float().sum() for v in (h, ys)).backward()
    assert all(p.grad is not None and p.grad.dtype == torch.bfloat16 for p in cell.parameters())


def cell_in_float64(cell):
    exact = copy.deepcopy(cell).double()

    def step(h, x):
        h = exact(x, h)
        return h, 2 * h

    return step


@pytest.mark.parametrize("init", [0.0, lambda: None, None, (torch.zeros(B, H), 1), {"h": [0]}])
def test_carries_of_other_kinds(init):
    """Numbers, functions and None in the place of a tensor are refused by name."""
    with pytest.raises(InputError, match="carry is no tensor"):
        elman.scan(lambda h, x: (h, x), init, normal(T, B, I))

"""``checkpoint=``: results and every gradient are those of the whole tape, which is not kept."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import elman
import elman.nn
from elman import PlanOptions, cells
from elman.errors import EngineError, InputError
from elman.plan.checkpoint import Checkpoint, Sizes, checked, fitting, held, least
from helpers import assert_close, need_engine

F64 = torch.float64
STACKS: list[dict[str, Any]] = [
    {"num_layers": 3},
    {"bidirectional": True},
    {"num_layers": 2, "bidirectional": True},
    {"num_layers": 2, "residual": True},
]


def results(net: Any, x: torch.Tensor) -> dict[str, torch.Tensor]:
    """Output and every gradient, by name."""
    net.zero_grad()
    out, _ = net(x)
    out.sin().sum().backward()
    return {"out": out} | {n: w.grad for n, w in net.named_parameters() if w.grad is not None}


def agree(net: Any, T: int = 7) -> None:
    """With checkpoints as without."""
    x, plan = x_of(T, 3).detach(), net.plan
    got = results(net, x)
    net.plan = PlanOptions()
    want = results(net, x)
    net.plan = plan
    assert got.keys() == want.keys()
    for name, value in want.items():
        assert_close(got[name], value, msg=lambda text, name=name: f"{name}: {text}")


def gru(**options: Any) -> Any:
    return elman.Recurrent(cells.gru, 3, 4, **options)


def x_of(T: int, B: int, dtype: torch.dtype = F64) -> torch.Tensor:
    source = torch.Generator().manual_seed(1)
    return torch.randn(T, B, 5, dtype=dtype, generator=source).requires_grad_()


@contextmanager
def kept() -> Iterator[list[int]]:
    """Inside, the bytes of every tensor that autograd keeps, once per memory."""
    seen: dict[int, Any] = {}
    sizes: list[int] = []

    def pack(value: torch.Tensor) -> torch.Tensor:
        if value.untyped_storage().data_ptr() not in seen:
            seen[value.untyped_storage().data_ptr()] = value
            sizes.append(value.untyped_storage().nbytes())
        return value

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda value: value):
        yield sizes


def test_what_needs_no_gradient():
    """A layer or direction that nothing asks of; without gradients nothing is cut."""
    need_engine("c")
    x = x_of(7, 3).detach()
    for options in STACKS[:3]:
        net = elman.GRU(5, 5, engine="c", dtype=F64, plan=PlanOptions(checkpoint=2), **options)
        frozen = "reverse" if "bidirectional" in options else "l0"
        for name, weight in net.named_parameters():
            weight.requires_grad_(frozen not in name)
        agree(net)
    with torch.no_grad():
        net(x)


def test_an_empty_batch():
    """Nothing is kept of it by anybody."""
    need_engine("c")
    own = elman.Recurrent(cells.gru, 5, 4, engine="c", plan=PlanOptions(checkpoint=2))
    for net in (elman.GRU(5, 4, plan=PlanOptions(checkpoint=2)), own):
        out, _ = net(torch.zeros(3, 0, 5, requires_grad=True))
        assert out.shape == (3, 0, 4)
        out.sum().backward()


def test_the_tape_is_not_kept():
    """What autograd keeps: arguments, and the states of every K-th step; output and tape are not.

    Without checkpoints the tape is there, so the count would show it."""
    need_engine("c")
    T, B, H, steps = 60, 2, 5, 7
    net = elman.LSTM(5, H, engine="c", plan=PlanOptions(checkpoint=steps))
    x = x_of(T, B, torch.float32)
    arguments = 4 * (x.numel() + sum(w.numel() for w in net.parameters()) + 2 * B * H)
    with kept() as sizes:
        net(x)
    assert sum(sizes) == arguments + 4 * 2 * B * H * -(-T // steps)
    net.plan = PlanOptions()
    with kept() as sizes:
        net(x)
    assert sum(sizes) > arguments + 4 * 5 * T * B * H


@pytest.mark.parametrize("engine", ["c", "reference", "aten"])
def test_backward_twice(engine):
    """``retain_graph``: the second backward gives the same bits."""
    if engine == "c":
        need_engine("c")
    net = elman.GRU(5, 5, engine=engine, dtype=F64, plan=PlanOptions(checkpoint=3))
    x = x_of(8, 2)
    out, _ = net(x)
    first, second = (
        torch.autograd.grad(out.sin().sum(), [x, *net.parameters()], retain_graph=True)
        for _ in range(2)
    )
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_autocast():
    """Results have autocast's type; gradients are those without checkpoints."""
    need_engine("c")
    net, found = elman.GRU(5, 5), []
    for steps in (3, None):
        net.plan, net.residual = (
            PlanOptions(checkpoint=steps),
            steps is None,
        )  # so that torch does not run it
        with torch.autocast("cpu", torch.bfloat16):
            out, _ = net(x_of(7, 2, torch.float32))
        assert out.dtype is torch.bfloat16
        found.append(torch.autograd.grad(out.float().sum(), list(net.parameters())))
    for mine, theirs in zip(*found, strict=True):
        assert_close(mine, theirs)


@given(
    state=st.integers(1, 50),
    tape=st.integers(0, 300),
    steps=st.integers(1, 200),
    groups=st.integers(1, 4),
    budget=st.integers(1, 100_000),
)
def test_a_budget_is_kept_with_the_fewest_spans(state, tape, steps, groups, budget):
    """Against all K: the fewest spans that fit; the least bytes."""
    sizes = Sizes(state, state + tape)
    all_held = {k: held(sizes, steps, k, groups) for k in range(1, steps + 1)}
    assert least(sizes, steps, groups)[1] == min(all_held.values())
    able = [k for k, size in all_held.items() if size <= budget]
    asked = Checkpoint(0, budget, groups)
    if groups * sizes.whole(steps) <= budget:
        assert fitting(sizes, steps, asked) == 0
    elif able:
        found = fitting(sizes, steps, asked)
        assert all_held[found] <= budget
        assert -(-steps // found) == min(-(-steps // k) for k in able)
    else:
        with pytest.raises(InputError, match=f"least  *{min(all_held.values()):,} bytes"):
            fitting(sizes, steps, asked)


def told(net: Any, x: torch.Tensor) -> tuple[int, int]:
    """What the forward keeps, and the most at once, by explain."""
    found = elman.explain(net, x, measure=False)
    assert found.tape_bytes is not None
    assert found.peak_bytes is not None
    return found.tape_bytes, found.peak_bytes


def test_auto():
    """Within the budget as explain tells it; everything is kept where that fits."""
    need_engine("c")
    x = x_of(400, 2)
    net = elman.GRU(5, 5, dtype=F64, plan=within("1GiB"))
    kept, whole = told(net, x)
    assert kept == whole
    net.plan = within(whole // 4)
    kept, most = told(net, x)
    assert kept < most <= whole // 4
    assert "without checkpoint" in elman.explain(net, x, measure=False).stages["cost"]
    agree(net, 40)
    net.plan = within(1)
    with pytest.raises(
        InputError, match=r"400 steps cannot be run in it\n  least .*checkpoint="
    ) as no:
        net(x)
    net.plan = within(int(str(no.value).rpartition("=")[2]))
    net(x)[0].sum().backward()


@pytest.mark.parametrize("options", STACKS)
def test_auto_shares_the_budget(options):
    """Of all layers, whether they run together or one after another."""
    need_engine("c")
    net = elman.GRU(5, 5, dtype=F64, plan=PlanOptions(checkpoint=400), **options)
    x = x_of(400, 2)
    budget = told(net, x)[1] // 3
    net.plan = within(budget)
    assert told(net, x)[1] <= budget
    agree(net, 400)


def test_engines_that_do_not_tell():
    """``auto`` with a named engine that does not know its bytes is refused, with a way out."""
    x = x_of(7, 2)
    for engine in ("aten", "deer", "reference"):
        net = elman.GRU(5, 5, dtype=F64, engine=engine, plan=within(1000))
        with pytest.raises(
            EngineError, match=rf"engine {engine} does not say(.|\n)*checkpoint=100"
        ):
            net(x)
        with torch.no_grad():
            net(x)


@pytest.mark.parametrize(
    "options, text",
    [
        ({"checkpoint": 0}, "number of steps"),
        ({"checkpoint": True}, "number of steps"),
        ({"checkpoint": 2.0}, "number of steps"),
        ({"checkpoint": "yes"}, "number of steps"),
        ({"checkpoint": "auto"}, "how many bytes"),
        ({"memory_budget": 100}, "does not go with"),
        ({"checkpoint": 3, "memory_budget": 100}, "does not go with"),
        ({"checkpoint": "auto", "memory_budget": "much"}, "number of bytes(.|\n)*GiB"),
        ({"checkpoint": "auto", "memory_budget": "2 gigs"}, "number of bytes"),
        ({"checkpoint": "auto", "memory_budget": 0}, "number of bytes"),
        ({"checkpoint": "auto", "memory_budget": -5}, "number of bytes"),
        ({"checkpoint": "auto", "memory_budget": True}, "number of bytes"),
    ],
)
def test_mistakes(options, text):
    with pytest.raises(InputError, match=text):
        PlanOptions(**options)


def test_no_plan():
    """A plan has a type of its own, given to a constructor or set later."""
    for made in (lambda: elman.GRU(3, 4, plan="save"), lambda: gru(plan={"checkpoint": 2})):
        with pytest.raises(
            InputError, match=r"plan must be an elman.PlanOptions(.|\n)*checkpoint="
        ):
            made()
    net = elman.GRU(3, 4)
    net.plan = 3
    with pytest.raises(InputError, match=r"plan must be an elman.PlanOptions, got 3"):
        net(torch.zeros(2, 1, 3))


def test_a_plan_that_is_set_later():
    """Its tape is what runs from then on; kernels that were chosen stay where it is the same."""
    need_engine("c")
    net, x = gru(engine="c"), torch.randn(6, 2, 3)
    first = net(x)[0]
    runners = net.runners
    net.plan = PlanOptions(checkpoint=2)
    assert torch.equal(net(x)[0], first)
    assert net.runners is runners
    net.plan = PlanOptions("recompute")
    assert torch.equal(net(x)[0], first)
    assert "tape recompute" in elman.explain(net, x, measure=False).stages["program"]
    assert elman.Recurrent(cells.gru, 3, 4, plan=net.plan).plan == net.plan


def within(budget: int | str) -> PlanOptions:
    """As few spans as fit into a number of bytes."""
    return PlanOptions(checkpoint="auto", memory_budget=budget)


def test_units_of_a_memory_budget():
    """Units of 1024 and of 1000."""
    assert checked("auto", "1.5GiB") == ("auto", 3 << 29)
    assert checked("auto", " 2 MB ") == ("auto", 2_000_000)
    assert checked("auto", 77) == checked("auto", "77") == ("auto", 77)


def test_repr_shows_checkpoint_options():
    net = elman.GRU(3, 4, plan=within("1KiB"))
    assert "plan=PlanOptions(checkpoint='auto', memory_budget=1024)" in repr(net)
    assert "checkpoint=5" in repr(gru(plan=PlanOptions(checkpoint=5)))

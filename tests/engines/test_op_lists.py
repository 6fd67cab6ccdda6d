"""Operations in C on tensors at fixed addresses, and a step of a short convolution: the numbers of
torch's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F  # noqa: N812  # torch's own habit

from elman.engines.c.calls.noted import Launch, Launches, noted
from elman.engines.c.kernels import op_lists
from elman.engines.c.kernels.convolution_step import can_step, convolution_step
from elman.engines.c.kernels.few_rows import linear
from elman.engines.c.kernels.op_lists import OpList, operation

aten: Any = torch.ops.aten
POINTWISE = [*op_lists._POINTWISE]
POSITIVE = ("log", "sqrt", "rsqrt", "pow")
HARD = [0.0, -0.0, 30.0, -30.0, 200.0, -200.0, float("inf"), -float("inf"), float("nan")]


def call(name: str, *arguments: Any, **options: Any) -> Any:
    """An operation of torch's by its name in the table."""
    packet, _, overload = name.partition(".")
    return getattr(getattr(aten, packet), overload)(*arguments, **options)


def lying(value: Tensor, order: tuple[int, ...], sliced: bool) -> Tensor:
    """The same numbers, in another order in memory, and with gaps."""
    back = sorted(range(len(order)), key=lambda at: order[at])
    value = value.permute(order).contiguous().permute(back)
    if not sliced or not value.dim():
        return value
    wide = torch.full((*value.shape[:-1], 2 * value.shape[-1]), 9.0)
    wide[..., ::2] = value
    return wide[..., ::2]


@st.composite
def operands(draw: Any, count: int) -> list[Tensor]:
    """Tensors whose shapes broadcast, lying anyhow."""
    dims = draw(st.integers(0, 4))
    shape = [draw(st.sampled_from([1, 2, 3, 17, 40])) for _ in range(dims)]
    values = []
    for _ in range(count):
        own = [1 if draw(st.booleans()) and draw(st.booleans()) else size for size in shape]
        value = 3 * torch.randn(
            own, generator=torch.Generator().manual_seed(draw(st.integers(0, 9)))
        )
        order = tuple(draw(st.permutations(range(dims))))
        values.append(lying(value, order, draw(st.booleans())))
    return values


def check(name: str, arguments: Any, options: dict[str, Any] | None = None) -> None:
    """An operation has torch's result, wherever the result lies."""
    want = call(name, *arguments, **(options or {}))
    wide = torch.full((*want.shape, 2), 9.0)
    for out in (torch.full_like(want, 9.0), wide[..., 0]):
        part = operation(name, arguments, options or {}, out)
        assert part is not None
        OpList([part])()
        torch.testing.assert_close(out, want, rtol=2e-6, atol=2e-6, equal_nan=True)
    assert bool((wide[..., 1] == 9).all())


@pytest.mark.parametrize("name", POINTWISE)
@given(data=st.data())
@settings(max_examples=25)
def test_pointwise(name: str, data: st.DataObject) -> None:
    """Of broadcast, permuted and sliced tensors, and of numbers."""
    values: list[Any] = data.draw(operands(op_lists._arity(name)))
    if name.startswith(POSITIVE):
        values[0] = values[0].abs() + 0.1
    if len(values) == 2 and (
        name.endswith(("Scalar", "clamp_min.default")) or data.draw(st.booleans())
    ):
        if name.partition(".")[0] not in ("maximum", "minimum"):
            values[1] = data.draw(st.sampled_from([2, 0.5, -0.5, -1.5, 3]))
    if name == "lerp.Tensor":
        values[2] = values[2].clamp(0, 1)
    check(name, values)


@pytest.mark.parametrize("name", POINTWISE)
def test_hard_numbers(name: str) -> None:
    """Infinities, NaN, zeros and large numbers are torch's."""
    a = torch.tensor(HARD).repeat_interleave(len(HARD))
    values: list[Any] = [a, torch.tensor(HARD).repeat(len(HARD)), a.flip(0)][
        : op_lists._arity(name)
    ]
    if name.endswith("Scalar") or name == "clamp_min.default":
        values[1] = 0.5
    if name == "lerp.Tensor":
        values = [torch.randn(9), torch.randn(9), torch.rand(9)]
    check(name, values)


REDUCTIONS: dict[str, Callable[..., tuple[Any, ...]]] = {
    "sum.dim_IntList": lambda x, dims, keep: (x, dims, keep),
    "mean.dim": lambda x, dims, keep: (x, dims, keep),
    "amax.default": lambda x, dims, keep: (x, dims, keep),
    "linalg_vector_norm.default": lambda x, dims, keep: (x, 2, dims, keep),
}


@pytest.mark.parametrize("name", REDUCTIONS)
@given(data=st.data())
@settings(max_examples=40)
def test_reductions(name: str, data: st.DataObject) -> None:
    """Over one axis or several; those that no loop can follow are left to torch."""
    (value,) = data.draw(operands(1))
    dims = [*range(value.dim())]
    over = data.draw(st.lists(st.sampled_from(dims), min_size=1, unique=True)) if dims else []
    arguments = REDUCTIONS[name](value, over, data.draw(st.booleans()))
    want, largest = (call(name, each, *arguments[1:]) for each in (value.double(), value.abs()))
    out = torch.full(want.shape, 9.0)
    part = operation(name, arguments, {}, out)
    if part is not None:
        OpList([part])()  # sums of numbers of both signs lose what the largest sum may lose
        assert bool(((out - want).abs() <= 1e-6 * (largest.abs() + 1)).all())
    assert part is not None or len(over) > 1 or value.dim() > 3


@given(data=st.data())
@settings(max_examples=40)
def test_joined_and_copied(data: st.DataObject) -> None:
    """Tensors behind each other, and into a tensor that is there."""
    (value,) = data.draw(operands(1))
    if value.dim():
        dim = data.draw(st.integers(-value.dim(), value.dim() - 1))
        check("cat.default", ([value, 2 * value, value], dim))
    target = torch.zeros(2, *value.shape)
    part = operation("copy.default", (target, value), {}, target)
    if part is not None:
        OpList([part])()
        assert torch.equal(target, value.expand_as(target))


def test_what_has_no_row() -> None:
    """Other types, options, operations: they are torch's."""
    x = torch.randn(3, 5)
    for name, arguments, options in (
        ("mul.Tensor", (x, x.double()), {}),
        ("mul.Tensor", (x, x.bool()), {}),
        ("add.Tensor", (x, x), {"alpha": 2}),
        ("softplus.default", (x, 2, 20), {}),
        ("rsub.Scalar", (x, 1, 2), {}),
        ("linalg_vector_norm.default", (x, 1, [1], False), {}),
        ("erf.default", (x,), {}),
        ("cat.default", ([torch.empty(0), x], 0), {}),
    ):
        assert operation(name, arguments, options, torch.empty(3, 5)) is None
    many = torch.randn(2, 3, 2, 3, 4).permute(4, 2, 0, 3, 1)
    assert operation("neg.default", (many,), {}, torch.empty(many.shape)) is None  # five loops
    assert operation("neg.default", (x[:0],), {}, torch.empty(0, 5)) == []


def test_kernels_between_operations() -> None:
    """A list runs kernels of engine c in its order, with what is in its tensors by then."""
    x, weight = torch.randn(1, 40), torch.randn(12, 40)
    launches, out = list[Launch](), torch.empty(1, 12)
    doubled = torch.empty(1, 40)
    with noted(Launches(launches.append, lambda _: True)):
        y = linear(doubled, weight, None, None)
    parts = [
        operation("mul.Tensor", (x, 2), {}, doubled),
        *launches,
        operation("neg.default", (y,), {}, out),
    ]
    run = OpList([part for part in parts if part is not None])
    for _ in range(2):
        run()
        torch.testing.assert_close(out, -2 * x @ weight.mT)
        x.normal_()


@given(
    rows=st.integers(1, 3),
    channels=st.sampled_from([1, 15, 16, 37]),
    taps=st.integers(1, 5),
    more=st.integers(0, 2),
    bias=st.booleans(),
    gate=st.booleans(),
)
@settings(max_examples=60)
def test_a_step_of_a_convolution(rows, channels, taps, more, bias, gate) -> None:
    """The output of torch's convolution, and the inputs moved by one."""
    x = torch.randn(rows, 1, channels).transpose(1, 2)[..., 0]
    state, weight = torch.randn(rows, channels, taps + more), torch.randn(channels, taps)
    added = torch.randn(channels) if bias else None
    window = torch.cat((state, x[..., None]), -1)
    want = F.conv1d(window[..., -taps:], weight[:, None], added, groups=channels)[..., 0]
    assert can_step(x, state, weight, added)
    got = convolution_step(x, state, weight, added, gate)
    torch.testing.assert_close(got, F.silu(want) if gate else want, rtol=1e-5, atol=1e-5)
    assert torch.equal(state, window[..., 1:])
    apart = torch.empty(rows, channels, 2 * state.shape[-1])[..., ::2]
    assert can_step(x, apart, weight, added) == apart.is_contiguous()
    assert not can_step(x.double(), state, weight, added)
    with noted(Launches(lambda _: None, lambda _: False)):
        assert not can_step(x, state, weight, added)

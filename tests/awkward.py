"""Elementwise functions of a cell and of torch, side by side on awkward numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from typing import Any

import torch
from torch.nn import functional

from elman import ops
from elman.frontend.cell import Cell, cell
from functions_of_one import AUTHORS, torchs
from helpers import Case, Sizes, random_case

F64 = torch.float64
NEAR = [math.nextafter(20.0, side) for side in (0.0, 30.0)]
ONE = [0.0, -0.0, 0.5, -0.5, 1.0, -1.0, 3.0, -3.0, -7.5, 20.0, -20.0, *NEAR, 36.0, -36.0, 40.0]
ONE += [-40.0, 87.0, -87.0, 100.0, -100.0, 1e15, -1e15, math.nan, math.inf, -math.inf]
ONE += [tiny * sign for tiny in (1e-30, 1e-40, 1e-310) for sign in (1, -1)]  # and denormal ones
POWERS = (-2.5, -2, -1, 0, 0.5, 1, 2, 3, 9)
TWO = [0.0, -0.0, 1.0, -1.0, 0.5, 0.1, 2.5, math.nan, math.inf, -math.inf]

Formula = Callable[..., Any]


def _zeros(where: Callable[..., Any], v: Any) -> Any:
    """Infinities of either sign, by numbers that are equal and not the same."""
    up, down = where(v > 0, 0.0, 1.0), where(v > 0, -0.0, 1.0)
    return 1 / down + 0 / up + v / down


SIGNS = (  # formulas of tracers and of tensors alike that tell zeros of two signs apart
    *("1 / v", "1 / -v", "1 / v.__neg__().__neg__()", "1 / (v * 1.0)", "1 / (v * -1.0)"),
    *("1 / (v + 0.0)", "1 / (0.0 + v)", "1 / (v + -0.0)", "1 / (v - 0.0)", "1 / (v - -0.0)"),
    *("1 / (0.0 - v)", "1 / (-0.0 - v)", "1 / (v * 0.0)", "1 / (v * -0.0)", "1 / (v / -0.0)"),
    *("1 / (v * 0.0 + v * -0.0)", "1 / (2 * v + 0.0)", "1 / (v + 1.0 - 1.0)", "v - v"),
    *("1 / (v - v)", "v + v", "inf * v + v", "inf * v - inf * v", "nan * v"),
)


def formula(text: str) -> Formula:
    """A function of v."""
    return eval(f"lambda v: {text}", {"inf": math.inf, "nan": math.nan})


SINGLE: dict[str, tuple[Formula, Formula]] = {  # in the cell's language, and in torch's
    **{name: (getattr(ops, name), torchs(name)) for name in AUTHORS},
    **{name: (getattr(ops, name), getattr(functional, name)) for name in ("silu", "leaky_relu")},
    "gelu": (ops.gelu, functional.gelu),
    "leaky_relu, slope": (
        lambda v: ops.leaky_relu(v, 0.2),
        lambda v: functional.leaky_relu(v, 0.2),
    ),
    "elu": (ops.elu, functional.elu),
    "elu, alpha": (lambda v: ops.elu(v, 0.5), lambda v: functional.elu(v, 0.5)),
    "hardtanh": (ops.hardtanh, functional.hardtanh),
    "hardtanh, bounds": (
        lambda v: ops.hardtanh(v, 0.0, 20.0),
        lambda v: functional.hardtanh(v, 0.0, 20.0),
    ),
    # functional.hardsigmoid has a sixth of float32 in its backward, whatever the dtype
    "hardsigmoid": (ops.hardsigmoid, lambda v: functional.relu6(v + 3) / 6),
    "softplus twice": (lambda v: ops.softplus(v + v), lambda v: functional.softplus(v + v)),
    **{text: (formula(text), formula(text)) for text in SIGNS},
    "numbers": (lambda v: _zeros(ops.where, v), lambda v: _zeros(torch.where, v)),
    "NaN, a number": (
        lambda v: ops.where(v > 0, math.nan, v) + ops.where(v > 1, math.nan, v),
        lambda v: torch.where(v > 0, math.nan, v) + torch.where(v > 1, math.nan, v),
    ),
    "where, equal parts": (lambda v: ops.where(v, v, v), lambda v: torch.where(v != 0, v, v)),
    "stop_gradient": (ops.stop_gradient, lambda v: v.detach() + 0 * v.nan_to_num(0, 0, 0)),
    "neg": (lambda v: -v, lambda v: -v),
    **{
        text: (formula(text), formula(text))
        for text in ("1 / v", *(f"v ** {power}" for power in POWERS))
    },
    "clip": (lambda v: ops.clip(v, -1, 1), lambda v: v.clamp(-1, 1)),
    "clip to a point": (lambda v: ops.clip(v, 0.5, 0.5), lambda v: v.clamp(0.5, 0.5)),
    "clip, bounds crossed": (lambda v: ops.clip(v, 3, 1), lambda v: v.clamp(3, 1)),
    "clip to the right": (lambda v: ops.clip(v, 0, math.inf), lambda v: v.clamp(0, math.inf)),
}
DOUBLE: dict[str, tuple[Formula, Formula]] = {
    "add": (lambda a, b: a + b, torch.add),
    "sub": (lambda a, b: a - b, torch.sub),
    "mul": (lambda a, b: a * b, torch.mul),
    "div": (lambda a, b: a / b, torch.div),
    "infinity times a sum": (lambda a, b: math.inf * (a + b), lambda a, b: math.inf * (a + b)),
    "NaN times a sum": (lambda a, b: math.nan * (a - b), lambda a, b: math.nan * (a - b)),
    "pow": (ops.pow, torch.pow),
    "remainder": (ops.remainder, torch.remainder),
    "minimum": (ops.minimum, torch.minimum),
    "maximum": (ops.maximum, torch.maximum),
    "clip from below": (lambda a, b: ops.clip(a, b, 1.5), lambda a, b: _clamp(a, b, 1.5)),
    "clip from above": (
        lambda a, b: ops.clip(a, -math.inf, b),
        lambda a, b: _clamp(a, -math.inf, b),
    ),
    "clip, bounds equal": (lambda a, b: ops.clip(a, b, b), lambda a, b: torch.clamp(a, b, b)),
    "where": (lambda a, b: ops.where(a > 0, a, b), lambda a, b: torch.where(a > 0, a, b)),
    **{
        name: (
            lambda a, b, name=name: getattr(a, f"__{name}__")(b) * b,
            lambda a, b, name=name: getattr(torch, name)(a, b) * b,
        )
        for name in ("lt", "le", "gt", "ge", "eq", "ne")
    },
}


def _clamp(v: torch.Tensor, low: Any, high: Any) -> torch.Tensor:
    low, high = (torch.as_tensor(bound, dtype=v.dtype).expand_as(v) for bound in (low, high))
    return torch.clamp(v, low, high)


def every(table: dict[str, tuple[Formula, Formula]], arity: int) -> Cell:
    """One cell: each function of a table on its own part of the inputs. Its weight is not used."""
    n = len(table)

    def step(*parts: Any) -> Any:
        cut = zip(*(ops.split(part, n) for part in parts), strict=True)
        made = [own(*part) for (own, _), part in zip(table.values(), cut, strict=True)]
        return ops.concat(*made)

    if arity == 1:
        return cell(input=f"a[{n}H]", state=f"h[{n}H]", weights="w")(lambda a, h, w: step(a))
    two = cell(input=f"a[{n}H], b[{n}H]", state=f"h[{n}H]", weights="w")
    return two(lambda a, b, h, w: step(a, b))


def case_of(made: Cell, grids: list[torch.Tensor], n: int, dtype: torch.dtype) -> Case:
    """A case of one step whose inputs are the grids, once per function."""
    width = n * len(grids[0])
    case = random_case(made, Sizes(T=1, B=1, I=width, H=width), 0, dtype)
    for value, grid in zip(case.inputs.values(), grids, strict=True):
        value.copy_(grid.repeat(n).expand_as(value))
    case.d_output.fill_(0.75)
    case.d_last["h"].fill_(0.5)
    return case


def by_torch(theirs: Formula, grids: list[torch.Tensor]) -> list[torch.Tensor]:
    """Value and gradients of a function of torch's, in float64; no gradient is a zero.

    Of many repetitions, so that all of them are in whole vectors: at NaN torch's elu and hardtanh
    have another derivative in what is left over of a loop.
    """
    leaves = [grid.double().repeat(64).requires_grad_() for grid in grids]
    out = theirs(*leaves)
    grads = torch.autograd.grad(out, leaves, torch.full_like(out, 1.25), allow_unused=True)
    found = [torch.zeros_like(out) if grad is None else grad for grad in grads]
    return [value[: len(grids[0])].to(grids[0].dtype) for value in (out.detach(), *found)]


def compare(
    table: dict[str, tuple[Formula, Formula]],
    grids: list[torch.Tensor],
    compute: Callable[[Case], dict[str, torch.Tensor]],
    dtype: torch.dtype,
    flushing: Collection[str] = (),
) -> None:
    """All functions of a table on all grids.

    Args:
        compute: values and gradients by name.
        flushing: functions that take denormal numbers for zeros; these are not looked at there.
    """
    case = case_of(every(table, len(grids)), grids, len(table), dtype)
    got = compute(case)
    parts = [got[name].reshape(len(table), -1) for name in ("out", "da", "db")[: 1 + len(grids)]]
    rtol, atol = (1e-12, 1e-300) if dtype == F64 else (2e-5, 1e-6)
    tiny, wrong = torch.finfo(dtype).tiny, list[str]()
    denormal = torch.stack([(grid != 0) & (grid.abs() < tiny) for grid in grids]).any(0)
    for place, (name, (_, theirs)) in enumerate(table.items()):
        for what, own, want in zip(("value", "d_a", "d_b"), parts, by_torch(theirs, grids)):
            close = torch.isclose(own[place], want, rtol, atol, equal_nan=True)
            if name in flushing:
                close |= denormal
            for at in (~close).nonzero().flatten().tolist():
                inside = ", ".join(str(grid[at].item()) for grid in grids)
                told = f"{own[place, at].item()}, torch {want[at].item()}"
                wrong.append(f"{name}({inside}): {what} {told}")
    assert not wrong, "\n".join(wrong)


def single(
    compute: Callable[[Case], dict[str, torch.Tensor]],
    dtype: torch.dtype,
    flushing: Collection[str] = (),
) -> None:
    """Functions of one value: at zeros of both signs, thresholds and their neighbours, numbers that
    are denormal, NaN and infinities; for arguments see :func:`compare`."""
    compare(SINGLE, [torch.tensor(ONE, dtype=dtype)], compute, dtype, flushing)


def double(
    compute: Callable[[Case], dict[str, torch.Tensor]],
    dtype: torch.dtype,
    flushing: Collection[str] = (),
) -> None:
    """Functions of two values at every pair: ties, NaN on either side, infinities of like and
    unlike sign; for arguments see :func:`compare`."""
    odd = torch.tensor(TWO, dtype=dtype)
    grids = [grid.reshape(-1) for grid in torch.meshgrid(odd, odd, indexing="ij")]
    compare(DOUBLE, grids, compute, dtype, flushing)

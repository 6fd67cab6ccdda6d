"""The oracle of products with operands rounded to bfloat16, and samples on which it can judge.

It rounds by arithmetic of its own. A kernel computes an operand in float32, the oracle in float64:
where the two lie on both sides of a middle between two numbers of bfloat16, they go on with
different numbers. Samples in which some operand comes so near to a middle are left out; all others
have to agree as float32 does.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from calls import Results, call_of, given_of
from elman import compiler
from elman.engines.reference.engine import ReferenceKernel
from elman.engines.vjp import leaves_of, vjp
from elman.ir.graph import Node, Rate
from helpers import Case

OPERANDS = ("matrix", "vector", "cotangent")  # of a product, each of which is rounded
_SEEDS = 50
_NEAR = 1e-6  # to a middle, as a share of the operand's RMS: some ten rounding errors of float32
_NOTHING = 1e-6  # what is 0 but for rounding
_SMALL = 1e-2  # of the same: whether such a number goes up or down is lost among others


def nearest(value: Tensor) -> tuple[Tensor, Tensor]:
    """Numbers of eight significant bits, ties to even, and how far each value is from the middle
    between two."""
    mantissa, exponent = torch.frexp(value)
    scaled = mantissa * 256
    whole = scaled.round()
    return torch.ldexp(whole, exponent - 8), torch.ldexp(0.5 - (scaled - whole).abs(), exponent - 8)


class _Rounded(Function):
    """``apply(value, forward, back)``: functions of the value, and of its cotangent."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, forward: Any, back: Any) -> Tensor:
        ctx.back = back
        return forward(value)

    @staticmethod
    def backward(ctx: Any, d: Tensor) -> Any:  # type: ignore[override]
        return ctx.back(d), None, None


def rounding_oracle(
    case: Case, left_out: str = "", dtype: torch.dtype = torch.float64
) -> tuple[Results, Tensor]:
    """Results of a case, by name, and which samples are far from all middles [B].

    Args:
        case: of a cell without static inputs.
        left_out: one of ``OPERANDS``, which is not rounded.
        dtype: of all else.
    """
    case = case.to(dtype)
    calm = torch.ones(case.d_output.shape[1], dtype=torch.bool)

    def rounds(operand: str, exact: bool = False) -> Callable[[Tensor], Tensor]:
        def rounded(value: Tensor) -> Tensor:
            result, gap = nearest(value)
            if not exact and value.dim() > 1:
                rms = value.square().mean().sqrt()
                near = (gap < _NEAR * rms) & (value.abs() > _SMALL * rms.clamp(min=_NOTHING))
                calm.logical_and_(~near.flatten(1).any(1))
            return value if operand == left_out else result

        return rounded

    def same(value: Tensor) -> Tensor:
        return value

    def change(node: Node, compute: Callable[..., Tensor], args: list[Tensor]) -> Tensor:
        if node.op != "matmul" or node.rate == Rate.WEIGHT:
            return compute(*args)
        matrix = _Rounded.apply(args[0], rounds("matrix", exact=True), same)
        exact = node.args[1].op == "input"  # the same numbers for both
        vector = _Rounded.apply(args[1], rounds("vector", exact), same)
        return _Rounded.apply(compute(matrix, vector), torch.clone, rounds("cotangent"))

    kernel = ReferenceKernel(compiler.graph_of(case.cell), case.dims, change)
    call = call_of(given_of(case))
    leaves = leaves_of(call.tensors, [True] * len(call.tensors))
    result = kernel.forward(call.with_tensors(leaves))
    ds = (case.d_output, *case.d_last.values())
    grads = vjp(result.values, leaves, ds, [True] * len(leaves))
    names = (*case.inputs, *case.states, *case.weights)
    found = {"out": result.output.detach()}
    found |= {f"last {name}": end.detach() for name, end in zip(case.states, result.last)}
    found |= {f"d{name}": grad for name, grad in zip(names, grads) if grad is not None}
    return found, calm


def judged(draw: Callable[[int], Case], every: bool = False) -> tuple[Case, Results]:
    """A case that can be judged, and what is right for it.

    Args:
        draw: a case of a seed; the samples that are far from all middles are taken from the first
            that has any.
        every: of the first whose samples all are.
    """
    for seed in range(_SEEDS):
        case = draw(seed)
        results, calm = rounding_oracle(case)
        if calm.all():
            return case, results
        if calm.any() and not every:
            case = dataclasses.replace(
                case,
                inputs={name: value[:, calm] for name, value in case.inputs.items()},
                states={name: value[calm] for name, value in case.states.items()},
                d_output=case.d_output[:, calm],
                d_last={name: value[calm] for name, value in case.d_last.items()},
            )
            return case, rounding_oracle(case)[0]
    raise AssertionError("no sample is far from all middles: take fewer steps")

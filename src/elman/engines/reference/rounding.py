"""Products with operands rounded to bfloat16, for ``precision="bf16"``.

Each operand of a product is rounded once: in the forward the matrix and the vector, in the backward
the cotangent of the result, which both gradients multiply. Rounding has the derivative of the
identity.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from elman.ir.graph import Node
from elman.ir.pair import loop_invariant


def rounded(value: Tensor) -> Tensor:
    """The nearest numbers of bfloat16, ties to even, in the type of the value."""
    return value.to(torch.bfloat16).to(value.dtype)


class _Rounded(Function):
    """``apply(v)``: v rounded; its cotangent unchanged."""

    @staticmethod
    def forward(ctx: Any, value: Tensor) -> Tensor:
        """The value, rounded."""
        del ctx
        return rounded(value)

    @staticmethod
    def backward(ctx: Any, d: Tensor) -> Tensor:  # type: ignore[override]
        """The cotangent."""
        del ctx
        return d


class _RoundedBack(Function):
    """``apply(v)``: v unchanged; its cotangent rounded."""

    @staticmethod
    def forward(ctx: Any, value: Tensor) -> Tensor:
        """The value."""
        del ctx
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, d: Tensor) -> Tensor:  # type: ignore[override]
        """The cotangent, rounded."""
        del ctx
        return rounded(d)


def round_products(node: Node, compute: Callable[..., Tensor], args: list[Tensor]) -> Tensor:
    """Value of an op; products of each step round their operands, products of weights alone, which
    are computed once per call, do not."""
    if node.op != "matmul" or loop_invariant(node):
        return compute(*args)
    return _RoundedBack.apply(compute(*[_Rounded.apply(arg) for arg in args]))

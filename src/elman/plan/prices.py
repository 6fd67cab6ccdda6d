"""Cost model of saving and computing values, in units of one save and load of one element."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from elman.ir.graph import Node
from elman.ir.ops import OPS, TRANSCENDENTAL
from elman.ir.types import gate_block_size
from elman.plan.frontier import INFINITE


@dataclass(frozen=True)
class Prices:
    """The engine's prices per element; only their ratios matter.

    Attributes:
        save: store a value in one phase and load it in another.
        transcendental: one exp, tanh, sigmoid …
        elementwise: one addition or multiplication.
        product: one multiply-add of a matrix product inside the time loop.
        reduction: one element of a sum over units, and its share of the synchronisation.
        scalar: elements whose transcendental function takes as long as that of one number per
            sample: a scalar fills a whole vector of 16 units.
        late: price of computing a value in the loop for the phase after it, as a share of its cost
            in that phase.
    """

    save: float = 1.0
    transcendental: float = 0.4
    elementwise: float = 0.04
    product: float = 0.1
    reduction: float = 0.3
    scalar: float = 16.0
    late: float = 0.0


BALANCED = Prices()


def width(value: Node, sizes: Mapping[str, int]) -> int:
    """Elements of one value for one sample."""
    size = 1
    for dim in value.shape:
        size *= sum(gate_block_size(gate_block, sizes) for gate_block in dim)
    return size


def compute_cost(value: Node, sizes: Mapping[str, int], prices: Prices) -> float:
    """Cost of computing a value from its arguments."""
    op = OPS[value.op]
    if value.op == "matmul":
        inner = width(value.args[1], sizes)
        return prices.product * inner * max(1, width(value, sizes))
    if value.op == "bmm":
        left, right, result = (width(v, sizes) for v in (*value.args, value))
        return prices.product * (left * right * result) ** 0.5  # see cost.node_work
    if op.kind in ("reduce", "scan"):
        return prices.reduction * sum(width(arg, sizes) for arg in value.args)
    if op.kind == "spread":
        return prices.elementwise * width(value, sizes)
    if op.kind != "pointwise":
        return 0.0
    if value.op in TRANSCENDENTAL:
        elements = width(value, sizes) if value.shape else prices.scalar
        return prices.transcendental * elements
    count = len(value.args) if value.op == "lin" else op.cost
    return prices.elementwise * count * width(value, sizes)


def save_cost(value: Node, sizes: Mapping[str, int], prices: Prices) -> float:
    """Cost of saving a value from one phase to another. Unit indices are never saved: a tape in
    half precision would round them."""
    if value.op == "argmax":
        return INFINITE
    return prices.save * width(value, sizes)

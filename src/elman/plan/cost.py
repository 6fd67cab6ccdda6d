"""Work and memory of a program per row of T·B."""

from __future__ import annotations

from dataclasses import dataclass
from math import isqrt

from elman.ir.graph import Node
from elman.ir.ops import OPS
from elman.ir.types import gate_block_size
from elman.plan.prices import width
from elman.plan.program import Phase, Program, Sweep
from elman.plan.spec import Spec

ITEM_BYTES = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2}


@dataclass(frozen=True)
class Work:
    """Work of one sweep for one step of one sample.

    Attributes:
        products: floating point operations of matrix products, two per multiply-add.
        pointwise: evaluations of any other op on one element.
    """

    products: int
    pointwise: int

    def __add__(self, other: Work) -> Work:
        return Work(self.products + other.products, self.pointwise + other.pointwise)


def item_bytes(spec: Spec) -> int:
    """Bytes of one element."""
    return ITEM_BYTES[spec.dtype]


def node_work(value: Node, spec: Spec) -> Work:
    """The work of computing one value from its arguments."""
    sizes = spec.sizes
    if value.op == "matmul":
        return Work(2 * width(value.args[0], sizes), 0)
    if value.op == "bmm":  # [K, n] @ [n, V]: K·n·V, the root of the product of all three
        left, right, result = (width(v, sizes) for v in (*value.args, value))
        return Work(2 * isqrt(left * right * result), 0)
    if OPS[value.op].kind == "reduce":
        return Work(0, sum(width(arg, sizes) for arg in value.args))
    if value.op == "lin":  # one operation per term but the first, and per factor
        factors = sum(abs(coef) != 1 for coef in value.coefs) + bool(value.bias)
        return Work(0, width(value, sizes) * max(1, len(value.args) - 1 + factors))
    counted = OPS[value.op].kind in ("pointwise", "spread", "scan")
    return Work(0, width(value, sizes) if counted else 0)


def phase_nodes(phase: Phase) -> list[Node]:
    """Everything that a phase computes, in order."""
    return [value for segment in phase.segments for value in segment.nodes]


def sweep_nodes(sweep: Sweep) -> list[Node]:
    """All values computed by one direction in time, without loop-invariant ones."""
    return [value for phase in sweep.phases for value in phase_nodes(phase)]


def sweep_work(sweep: Sweep, spec: Spec) -> Work:
    """Work of one direction in time, without loop-invariant values."""
    return sum((node_work(value, spec) for value in sweep_nodes(sweep)), Work(0, 0))


def forward_work(program: Program) -> Work:
    """The work of the forward for one step of one sample."""
    return sweep_work(program.forward, program.spec)


def backward_work(program: Program) -> Work:
    """The work of the backward for one step of one sample, the sums for the weights included."""
    if program.backward is None:
        return Work(0, 0)
    total, sizes = sweep_work(program.backward, program.spec), program.spec.sizes
    for term in program.sums:
        if term.right is None:
            total += Work(0, width(term.left, sizes))
        else:
            total += Work(2 * width(term.left, sizes) * width(term.right, sizes), 0)
    return total


def repeated_products(program: Program) -> int:
    """Operations per step and sample of products that repeat a product of the forward or of another
    segment (FLOP)."""
    nodes = [value for sweep in program.sweeps for value in sweep_nodes(sweep)]
    work = [sum(node_work(v, program.spec).products for v in of) for of in (nodes, {*nodes})]
    return work[0] - work[1]


def tape_bytes(program: Program) -> int:
    """Bytes that the forward keeps for the backward per row of T·B, in addition to the states."""
    sizes = program.spec.sizes
    widths = (1 if slot is None else gate_block_size(slot, sizes) for slot in program.tape)
    return item_bytes(program.spec) * sum(widths)


def state_bytes(program: Program) -> int:
    """Bytes of all states per row of T·B: their sequences are kept in training."""
    step, sizes = program.pair.step, program.spec.sizes
    return item_bytes(program.spec) * sum(width(leaf, sizes) for leaf in step.states)

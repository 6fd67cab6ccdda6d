"""The op table: name, kind, arity and cost of every op.

One row per op. Beside this table an op has a VJP row in ``autodiff/rules.py``, and for authors of
cells a function in ``frontend/functions.py``. Unless a row says otherwise, the value of a pointwise
op is torch's function of its name (``ir/evaluate.py``), and its spelling ``v_name`` in C (of
``engines/c/headers/functions.h``) and ``lib.name`` in Triton (``engines/triton/library.py``).
Reductions are ``name_of`` in ``engines/c/headers/reductions.h``, and ``FOLDS`` of
``engines/triton/text/ops.py``. A test checks that nothing is missing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

OpKind = Literal["leaf", "pointwise", "reduce", "spread", "scan", "product", "move"]


@dataclass(frozen=True)
class Op:
    """One row: ``kind`` decides the type rule; ``cost`` is in elementwise operations."""

    name: str
    kind: OpKind
    arity: int | None = None  # None: one or more
    cost: float = 1.0


_TABLE = (
    Op("input", "leaf", 0),
    Op("state", "leaf", 0),
    Op("weight", "leaf", 0),
    Op("cotangent", "leaf", 0),
    Op("const", "leaf", 0),
    Op("count", "leaf", 0),  # the number of units in the gate blocks of ``data``
    # a number drawn in [0, 1) as a formula writes it: data = (name, number, per); ``uniform`` after
    # ``passes/draws``
    Op("draw", "leaf", 0),
    # moves of whole gate blocks: gone after the canonical form
    Op("split", "move", 1, 0.0),
    Op("concat", "move", None, 0.0),
    Op("transpose", "move", 1, 0.0),
    # a weight matrix [K, V] as a matrix per sample: gone after ``passes/static``
    Op("per_sample", "move", 1, 0.0),
    # the same units in other gate blocks: several as one, which is an axis of a matrix per sample,
    # or the other way round. The canonical form has a sum of ``place``, and ``cut``
    Op("reblock", "move", 1, 0.0),
    # the first in training, the second otherwise: gone after ``passes/draws``
    Op("training", "move", 2, 0.0),
    # a sum with coefficients: data = (coefs, bias); gathers add, sub, neg and scaling
    Op("lin", "pointwise", None),
    Op("add", "pointwise", 2),
    Op("sub", "pointwise", 2),
    Op("neg", "pointwise", 1),
    Op("mul", "pointwise", 2),
    Op("div", "pointwise", 2, 4.0),
    Op("tanh", "pointwise", 1, 12.0),
    Op("sigmoid", "pointwise", 1, 12.0),
    Op("relu", "pointwise", 1),
    Op("exp", "pointwise", 1, 8.0),
    Op("log", "pointwise", 1, 20.0),
    Op("sqrt", "pointwise", 1, 6.0),
    Op("abs", "pointwise", 1),
    Op("sign", "pointwise", 1, 2.0),
    Op("sin", "pointwise", 1, 20.0),
    Op("cos", "pointwise", 1, 20.0),
    Op("erf", "pointwise", 1, 20.0),
    Op("atan", "pointwise", 1, 20.0),
    Op("asinh", "pointwise", 1, 30.0),
    Op("expm1", "pointwise", 1, 20.0),
    Op("floor", "pointwise", 1, 3.0),
    Op("round", "pointwise", 1, 2.0),  # half to even
    Op("pow", "pointwise", 2, 40.0),
    Op("remainder", "pointwise", 2, 20.0),  # of the divisor's sign
    Op("softplus", "pointwise", 1, 24.0),
    Op("minimum", "pointwise", 2),
    Op("maximum", "pointwise", 2),
    Op("where", "pointwise", 3),
    Op("lt", "pointwise", 2),
    Op("le", "pointwise", 2),
    Op("gt", "pointwise", 2),
    Op("ge", "pointwise", 2),
    Op("eq", "pointwise", 2),
    Op("ne", "pointwise", 2),
    Op("stop", "pointwise", 1, 0.0),
    # the first argument as it is, with another derivative (``STAND_INS``)
    Op("surrogate", "pointwise", 3, 0.0),  # d · the third, to the second
    Op("clip_gradient", "pointwise", 2, 0.0),  # d held within ± the second, to the first
    # a number in [0, 1) drawn from a key of two halves: data = (number of the draw[, gate block])
    Op("uniform", "pointwise", 2, 12.0),
    # over all units of the arguments (several gate blocks): a scalar per sample; or over each
    # of G groups of neighbours in one gate block: [G]
    Op("sum", "reduce", None),
    Op("mean", "reduce", None),
    Op("var", "reduce", None, 2.0),
    Op("amax", "reduce", None),
    Op("argmax", "reduce", None),  # number of the first largest unit in its group, from 0; a float
    # sums over the rows of a matrix per sample: a number per column
    Op("fold", "reduce", 1),
    # a vector to every row of a matrix per sample: a number per column
    Op("tile", "spread", 1),
    # a number per group, or one for all, to the units of a gate block
    Op("spread", "spread", 1),
    # 1 at the unit of each group that has the given number, else 0; data: the gate blocks before,
    # where the number counts over several
    Op("one_hot", "spread", 1),
    # sums of units from the first to each; data = ("R",): from each to the last
    Op("cumsum", "scan", 1),
    # a gate block within a wider one, -0 elsewhere, which changes no sum; a gate block that is a
    # part of a wider one. data: the gate blocks before it
    Op("place", "scan", 1),
    Op("cut", "scan", 1),
    # of a matrix per sample: its transpose; its rows, each ``data[0]`` further down, round the end
    Op("swapaxes", "scan", 1),
    Op("roll", "scan", 1),
    # matrix [rows, cols] times vector [cols]; data = ("T",) for the transpose
    Op("matmul", "product", 2),
    # two matrices per sample; data = ("L",), ("R",) for the transpose of the left, or right one
    Op("bmm", "product", 2),
    # vector times vector, weights alone: [rows, cols]
    Op("outer", "product", 2),
)

OPS: dict[str, Op] = {op.name: op for op in _TABLE}
POINTWISE = {op.name: op for op in _TABLE if op.kind == "pointwise"}
# over all units of their arguments, or over groups of them
REDUCTIONS = tuple(op.name for op in _TABLE if op.kind == "reduce" and op.arity is None)
SUMS = ("lin", "add", "sub", "neg")  # of which the canonical form leaves ``lin``


def spell_calls(call: str) -> dict[str, str]:
    """Templates that spell each pointwise op, but sums, as a call of a function.

    Args:
        call: of the function, with ``{name}`` for the op and ``{args}`` for its arguments.
    """
    return {
        name: call.format(name=name, args=", ".join(f"{{{at}}}" for at in range(op.arity or 0)))
        for name, op in POINTWISE.items()
        if name not in SUMS
    }


# ops of whole matrices per sample: of units by row and column
OF_MATRICES = ("bmm", "swapaxes", "roll")
# of a gate block that lies within a wider one, vectors or rows of matrices
OF_PARTS = ("place", "cut")
# a vector along one axis of a matrix per sample; sums of one, taken in the pass that computes it
SPREADS = ("spread", "tile")
ACCUMULATED = ("sum", "fold")
COMPARISONS = ("lt", "le", "gt", "ge", "eq", "ne")
# where the last bit of what they take (``where``: of its condition) decides, or what they take is
# subtracted again: nothing is reordered into it
STEPS = (*COMPARISONS, "where", "stop", "floor", "round", "remainder")
# whose other arguments the derivative alone reads: a step runs with the first one in their place
STAND_INS = ("surrogate", "clip_gradient")
# whose backward is not linear in what flows back: written twice, each has a sum of its own
DISTINCT = ("clip_gradient",)
# values whose derivative is 0 wherever it exists, or by decree
FLAT = (*COMPARISONS, "stop", "sign", "floor", "round", "argmax", "one_hot")
TRANSCENDENTAL = tuple(op.name for op in _TABLE if op.kind == "pointwise" and op.cost >= 8.0)

"""Products of matrices and vectors."""

from __future__ import annotations

from collections.abc import Callable

from elman.steps.arrays import arithmetic, views
from elman.steps.arrays.arithmetic import combine
from elman.steps.arrays.array import Array, add_axis
from elman.steps.operations.table import Row, op_named, row


@row("mv")
def _mv(a: Array, b: Array) -> Array:
    return views.squeeze(arithmetic.matmul(a, add_axis(b, 1)), [1])


def _added(product: Callable[[Array, Array], Array]) -> Row:
    """The row of β c + α product(a, b)."""

    def apply(c: Array, a: Array, b: Array, beta: float = 1, alpha: float = 1) -> Array:
        made = product(a, b)
        if alpha != 1:
            made = combine(lambda v: alpha * v, made)
        if beta == 0:
            return made
        return combine(lambda p, v: p + (v if beta == 1 else beta * v), made, c)

    return apply


row("mm", "bmm", "matmul")(lambda a, b, **_: arithmetic.matmul(a, b))
row("dot")(lambda a, b: arithmetic.reduced("sum", combine(op_named("mul"), a, b), [0], False))
row("addmm", "baddbmm")(_added(arithmetic.matmul))
row("addmv")(_added(_mv))

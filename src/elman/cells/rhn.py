"""Recurrent highway network."""

from functools import cache
from typing import Any

from elman.cells._numbered import named, numbered
from elman.frontend.cell import Cell, cell
from elman.ops import sigmoid, split, tanh

_DEPTH = 3


@cache
def rhn_of(depth: int) -> Cell:
    """The cell of a recurrence depth of 1 or more: ``elman.Recurrent(cells.rhn_of(10), …)``."""

    def rhn(x, s, W, R, b):
        """Highway layers within a step; R and b have them in order, candidate before gate each."""
        pre = [W @ x, *(0.0 for _ in range(depth - 1))]
        for layer, matrix, bias in zip(pre, split(R, depth), split(b, depth), strict=True):
            candidate, gate = split(matrix @ s + bias + layer, 2)
            gate = sigmoid(gate)
            s = tanh(candidate) * gate + s * (1 - gate)
        return s

    decorator = cell(
        input="x[I]",
        state="s[H]",
        weights=f"W[2H, I], R[{2 * depth}H, H], b[{2 * depth}H]",
        source="Zilly, Srivastava, Koutník & Schmidhuber 2017, arXiv:1607.03474, eqs. 6-9, carry "
        "and transform gate coupled",
    )
    return decorator(named(rhn, "rhn" if depth == _DEPTH else f"rhn_{depth}"))


def __getattr__(name: str) -> Any:
    return numbered(__name__, name, "rhn", rhn_of)


rhn = rhn_of(_DEPTH)

"""Gated DeltaProduct: several steps of the delta rule for each token."""

from functools import cache
from typing import Any

from elman.cells._numbered import named, numbered
from elman.cells.delta_net import delta_net
from elman.frontend.cell import Cell, cell
from elman.ops import split, sum

_STEPS = 2


@cache
def gated_delta_product_of(steps: int) -> Cell:
    """The cell of 2 or more steps of the delta rule a token:
    ``elman.Recurrent(cells.gated_delta_product_of(3), …)``; of one it is ``gated_delta_net``."""

    def gated_delta_product(q, k, v, a, b, S):
        """k, v and b have the keys, values and writing strengths of the steps, one after another;
        ``a`` is the decay itself, once for the token. Strengths up to 2 have negative eigenvalues.
        """
        S, y = a * S, 0.0
        for key, value, strength in zip(*(split(v, steps) for v in (k, v, b)), strict=True):
            y, S = delta_net(q, key, value, sum(strength), S)
        return y, S

    decorator = cell(
        input=f"q[K], k[{steps}K], v[{steps}V], a, b[{steps}]",
        state="S[K, V]",
        output="y[V]",
        source="Siems et al. 2025 (DeltaProduct), arXiv:2502.10297v6, section 3, with the gate of "
        "Gated DeltaNet",
    )
    name = "gated_delta_product"
    return decorator(named(gated_delta_product, name if steps == _STEPS else f"{name}_{steps}"))


def __getattr__(name: str) -> Any:
    return numbered(__name__, name, "gated_delta_product", gated_delta_product_of)


gated_delta_product = gated_delta_product_of(_STEPS)

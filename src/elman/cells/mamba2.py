"""Mamba-2: a state space whose decay is one number for each head."""

from elman.frontend.cell import cell
from elman.ops import exp, outer


@cell(
    input="x[P], dt, B[N], C[N]",
    static="A",
    state="S[P, N]",
    output="y[P]",
    source="Dao & Gu 2024 (Mamba-2), arXiv:2405.21060v1, eq. 2 with a scalar A, discretised as in "
    "the authors' code",
)
def mamba2(x, dt, B, C, A, S):
    """``dt`` is positive, A negative; the skip D x of the published layer is added behind."""
    S = exp(dt * A) * S + outer(dt * x, B)
    return S @ C, S

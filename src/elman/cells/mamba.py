"""Mamba: a selective state space with N states for each channel."""

from elman.frontend.cell import cell
from elman.ops import exp, outer, rows


@cell(
    input="x[D], dt[D], B[N], C[N]",
    static="A[D, N]",
    state="S[D, N]",
    output="y[D]",
    source="Gu & Dao 2023 (Mamba), arXiv:2312.00752v2, eq. 2 with A discretised by eq. 4, and B "
    "by Euler's rule as in the authors' code",
)
def mamba(x, dt, B, C, A, S):
    """``dt`` is positive, A negative; the skip D x of the published layer is added behind."""
    S = exp(rows(dt) * A) * S + outer(dt * x, B)
    return S @ C, S

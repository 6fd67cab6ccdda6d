"""Mamba: a selective state space with N states for each channel."""

from typing import Any

from elman.frontend.cell import cell
from elman.ops import exp, outer, rows


def _count_up(A_log: Any) -> None:
    """Each channel's states decay at the rates 1 to N, as in the paper's section 3.6 [D, N]."""
    A_log.copy_((A_log.new_ones(A_log.shape).cumsum(-1)).log())


def scan_step(x: Any, dt: Any, B: Any, C: Any, S: Any, rate: Any) -> tuple[Any, Any]:
    """One step of states that decay at positive rates [D, N]."""
    S = exp(-rows(dt) * rate) * S + outer(dt * x, B)
    return S @ C, S


@cell(
    input="x[D], dt[D], B[N], C[N]",
    state="S[D, N]",
    weights="A_log[D, N]",
    init={"A_log": _count_up},
    output="y[D]",
    source="Gu & Dao 2023 (Mamba), arXiv:2312.00752v2, eq. 2 with A discretised by eq. 4, and B "
    "by Euler's rule as in the authors' code",
)
def mamba(x, dt, B, C, S, A_log):
    """``dt`` is positive; A is -exp(A_log). The skip D x of the published layer is added behind."""
    return scan_step(x, dt, B, C, S, exp(A_log))

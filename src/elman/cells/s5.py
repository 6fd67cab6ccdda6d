"""S5: one state space of many inputs and outputs, diagonal, of complex modes as pairs of reals."""

import math
from collections.abc import Callable
from typing import Any

from elman.frontend.cell import cell
from elman.ops import cos, exp, sin, split


def s5_frequencies(blocks: int = 1) -> Callable[[Any], None]:
    """Return an initialiser of ``A_imag`` [H] of :data:`s5`: for each of the authors' J ``blocks``
    the positive imaginary parts of HiPPO-N's eigenvalues, in rising order; the authors keep their
    conjugates, which compute the same.

    HiPPO-N of N = 2 H / J states is -1/2 plus a skew matrix of √(n + 1/2) √(k + 1/2) above and its
    negative below the diagonal, whose singular values are pairs of what is asked for.
    """

    def fill(A_imag: Any) -> None:
        roots = (A_imag.new_ones(2 * len(A_imag) // blocks).double().cumsum(0) - 0.5).sqrt()
        upper = roots.outer(roots).triu(1)
        rising = (upper - upper.mT).svd(compute_uv=False).S.flip(0)[::2]
        A_imag.copy_(rising.repeat(blocks))

    return fill


def _time_steps(log_step: Any) -> None:
    """From 0.001 to 0.1, evenly in their logarithms [H]."""
    log_step.uniform_(math.log(1e-3), math.log(1e-1))


def _inputs(B: Any) -> None:
    """LeCun's normal numbers of 2H states in the basis of eigenvectors, which is unitary [2H, I]:
    the variance 1 / 2H is half that of the real part, half that of the imaginary one."""
    B.normal_(std=(2 * len(B)) ** -0.5)


def _skip(D: Any) -> None:
    """Normal numbers [I]."""
    D.normal_()


def _outputs(C: Any) -> None:
    """One part of complex normal numbers, 1 / 2H the variance of each part [I, H]."""
    C.normal_(std=(2 * C.shape[-1]) ** -0.5)


@cell(
    input="x[I]",
    state="p[H], q[H]",
    weights="A_real[H], A_imag[H], B[2H, I], C[I, H], S[I, H], D[I], log_step[H]",
    init={
        "A_real": -0.5, "A_imag": s5_frequencies(), "B": _inputs, "C": _outputs, "S": _outputs,
        "D": _skip, "log_step": _time_steps,
    },
    output="y[I]",
    source="Smith, Warrington & Linderman 2023 (S5), arXiv:2208.04933, zero-order hold; as the "
    "authors' code (lindermanlab/S5 at 52fbd83, s5/ssm.py), and s5-pytorch 0.2.1 (S5SSM) with "
    "conj_sym=False",
)  # fmt: skip
def s5(x, p, q, A_real, A_imag, B, C, S, D, log_step, *, conj_sym=True):
    """H modes p + iq turn and shrink by exp(A Δ); y [I] = 2 Re((C + iS)(p + iq)) + D x.

    Modes stand for conjugate pairs, half the authors' ``ssm_size``; without ``conj_sym`` each is
    one, and y has no factor 2. B has the real rows before the imaginary ones. Nothing keeps A_real
    below 0, as by default there. The layer's norm, gate and residual are added around.
    """
    step = exp(log_step)
    size = exp(A_real * step)
    a, b = size * cos(A_imag * step), size * sin(A_imag * step)
    norm = A_real * A_real + A_imag * A_imag
    g, f = ((a - 1) * A_real + b * A_imag) / norm, (b * A_real - (a - 1) * A_imag) / norm
    up, uq = split(B @ x, 2)  # times (exp(A Δ) - 1) / A = g + if
    p, q = a * p - b * q + (g * up - f * uq), a * q + b * p + (g * uq + f * up)
    y = C @ p - S @ q
    return (2 * y if conj_sym else y) + D * x, p, q

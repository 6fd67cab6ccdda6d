"""S4D: a state space for each channel, diagonal, of complex modes as pairs of reals."""

import math
from collections.abc import Callable
from typing import Any

from elman.frontend.cell import cell
from elman.ops import cos, exp, sin, spread, sum


def s4d_frequencies(modes: int) -> Callable[[Any], None]:
    """Return an initialiser of ``A_imag`` [M] of :data:`s4d`: pi times 0, 1, 2 … for the modes of
    each channel."""

    def fill(A_imag: Any) -> None:
        count = A_imag.new_ones(A_imag.shape).cumsum(0) - 1
        A_imag.copy_(math.pi * count.remainder(modes))

    return fill


def _time_steps(log_dt: Any) -> None:
    """From 0.001 to 0.1, evenly in their logarithms."""
    log_dt.uniform_(math.log(1e-3), math.log(1e-1))


def _normal(C: Any) -> None:
    """One part of a complex normal number of variance 1."""
    C.normal_(std=0.5**0.5)


@cell(
    input="x[D]",
    state="p[M], q[M]",
    weights="log_dt[D], log_A_real[M], A_imag[M], C_real[M], C_imag[M]",
    init={
        "log_dt": _time_steps, "log_A_real": math.log(0.5), "A_imag": s4d_frequencies(32),
        "C_real": _normal, "C_imag": _normal,
    },
    output="y[D]",
    source="Gu, Gupta, Goel & Ré 2022, arXiv:2206.11893 (S4D-Lin, zero-order hold), where B is 1; "
    "as the authors' code (state-spaces/s4 at 2ed46fc, models/s4/s4d.py)",
)  # fmt: skip
def s4d(x, p, q, log_dt, log_A_real, A_imag, C_real, C_imag):
    """M / D modes a channel, 32 unless ``A_imag`` is given for others: p + iq turns and shrinks by
    exp(dt A). The skip of the published layer is added behind."""
    dt, real = spread(exp(log_dt), p), -exp(log_A_real)
    size = exp(dt * real)
    a, b = size * cos(dt * A_imag), size * sin(dt * A_imag)
    u = spread(x, p)
    p, q = a * p - b * q + u, a * q + b * p
    norm = real * real + A_imag * A_imag
    e, f = ((a - 1) * real + b * A_imag) / norm, (b * real - (a - 1) * A_imag) / norm
    c, s = C_real * e - C_imag * f, C_real * f + C_imag * e  # C (exp(dt A) - 1) / A
    return 2 * sum(c * p - s * q, groups="D"), p, q

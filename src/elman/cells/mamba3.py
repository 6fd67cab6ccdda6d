"""Mamba-3: a state space of complex modes, discretised by a trapezoidal rule."""

import math
from typing import Any

from elman.frontend.cell import cell
from elman.ops import concat, cos, exp, outer, remainder, sin, split


def _turn(v: Any, phase: Any) -> Any:
    """Pairs of the two halves of v [2R], turned by angles [R]."""
    c, s, (p, q) = cos(phase), sin(phase), split(v, 2)
    return concat(c * p - s * q, s * p + c * q)


@cell(
    input="x[P], dt, A, trap, theta[R], B[2R], C[2R]",
    state="S[P, 2R], phase[R], k[2R], v[P]",
    output="y[P]",
    source="Lahoti et al. 2026 (Mamba-3), arXiv:2603.15569v1, exponential-trapezoidal rule with "
    "rotary embeddings for complex modes; as mamba3_siso_step_ref of the authors' code "
    "(state-spaces/mamba at e9594ce, tests/ops/triton/test_mamba3_siso.py)",
)
def mamba3(x, dt, A, trap, theta, B, C, S, phase, k, v):
    """``dt`` is positive, A negative; ``trap`` between 0 and 1 is the share of this step in the
    rule, lambda, whose rest goes to the last step: to its input v and its B, k.

    R complex modes for each of P channels turn back by ``theta`` dt a step. Instead of S, B and C
    are turned forward by the sum of all angles so far, ``phase``. A mode's two parts are R units
    apart, where the authors' are neighbours; one that does not turn has a theta of 0. Norms and
    biases of B and C come before, the skip D x and the gate of the published layer behind; of one
    input and one output for each channel (SISO).
    """
    phase = remainder(phase + dt * theta, 2 * math.pi)
    B, C = _turn(B, phase), _turn(C, phase)
    decay = exp(dt * A)
    S = decay * S + outer((1 - trap) * dt * decay * v, k) + outer(trap * dt * x, B)
    return S @ C, S, phase, B, x

"""Real-gated linear recurrent unit, of Griffin and RecurrentGemma."""

from typing import Any

from elman.frontend.cell import cell
from elman.ops import exp, expm1, sigmoid, softplus, split, sqrt

_POWER = 8.0  # c of the paper


def _slow(decay: Any) -> None:
    """``sigmoid(decay) ** 8`` uniform between 0.9 and 0.999, as in the paper's section 2.4 [H]."""
    a = decay.uniform_(0.9, 0.999) ** (1 / _POWER)
    decay.copy_((a / (1 - a)).log())


@cell(
    input="x[I]",
    state="h[H]",
    weights="U[H, I], W[2H, H], b[2H], decay[H]",
    init={"decay": _slow},
    source="De et al. 2024, arXiv:2402.19427v1, eq. 1 to 4; U is the projection in front of the "
    "layer, decay the paper's Lambda, and gates see all units; with heads, blocks of them as there",
)
def rglru(x, h, U, W, b, decay):
    """What is kept of each unit depends on the input; the norm of the state stays what it was."""
    u = U @ x
    r, i = split(sigmoid(W @ u + b), 2)
    log_a = -_POWER * softplus(-decay) * r  # the logarithm of a
    return exp(log_a) * h + sqrt(-expm1(2 * log_a)) * (i * u)

"""Antisymmetric recurrent networks."""

from elman.frontend.cell import cell
from elman.ops import sigmoid, split, tanh


@cell(
    input="x[I]",
    state="h[H]",
    weights="V[H, I], W[H, H], b[H]",
    source="Chang, Chen, Haber & Chi 2019, arXiv:1902.09689",
)
def antisymmetric(x, h, V, W, b, *, epsilon=0.01, gamma=0.01):
    """A step ``epsilon`` of Euler's along tanh((W - Wᵀ - gamma I) h + V x + b)."""
    return h + epsilon * tanh((W - W.T) @ h - gamma * h + V @ x + b)


@cell(
    input="x[I]",
    state="h[H]",
    weights="V[2H, I], W[H, H], b[2H]",
    source="Chang, Chen, Haber & Chi 2019, arXiv:1902.09689, with gating",
)
def antisymmetric_gated(x, h, V, W, b, *, epsilon=0.01, gamma=0.01):
    """The same with a gate that shares the recurrent matrix; gate first in V and b."""
    gate, new = split(V @ x + b, 2)
    back = (W - W.T) @ h - gamma * h
    return h + epsilon * sigmoid(back + gate) * tanh(back + new)

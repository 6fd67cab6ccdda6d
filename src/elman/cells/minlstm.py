"""Minimal long short-term memory: linear in its state."""

from elman.cells.mingru import candidate_state
from elman.frontend.cell import cell
from elman.ops import sigmoid, split


@cell(
    input="x[I]",
    state="h[H]",
    weights="W[3H, I], b[3H]",
    source="Feng, Tung, Ahmed, Bengio & Hajimirsadeghi 2024, arXiv:2410.01201v3, section 3.2; "
    "candidate='positive': appendix B.3, the log-space version",
)
def minlstm(x, h, W, b, *, candidate="linear"):
    """Two gates that see the input alone, normalised so that they add up to one; candidates as of
    ``mingru``."""
    f, i, n = split(W @ x + b, 3)
    f, i = sigmoid(f), sigmoid(i)
    keep = f / (f + i)
    return keep * h + (1 - keep) * candidate_state(n, candidate)

"""Minimal gated recurrent unit: linear in its state."""

from elman.frontend.cell import cell
from elman.frontend.lines import refuse
from elman.ops import sigmoid, split, where


def candidate_state(n, candidate):
    """n [H] itself, or g(n) > 0 of the paper's appendix B.3: n + 0.5 from 0 on, else sigmoid(n).

    Raises:
        TraceError: there is no such candidate.
    """
    if candidate not in ("linear", "positive"):
        refuse(f"candidate must be linear or positive, not {candidate!r}", 'candidate="positive"')
    return where(n >= 0, n + 0.5, sigmoid(n)) if candidate == "positive" else n


@cell(
    input="x[I]",
    state="h[H]",
    weights="W[2H, I], b[2H]",
    source="Feng, Tung, Ahmed, Bengio & Hajimirsadeghi 2024, arXiv:2410.01201v3, section 3.1; "
    "candidate='positive': appendix B.3, the log-space version",
)
def mingru(x, h, W, b, *, candidate="linear"):
    """Gate and candidate see the input alone, so all steps are one linear scan.

    With ``candidate="positive"`` it is what the paper's log-space version computes: the candidate
    is g(n) > 0, n + 0.5 where n >= 0 and sigmoid(n) elsewhere, and so is the state. The parallel
    form there begins with g of its argument h_0: pass g(h_0).
    """
    z, n = split(W @ x + b, 2)
    z = sigmoid(z)
    return (1 - z) * h + z * candidate_state(n, candidate)

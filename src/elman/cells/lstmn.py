"""LSTM that attends to its last M states in place of the one before."""

from elman.frontend.cell import cell
from elman.ops import columns, shift, sigmoid, softmax, split, tanh


@cell(
    input="x[I]",
    state="hidden[M, H], memory[M, H], past[H]",
    output="y[H]",
    weights="W[4H, I], R[4H, H], b[4H], A[H, H], B[H, H], C[H, I], v[H]",
    source="Cheng, Dong & Lapata 2016 (LSTMN), arXiv:1601.06733, of the last M steps",
)
def lstmn(x, hidden, memory, past, W, R, b, A, B, C, v):
    """Tapes hold the last M hidden states and memories, zeros before the first step; ``past`` is
    the last summary. Gates are i, f, o and the candidate."""
    shares = softmax(tanh(hidden @ A.T + columns(B @ past + C @ x)) @ v)
    past, kept = hidden.T @ shares, memory.T @ shares
    i, f, o, g = split(W @ x + R @ past + b, 4)
    c = sigmoid(f) * kept + sigmoid(i) * tanh(g)
    h = sigmoid(o) * tanh(c)
    return h, shift(hidden, h), shift(memory, c), past

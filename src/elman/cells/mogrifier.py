"""Mogrifier LSTM: input and state gate each other before a long short-term memory."""

from functools import cache
from typing import Any

from elman.cells._numbered import named, numbered
from elman.frontend.cell import Cell, cell
from elman.ops import sigmoid, split, tanh

_ROUNDS = 5


@cache
def mogrifier_of(rounds: int) -> Cell:
    """The cell of 2 or more rounds: ``elman.Recurrent(cells.mogrifier_of(4), …)``."""
    of_x, of_h = (rounds + 1) // 2, rounds // 2

    def mogrifier(x, h, c, W, R, b, Q, P):
        """Q has the matrices of odd rounds, P (the paper's R) those of even ones, in order."""
        gates_x, gates_h = split(Q, of_x), split(P, of_h)
        for index in range(rounds):
            if index % 2:
                h = 2 * sigmoid(gates_h[index // 2] @ x) * h
            else:
                x = 2 * sigmoid(gates_x[index // 2] @ h) * x
        i, f, g, o = split(W @ x + R @ h + b, 4)
        c = sigmoid(f) * c + sigmoid(i) * tanh(g)
        return sigmoid(o) * tanh(c), c

    decorator = cell(
        input="x[I]",
        state="h[H], c[H]",
        weights=f"W[4H, I], R[4H, H], b[4H], Q[{of_x}I, H], P[{of_h}H, I]",
        source="Melis, Kočiský & Blunsom 2020, arXiv:1909.01792, eqs. 1-2, matrices of full rank",
    )
    return decorator(named(mogrifier, "mogrifier" if rounds == _ROUNDS else f"mogrifier_{rounds}"))


def __getattr__(name: str) -> Any:
    return numbered(__name__, name, "mogrifier", mogrifier_of)


mogrifier = mogrifier_of(_ROUNDS)

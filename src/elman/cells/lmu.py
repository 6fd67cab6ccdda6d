"""Legendre memory unit: a window of the past in Legendre polynomials, by fixed matrices."""

from collections.abc import Callable
from typing import Any

from elman.frontend.cell import cell
from elman.ops import sum, tanh

Fill = Callable[[Any], Any]


def _discrete(order: int, theta: float, like: Any) -> Any:
    """``exp`` of ``[[A, B], [0, 0]] / theta``: one step, the input held [M+1, M+1]."""
    rows = [
        [(2 * i + 1) * (-1.0 if i < j else (-1.0) ** (i - j + 1)) / theta for j in range(order)]
        + [(2 * i + 1) * (-1.0) ** i / theta]
        for i in range(order)
    ]
    exact = like.double()
    return exact.new_tensor([*rows, [0.0] * (order + 1)]).matrix_exp()


def lmu_matrix(theta: float) -> Fill:
    """What fills ``A`` [M, M] of :data:`lmu` for a window of ``theta`` steps."""

    def fill(A: Any) -> None:
        A.copy_(_discrete(len(A), theta, A)[:-1, :-1])

    return fill


def lmu_vector(theta: float) -> Fill:
    """What fills ``B`` [M] of :data:`lmu` for a window of ``theta`` steps."""

    def fill(B: Any) -> None:
        B.copy_(_discrete(len(B), theta, B)[:-1, -1])

    return fill


@cell(
    input="x[I]",
    state="h[H], m[M]",
    weights="ex[I], eh[H], em[M], W[H, I], R[H, H], U[H, M]",
    constants="A[M, M], B[M]",
    init={"em": 0, "A": lmu_matrix(100.0), "B": lmu_vector(100.0)},
    source="Voelker, Kajić & Eliasmith 2019 (NeurIPS 32); the authors' code (keras-lmu at 28d1ea5, "
    "lmu/lmu.py): zero-order hold, no biases",
)
def lmu(x, h, m, ex, eh, em, W, R, U, A, B):
    """Legendre memory unit; its window is 100 steps unless A and B are given for another."""
    u = sum(ex * x) + sum(eh * h) + sum(em * m)
    m = A @ m + u * B
    h = tanh(W @ x + R @ h + U @ m)
    return h, m

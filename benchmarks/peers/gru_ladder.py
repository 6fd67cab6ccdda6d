"""A GRU's training step as loops over torch's operators: existing kernels, composed more and more
cleverly (Engel 2016).

``apart`` calls a product for each gate, of x and of h, in each step; ``joined`` one for all gates
that read the same vector. Of ``gru`` all three read h, of ``gru_before`` the candidate reads r * h.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

Weights = Mapping[str, Tensor]
Loop = Callable[[Tensor, Weights], tuple[Tensor, Tensor]]


def _run(x: Tensor, units: int, step: Callable[[Tensor, Tensor], Tensor]) -> tuple[Tensor, Tensor]:
    """Outputs [T, B, H] and the last state, from a state of zeros."""
    h, outputs = x.new_zeros(x.shape[1], units), []
    for row in x.unbind(0):
        h = step(row, h)
        outputs.append(h)
    return torch.stack(outputs), h


def _next(z: Tensor, n: Tensor, h: Tensor) -> Tensor:
    return n + z * (h - n)


def before_apart(x: Tensor, w: Weights) -> tuple[Tensor, Tensor]:
    """``gru_before``, six products a step."""
    inputs, biases, recurrent = w["W"].chunk(3), w["b"].chunk(3), w["R"].chunk(2)

    def step(row: Tensor, h: Tensor) -> Tensor:
        xr, xz, xn = (torch.addmm(b, row, W.t()) for b, W in zip(biases, inputs, strict=True))
        r, z = ((p + h @ R.t()).sigmoid() for p, R in zip((xr, xz), recurrent, strict=True))
        return _next(z, (xn + (r * h) @ w["U"].t()).tanh(), h)

    return _run(x, len(w["U"]), step)


def before_joined(x: Tensor, w: Weights) -> tuple[Tensor, Tensor]:
    """``gru_before``, three products a step."""

    def step(row: Tensor, h: Tensor) -> Tensor:
        xr, xz, xn = torch.addmm(w["b"], row, w["W"].t()).chunk(3, -1)
        hr, hz = (h @ w["R"].t()).chunk(2, -1)
        r, z = (xr + hr).sigmoid(), (xz + hz).sigmoid()
        return _next(z, (xn + (r * h) @ w["U"].t()).tanh(), h)

    return _run(x, len(w["U"]), step)


def after_joined(x: Tensor, w: Weights) -> tuple[Tensor, Tensor]:
    """``gru``, whose gate comes after the product: two products a step."""
    W, R, b, d = (w[name] for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"))

    def step(row: Tensor, h: Tensor) -> Tensor:
        xr, xz, xn = torch.addmm(b, row, W.t()).chunk(3, -1)
        hr, hz, hn = torch.addmm(d, h, R.t()).chunk(3, -1)
        r, z = (xr + hr).sigmoid(), (xz + hz).sigmoid()
        return _next(z, (xn + r * hn).tanh(), h)

    return _run(x, R.shape[1], step)


LOOPS: dict[str, dict[str, Loop]] = {  # by how products are called, then by cell
    "apart": {"gru_before": before_apart},
    "joined": {"gru_before": before_joined, "gru": after_joined},
}

"""Dreamer's recurrent state: a layer-norm GRU whose state begins anew with each episode, on elman.

    python examples/projects/dreamer_gru.py

dreamerv3-torch, ``networks.py``: ``GRUCell`` for each step, the state multiplied by 1 - is_first.
Where embeddings of all steps are known, as in the encoder of a replayed sequence, it is one call.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from compare import compare, sizes
from torch import Tensor, nn

import elman


class Before(nn.Module):
    """As it is."""

    def __init__(self, units: int, features: int) -> None:
        super().__init__()
        self.units = units
        self.layer = nn.Linear(features + units, 3 * units, bias=False)
        self.norm = nn.LayerNorm(3 * units, eps=1e-3)

    def forward(self, x: Tensor, is_first: Tensor) -> tuple[Tensor, Tensor]:
        """States [T, B, H] of embeddings [T, B, I]; is_first [T, B] begins an episode."""
        state, states = x.new_zeros(x.shape[1], self.units), []
        for embedding, first in zip(x, is_first.unsqueeze(-1), strict=True):
            state = state * (1.0 - first)
            parts = self.norm(self.layer(torch.cat((embedding, state), -1)))
            reset, candidate, update = parts.chunk(3, -1)
            candidate = torch.tanh(torch.sigmoid(reset) * candidate)
            update = torch.sigmoid(update - 1)
            state = update * candidate + (1 - update) * state
            states.append(state)
        return torch.stack(states), state


class After(nn.Module):
    """One call."""

    def __init__(self, units: int, features: int) -> None:
        super().__init__()
        self.gru = elman.Recurrent(elman.cells.gru_layernorm, features, units)
        self.gru.a_l0.requires_grad_(False)  # no bias before the norm

    def forward(self, x: Tensor, is_first: Tensor) -> tuple[Tensor, Tensor]:
        """See :class:`Before`."""
        return self.gru(x, reset=is_first)


def moved(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """What multiplies the embedding and what multiplies the state are two matrices."""
    joined = weights["layer.weight"]
    W, R = joined.tensor_split((joined.shape[1] - len(joined) // 3,), 1)
    g, b = weights["norm.weight"], weights["norm.bias"]
    return {"gru.W_l0": W, "gru.R_l0": R, "gru.g_l0": g, "gru.b_l0": b}


if __name__ == "__main__":
    T, B, H = sizes(__doc__, 64, 16, 512)
    is_first = (torch.rand(T, B) < 0.03).float()
    compare(Before(H, H), After(H, H), moved, torch.randn(T, B, H), is_first)

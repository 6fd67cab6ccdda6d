"""SpeechBrain's LiGRU layer: the loop over steps on elman, everything around it as it is.

    python examples/projects/speechbrain_ligru.py

SpeechBrain 1.0, ``nnet/RNN.py``: all projections at once, batch norm over all steps, then a loop.
The cell reads what is projected and normalised. Ravanelli et al.
2018, arXiv:1803.10225.
"""

from __future__ import annotations

from typing import Any

import torch
from compare import compare, sizes
from torch import Tensor, nn

import elman

FEATURES = 40  # of a frame


class Before(nn.Module):
    """As it is."""

    def __init__(self, units: int) -> None:
        super().__init__()
        self.w = nn.Linear(FEATURES, 2 * units, bias=False)
        self.norm = nn.BatchNorm1d(2 * units, momentum=0.05)
        self.u = nn.Linear(units, 2 * units, bias=False)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Outputs [T, B, H] and the last state of frames [T, B, I]."""
        w = self.norm(self.w(x).flatten(0, 1)).view(*x.shape[:2], -1)
        h, outputs = x.new_zeros(x.shape[1], self.u.in_features), []
        for row in w:
            candidate, update = (row + self.u(h)).chunk(2, 1)
            update = torch.sigmoid(update)
            h = update * h + (1 - update) * torch.relu(candidate)
            outputs.append(h)
        return torch.stack(outputs), h


class After(nn.Module):
    """The loop is one call."""

    def __init__(self, units: int) -> None:
        super().__init__()
        self.w = nn.Linear(FEATURES, 2 * units, bias=False)
        self.norm = nn.BatchNorm1d(2 * units, momentum=0.05)
        self.u = elman.Recurrent(elman.cells.ligru, 2 * units, units)

    def forward(self, x: Tensor) -> tuple[Tensor, Any]:
        """See :class:`Before`."""
        return self.u(self.norm(self.w(x).flatten(0, 1)).view(*x.shape[:2], -1))


if __name__ == "__main__":
    T, B, H = sizes(__doc__, 500, 16, 512)
    compare(
        Before(H),
        After(H),
        lambda weights: {k.replace("u.weight", "u.U_l0"): v for k, v in weights.items()},
        torch.randn(T, B, FEATURES),
    )

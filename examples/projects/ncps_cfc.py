"""ncps' closed-form continuous-time cells: the loop over irregular samples on elman.

    python examples/projects/ncps_cfc.py

ncps 1.0, ``torch/cfc.py`` and ``torch/cfc_cell.py``, mode ``default``: a backbone, four heads, and
a gate that depends on the time since the last sample. Hasani et al. 2022, arXiv:2106.13898.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from compare import compare, sizes
from torch import Tensor, nn

import elman

FEATURES, BACKBONE = 32, 128


class Before(nn.Module):
    """As it is."""

    def __init__(self, units: int, features: int = FEATURES) -> None:
        super().__init__()
        self.units = units
        self.backbone = nn.Linear(features + units, BACKBONE)
        self.heads = nn.ModuleList(nn.Linear(BACKBONE, units) for _ in range(4))

    def forward(self, x: Tensor, timespans: Tensor) -> tuple[Tensor, Tensor]:
        """Outputs [T, B, H] and the last state of samples [T, B, I], timespans [T, B] apart."""
        h, outputs = x.new_zeros(x.shape[1], self.units), []
        for sample, ts in zip(x, timespans.unsqueeze(-1), strict=True):
            features = 1.7159 * torch.tanh(0.666 * self.backbone(torch.cat((sample, h), 1)))
            first, second, a, b = (head(features) for head in self.heads)
            gate = torch.sigmoid(a * ts + b)
            h = torch.tanh(first) * (1.0 - gate) + gate * torch.tanh(second)
            outputs.append(h)
        return torch.stack(outputs), h


class After(nn.Module):
    """One call: the time gaps are a second input."""

    def __init__(self, units: int, features: int = FEATURES) -> None:
        super().__init__()
        self.rnn = elman.Recurrent(elman.cells.cfc, features, units, U=BACKBONE)

    def forward(self, x: Tensor, timespans: Tensor) -> tuple[Tensor, Tensor]:
        """See :class:`Before`."""
        return self.rnn((x, timespans))


def moved(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The four heads are one matrix."""
    return {
        "rnn.A_l0": weights["backbone.weight"],
        "rnn.a_l0": weights["backbone.bias"],
        "rnn.F_l0": torch.cat([weights[f"heads.{k}.weight"] for k in range(4)]),
        "rnn.f_l0": torch.cat([weights[f"heads.{k}.bias"] for k in range(4)]),
    }


if __name__ == "__main__":
    T, B, H = sizes(__doc__, 200, 32, 64)
    compare(Before(H), After(H), moved, torch.randn(T, B, FEATURES), 2 * torch.rand(T, B))

"""NeuralHydrology's EA-LSTM: a year of days in one call, a basin's attributes given once.

    python examples/projects/neuralhydrology_ealstm.py

NeuralHydrology 1.11, ``modelzoo/ealstm.py``: the input gate is a function of static attributes and
computed before the loop over days. As ``static=`` of a cell it is computed once too, and never
repeated over time. Kratzert et al. 2019, doi:10.5194/hess-23-5089-2019.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from compare import compare, sizes
from torch import Tensor, nn

import elman

FORCINGS, ATTRIBUTES = 5, 27


class Before(nn.Module):
    """As it is."""

    def __init__(self, units: int, features: int = FORCINGS) -> None:
        super().__init__()
        self.input_net = nn.Linear(ATTRIBUTES, units)
        self.weight_ih = nn.Parameter(torch.randn(features, 3 * units) / 2)
        self.weight_hh = nn.Parameter(torch.eye(units).repeat(1, 3))
        self.bias = nn.Parameter(torch.zeros(3 * units))

    def forward(self, x_d: Tensor, x_s: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Outputs [T, B, H] and last states of forcings [T, B, I] and attributes [B, S]."""
        h = c = x_d.new_zeros(x_d.shape[1], self.weight_hh.shape[0])
        i = torch.sigmoid(self.input_net(x_s))
        outputs = []
        for day in x_d:
            gates = torch.addmm(self.bias, h, self.weight_hh) + torch.mm(day, self.weight_ih)
            f, o, g = gates.chunk(3, 1)
            c = torch.sigmoid(f) * c + i * torch.tanh(g)
            h = torch.sigmoid(o) * torch.tanh(c)
            outputs.append(h)
        return torch.stack(outputs), (h, c)


class After(nn.Module):
    """One call."""

    def __init__(self, units: int, features: int = FORCINGS) -> None:
        super().__init__()
        self.lstm = elman.Recurrent(elman.cells.ealstm, features, units, S=ATTRIBUTES)

    def forward(self, x_d: Tensor, x_s: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """See :class:`Before`."""
        return self.lstm(x_d, static=x_s)


def moved(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """elman's matrices lie [gates, inputs]."""
    return {
        "lstm.V_l0": weights["input_net.weight"],
        "lstm.d_l0": weights["input_net.bias"],
        "lstm.W_l0": weights["weight_ih"].T,
        "lstm.R_l0": weights["weight_hh"].T,
        "lstm.b_l0": weights["bias"],
    }


if __name__ == "__main__":
    T, B, H = sizes(__doc__, 365, 64, 256)  # the paper's B is 256
    compare(Before(H), After(H), moved, torch.randn(T, B, FORCINGS), torch.randn(B, ATTRIBUTES))

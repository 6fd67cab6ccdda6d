"""haste's layer-norm LSTM with zoneout, on any machine.

    python examples/projects/haste_lstm.py

haste 0.4, ``LayerNormLSTM``, has CUDA kernels alone; without one it is a loop. Layer norm over both
products and over the cell state, and where a unit is zoned out its output stays what it was.
Krueger et al. 2017, arXiv:1606.01305.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from compare import compare, sizes
from torch import Tensor, nn
from torch.nn.functional import layer_norm

import elman

FEATURES, ZONEOUT = 128, 0.1


class Before(nn.Module):
    """As it is."""

    def __init__(self, units: int, features: int = FEATURES) -> None:
        super().__init__()
        self.kernel = nn.Parameter(torch.randn(features, 4 * units) / features**0.5)
        self.recurrent_kernel = nn.Parameter(torch.randn(units, 4 * units) / units**0.5)
        self.bias = nn.Parameter(torch.zeros(4 * units))
        self.gamma = nn.Parameter(torch.full((2, 4 * units), 0.5))
        self.gamma_h, self.beta_h = (
            nn.Parameter(torch.ones(units)),
            nn.Parameter(torch.zeros(units)),
        )

    def forward(self, x: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Outputs [T, B, H] and last states; what is zoned out is drawn, its mean if in eval()."""
        gates, units = self.gamma.shape[1:], self.gamma_h.shape
        h = c = x.new_zeros(x.shape[1], *units)
        mask = x.new_full((len(x), *h.shape), 1.0 - ZONEOUT)
        if self.training:
            mask.bernoulli_(1.0 - ZONEOUT)
        outputs = []
        for row, keep in zip(layer_norm(x @ self.kernel, gates, self.gamma[0]), mask, strict=True):
            recurrent = layer_norm(h @ self.recurrent_kernel, gates, self.gamma[1])
            i, g, f, o = (row + recurrent + self.bias).chunk(4, 1)
            c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
            new = torch.sigmoid(o) * torch.tanh(layer_norm(c, units, self.gamma_h, self.beta_h))
            h = (new - h) * keep + h
            outputs.append(h)
        return torch.stack(outputs), (h, c)


class After(nn.Module):
    """One call."""

    def __init__(self, units: int, features: int = FEATURES) -> None:
        super().__init__()
        cell = elman.cells.zoneout_lstm_layernorm
        self.lstm = elman.Recurrent(cell, features, units, hold_h=ZONEOUT)

    def forward(self, x: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """See :class:`Before`."""
        return self.lstm(x)


def gates(weight: Tensor) -> Tensor:
    """From the order i, g, f, o to i, f, g, o, as torch has it."""
    i, g, f, o = weight.chunk(4)
    return torch.cat((i, f, g, o))


def moved(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """elman's matrices lie [gates, inputs]."""
    gx, gh = weights["gamma"]
    parameters = {
        "W": gates(weights["kernel"].T),
        "R": gates(weights["recurrent_kernel"].T),
        "b": gates(weights["bias"]),
        "gx": gates(gx),
        "gh": gates(gh),
        "gc": weights["gamma_h"],
        "bc": weights["beta_h"],
    }
    return {f"lstm.{name}_l0": weight for name, weight in parameters.items()}


if __name__ == "__main__":
    T, B, H = sizes(__doc__, 100, 32, 256)
    compare(Before(H), After(H), moved, torch.randn(T, B, FEATURES), random=True)

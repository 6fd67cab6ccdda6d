"""A classifier of sequences: recurrent layers, the mean and the last of their outputs."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from elman.train.layers import recurrent
from elman.train.sequences.config import SequenceConfig
from elman.train.sequences.data import SequenceData
from elman.train.sequences.trained import ClassifierSpec


class Residual(nn.Module):
    """Layers as of the DEER paper's long-sequence models (Lim et al. 2023, arXiv:2309.12252v3,
    sections 4.3 and 4.4): each normalises its input and adds its output to it.

    Args:
        inputs: I, size of a step.
        hidden: H, size of everything else.
        layers: recurrent modules from H to H.
        dropout: share of each layer's output dropped.
    """

    def __init__(self, inputs: int, hidden: int, layers: list[nn.Module], dropout: float) -> None:
        super().__init__()
        self.encoder = nn.Linear(inputs, hidden)
        self.norms = nn.ModuleList(nn.LayerNorm(hidden) for _ in layers)
        self.layers = nn.ModuleList(layers)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> tuple[Tensor, None]:
        """Return outputs [T, B, H] of x [T, B, I], and no state."""
        h = self.encoder(x)
        for norm, layer in zip(self.norms, self.layers):
            h = h + self.dropout(layer(norm(h))[0])
        return h, None


class Classifier(nn.Module):
    """Predicts the class of whole sequences.

    Args:
        hidden: H, size of the layers' output.
        classes: C.
        layers: outputs [T, B, H] and something = layers(x).
        noise: standard deviation of what is added to x in training.
        dropout: share of values dropped before the read-out.
    """

    def __init__(
        self, hidden: int, classes: int, layers: nn.Module, noise: float, dropout: float
    ) -> None:
        super().__init__()
        self.layers = layers
        self.noise = noise
        self.norm = nn.LayerNorm(2 * hidden)
        self.dropout = nn.Dropout(dropout)
        self.readout = nn.Linear(2 * hidden, classes)

    def forward(self, inputs: tuple[Tensor, Tensor], state: Any = None) -> tuple[Tensor, None]:
        """Predict.

        Args:
            inputs: x [T, B, I] and the steps of each sequence, [B].
            state: unused; a sequence is read at once.

        Returns:
            logits [B, C], and no state.
        """
        x, lengths = inputs
        if self.training and self.noise:
            x = x + self.noise * torch.randn_like(x)
        h, _ = self.layers(x)
        inside = torch.arange(len(x), device=x.device)[:, None] < lengths
        mean = (h * inside.unsqueeze(-1)).sum(0) / lengths.unsqueeze(-1)
        last = h[lengths - 1, torch.arange(h.shape[1], device=x.device)]
        return self.readout(self.dropout(self.norm(torch.cat((mean, last), -1)))), None


def build_model(
    config: SequenceConfig, data: SequenceData | ClassifierSpec, *, baseline: bool = False
) -> Classifier:
    """Build the model of a run; with `baseline` the same on torch.nn's recurrent layers."""
    torch.manual_seed(config.seed)
    if config.residual:
        each = [
            recurrent(config, config.hidden, 1, baseline=baseline) for _ in range(config.layers)
        ]
        layers: nn.Module = Residual(data.inputs, config.hidden, each, config.dropout)
    else:
        layers = recurrent(config, data.inputs, config.layers, baseline=baseline)
    return Classifier(config.hidden, len(data.classes), layers, config.noise, config.dropout)

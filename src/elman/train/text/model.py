"""The character model: embedding, recurrent layers, and a read-out of the next character."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from elman.train.layers import recurrent
from elman.train.text.config import TextConfig
from elman.train.text.data import TextData


class CharModel(nn.Module):
    """Predicts the next character at every step.

    Args:
        size: V, number of characters.
        embedding: size of a character's vector.
        hidden: size of the recurrent layers' output.
        recurrent: a module called as torch.nn.GRU is.
        dropout: share of values dropped before the read-out.
    """

    def __init__(
        self, size: int, embedding: int, hidden: int, recurrent: nn.Module, dropout: float = 0.0
    ):
        super().__init__()
        self.embedding = nn.Embedding(size, embedding)
        self.recurrent = recurrent
        self.dropout = nn.Dropout(dropout)
        self.readout = nn.Linear(hidden, size)

    def forward(self, ids: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        """Predict.

        Args:
            ids [T, B]: characters as numbers.
            state: what the previous call returned; zeros if None.

        Returns:
            logits [T, B, V]: of the character after each.
            state: the recurrent layers' last state.
        """
        out, state = self.recurrent(self.embedding(ids), state)
        return self.readout(self.dropout(out)), state


def build_model(config: TextConfig, data: TextData, *, baseline: bool = False) -> CharModel:
    """Build the model of a run; with `baseline` the same on torch.nn's recurrent layer."""
    torch.manual_seed(config.seed)
    layers = recurrent(config, config.embedding, config.layers, baseline=baseline)
    return CharModel(len(data.vocabulary), config.embedding, config.hidden, layers, config.dropout)

"""The language model: embedding, recurrent layers, and a read-out of the next token."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from elman.nn import LinearCrossEntropy
from elman.train.layers import recurrent
from elman.train.objective import cross_entropy
from elman.train.text.config import TextConfig
from elman.train.text.data import TextData
from elman.train.text.trained import TextSpec


class LanguageModel(nn.Module):
    """Predicts the next token at every step.

    Args:
        size: V, number of tokens.
        embedding: size of a token's vector.
        hidden: size of the recurrent layers' output.
        recurrent: a module called as torch.nn.GRU is.
        dropout: share of values dropped before the read-out.
        embedding_dropout: share of values dropped before the recurrent layers.
        tie: whether the read-out's weights are the embedding's; both sizes are one then.
        plain: whether read-out and loss are two operations of torch's, as one writes them by hand.
    """

    def __init__(
        self,
        size: int,
        embedding: int,
        hidden: int,
        recurrent: nn.Module,
        dropout: float = 0.0,
        embedding_dropout: float = 0.0,
        tie: bool = False,
        plain: bool = False,
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(size, embedding)
        self.embedding_dropout = nn.Dropout(embedding_dropout)
        self.recurrent = recurrent
        self.dropout = nn.Dropout(dropout)
        self.readout: nn.Linear | LinearCrossEntropy
        if plain:
            self.readout = nn.Linear(hidden, size)
            if tie:
                self.readout.weight = self.embedding.weight
        else:
            self.readout = LinearCrossEntropy(hidden, size, tie=self.embedding if tie else None)

    def forward(
        self, ids: Tensor, state: Any = None, targets: Tensor | None = None
    ) -> tuple[Tensor, Any]:
        """Predict, or say how wrong that is.

        Args:
            ids [T, B]: tokens as numbers.
            state: what the previous call returned; zeros if None.
            targets [T, B]: the token after each.

        Returns:
            logits [T, B, V] of the token after each; with targets the mean loss, [].
            state: the recurrent layers' last state.
        """
        out, state = self.recurrent(self.embedding_dropout(self.embedding(ids)), state)
        out = self.dropout(out)
        if isinstance(self.readout, nn.Linear):
            logits = self.readout(out)
            return logits if targets is None else cross_entropy(logits, targets), state
        return self.readout.logits(out) if targets is None else self.readout(out, targets), state


def build_model(
    config: TextConfig, data: TextData | TextSpec, *, baseline: bool = False
) -> LanguageModel:
    """Build the model of a run; with `baseline` the same of torch.nn's parts alone."""
    return language_model(config, data.symbols, baseline=baseline)


def language_model(config: TextConfig, size: int, *, baseline: bool = False) -> LanguageModel:
    """Build a model of so many tokens; with `baseline` of torch.nn's parts alone."""
    torch.manual_seed(config.seed)
    layers = recurrent(config, config.embedding, config.layers, baseline=baseline)
    model = LanguageModel(
        size,
        config.embedding,
        config.hidden,
        layers,
        config.dropout,
        config.embedding_dropout,
        config.tie,
        plain=baseline,
    )
    if config.uniform is not None:
        for weight in model.parameters():
            nn.init.uniform_(weight, -config.uniform, config.uniform)
    return model

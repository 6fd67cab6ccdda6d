"""The configuration of the task `text`, and settings of word models that are compared everywhere.

Zaremba et al. 2014, "Recurrent Neural Network Regularization", arXiv:1409.2329, section 4.1
(medium and large), and the program published with it (small). There a loss is summed over the T
steps of a segment; here it is their mean, so the learning rate is T times as large and the largest
norm of the gradient the T-th part.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from elman.errors import InputError
from elman.train.loop.config import (
    COUNT,
    NOT_NEGATIVE,
    POSITIVE,
    SHARE,
    Config,
    at_least,
    choice,
    setting,
)
from elman.train.tasks.text.vocabulary import LEVELS, Level


def _zaremba(
    units: int, bptt: int, uniform: float, dropout: float, clip: float, stairs: str
) -> Mapping[str, Any]:
    return {
        "level": "word",
        "cell": "lstm",
        "layers": 2,
        "hidden": units,
        "embedding": units,
        "batch": 20,
        "bptt": bptt,
        "uniform": uniform,
        "dropout": dropout,
        "embedding_dropout": dropout,
        "optimizer": "sgd",
        "weight_decay": 0.0,
        "warmup": 0.0,
        "lr": 1.0 * bptt,
        "clip": clip / bptt,
        "schedule": f"stairs:{stairs}",
        "epochs": int(stairs.partition("/")[2].partition(":")[0]),
    }


PRESETS: Mapping[str, Mapping[str, Any]] = {
    "small": _zaremba(200, 20, uniform=0.1, dropout=0.0, clip=5, stairs="4/13:2"),
    "medium": _zaremba(650, 35, uniform=0.05, dropout=0.5, clip=5, stairs="6/39:1.2"),
    "large": _zaremba(1500, 35, uniform=0.04, dropout=0.65, clip=10, stairs="14/55:1.15"),
}


@dataclass(frozen=True)
class TextConfig(Config):
    """A language model's run."""

    TASK: ClassVar[str] = "text"
    VALIDATED: ClassVar[str] = "validation_chars"
    LEAST_VALIDATED: ClassVar[int] = 4096
    PRESETS: ClassVar[Mapping[str, Mapping[str, Any]]] = PRESETS

    data: str | None = setting(
        None,
        "A text file, or a folder of them; train, valid and test in their names are the parts. "
        "Else Python's own sources.",
    )
    level: str = setting("char", f"What is predicted: {' or '.join(LEVELS)}.", choice(LEVELS))
    preset: str | None = setting(
        None, f"Defaults of a well-known word model: {', '.join(PRESETS)}.", choice(PRESETS)
    )
    vocabulary: int | None = setting(
        None, "Size of the vocabulary: the most frequent tokens.", at_least(2)
    )
    embedding: int = setting(64, "Size of a token's vector.", POSITIVE)
    embedding_dropout: float = setting(0.0, "Share of the embedding's values dropped.", SHARE)
    tie: bool = setting(False, "Read out with the embedding's own weights.")
    uniform: float | None = setting(
        None, "Draw all weights uniformly from [-UNIFORM, UNIFORM].", POSITIVE
    )
    residual: bool = setting(
        False, "From the second layer on, a layer's input is added to its output."
    )
    norm: bool = setting(
        False, "Residual blocks: each layer reads its normalised input, and is added to it."
    )
    bptt: int = setting(64, "Tokens per step of truncated BPTT.", POSITIVE)
    random_start: bool = setting(
        False, "Begin the walk through the training text at a place that the seed draws."
    )
    epochs: int | None = setting(
        None, "Passes over the training text, instead of --minutes.", COUNT
    )
    validation_chars: int = setting(131072, "Tokens predicted per validation.", at_least(2))
    temperature: float = setting(0.7, "Temperature of the sampled text.", NOT_NEGATIVE)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.tie and self.embedding != self.hidden:
            sizes = f"embedding {self.embedding} is not hidden {self.hidden}"
            raise InputError(
                f"tied weights are of one size, and {sizes}: --embedding {self.hidden}"
            )

    @property
    def items_per_step(self) -> int:
        """Tokens in one training step, over all devices."""
        return self.batch * self.bptt

    @property
    def adds_inputs(self) -> bool:
        """Whether its stack is residual."""
        return self.residual

    @property
    def runs_blocks(self) -> bool:
        """Whether its layers are residual blocks."""
        return self.norm

    @property
    def splitting(self) -> Level:
        """Level of the tokens."""
        return LEVELS[self.level]

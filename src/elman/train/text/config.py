"""The configuration of the task `text`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from elman.train.config import Config, setting


@dataclass(frozen=True)
class TextConfig(Config):
    """A character model's run."""

    TASK: ClassVar[str] = "text"
    VALIDATED: ClassVar[str] = "validation_chars"
    LEAST_VALIDATED: ClassVar[int] = 4096

    data: str | None = setting(None, "A text file, or a folder of them; else Python's own sources.")
    embedding: int = setting(64, "Size of a character's vector.")
    bptt: int = setting(64, "Characters per step of truncated BPTT.")
    validation_chars: int = setting(131072, "Characters predicted per validation.")
    temperature: float = setting(0.7, "Of the sample.")

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("embedding", "bptt"):
            self.check(name, getattr(self, name) > 0, "must be positive")
        self.check("temperature", self.temperature >= 0, "must not be negative")
        self.check("validation_chars", self.validation_chars >= 2, "must be at least 2")

    @property
    def items_per_step(self) -> int:
        """Characters in one training step, over all devices."""
        return self.batch * self.bptt

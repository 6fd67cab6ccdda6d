"""The configuration of the task `regression`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from elman.train.config import other, setting
from elman.train.walks import WalkConfig


@dataclass(frozen=True)
class RegressionConfig(WalkConfig):
    """A run that predicts numbers."""

    TASK: ClassVar[str] = "regression"

    data: str | None = setting(
        None, "An .npz with x_train [N, T, I], y_train [N, T, O] or [N, O], x_test and y_test."
    )
    layers: int = other("layers", 1)
    hidden: int = other("hidden", 64)

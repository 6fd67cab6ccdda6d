"""Rows of metrics to TensorBoard; imported only where somebody asked for it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from torch.utils.tensorboard import SummaryWriter

from elman.train.metrics import Row

NOT_SHOWN = ("step", "items", "train_seconds")


def board_writer(path: Path) -> Callable[[Row], None]:
    """Return a function that writes a row's values as scalars below `path`."""
    writer = SummaryWriter(str(path))

    def write(row: Row) -> None:
        for name, value in vars(row).items():
            if name not in NOT_SHOWN and value is not None:
                writer.add_scalar(name, value, row.step)
        writer.flush()

    return write

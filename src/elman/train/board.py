"""Rows of metrics to TensorBoard; imported only where somebody asked for it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from torch.utils.tensorboard import SummaryWriter

from elman.train.metrics import Row

SHOWN = ("train_bpc", "valid_bpc", "grad_norm", "lr", "chars_per_s")


def board_writer(path: Path) -> Callable[[Row], None]:
    """Return a function that writes a row's values as scalars below `path`."""
    writer = SummaryWriter(str(path))

    def write(row: Row) -> None:
        for name in SHOWN:
            if (value := getattr(row, name)) is not None:
                writer.add_scalar(name, value, row.step)
        writer.flush()

    return write

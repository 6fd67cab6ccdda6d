"""A text as B parallel rows, cut along time into the segments of truncated BPTT."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from elman.errors import RunError, diagnostic

VALID_ROWS = 64


@dataclass(frozen=True)
class Stream:
    """B rows of consecutive text; segment k holds characters k·T … (k + 1)·T of each row.

    Attributes:
        ids [B, N]: characters as numbers.
        bptt: T, characters per segment.
    """

    ids: np.ndarray
    bptt: int

    @property
    def segments(self) -> int:
        """Number of whole segments in one walk through the text."""
        return (self.ids.shape[1] - 1) // self.bptt

    def segment(self, k: int, rows: slice = slice(None)) -> tuple[Tensor, Tensor]:
        """Cut out segment k.

        Returns:
            inputs [T, B]: characters, int64, time-major.
            targets [T, B]: the character after each.
        """
        start = k * self.bptt
        piece = self.ids[rows, start : start + self.bptt + 1].T.astype(np.int64)
        return torch.from_numpy(piece[:-1].copy()), torch.from_numpy(piece[1:].copy())


def training_stream(ids: np.ndarray, batch: int, bptt: int) -> Stream:
    """Lay a text out as `batch` rows of equal length.

    Raises:
        RunError: if a row would be shorter than one segment and the character after it.
    """
    width = len(ids) // batch
    if width < bptt + 1:
        details = [
            ("text", f"{len(ids)} characters for training"),
            ("need", f"{batch * (bptt + 1)} = batch {batch} x (bptt {bptt} + 1)"),
        ]
        hint = "more text, or a smaller --batch or --bptt"
        raise RunError(diagnostic("the text is too short to train on", details, hint))
    return Stream(ids[: batch * width].reshape(batch, width), bptt)


def validation_stream(ids: np.ndarray, limit: int, bptt: int) -> tuple[Stream, np.ndarray]:
    """Take rows that lie evenly over a text, at most `limit` characters in all.

    Returns:
        stream: up to 64 rows.
        places [N]: where the predicted characters stand in `ids`, for other models to predict.

    Raises:
        RunError: if the text has fewer than two characters.
    """
    if len(ids) < 2:
        details = [("text", f"{len(ids)} characters for validation")]
        raise RunError(diagnostic("the text is too short to validate on", details, "more text"))
    count = max(1, min(VALID_ROWS, len(ids) // (4 * bptt), limit // 2))
    width = max(2, min(limit, len(ids)) // count)
    bptt = min(bptt, width - 1)
    width = (width - 1) // bptt * bptt + 1
    starts = np.linspace(0, len(ids) - width, count).astype(np.int64)
    places = starts[:, None] + np.arange(width)
    return Stream(ids[places], bptt), places[:, 1:].ravel()

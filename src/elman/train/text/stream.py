"""A text as B parallel rows, cut along time into the segments of truncated BPTT."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from elman.errors import RunError, diagnostic

VALID_ROWS = 64


@dataclass(frozen=True)
class Stream:
    """B rows of consecutive text; segment k holds tokens k·T … (k + 1)·T of each row.

    Attributes:
        ids [B, N]: tokens as numbers.
        bptt: T, tokens per segment.
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
            inputs [T, B]: tokens, int64, time-major.
            targets [T, B]: the token after each.
        """
        start = k * self.bptt
        piece = self.ids[rows, start : start + self.bptt + 1].T.astype(np.int64)
        return torch.from_numpy(piece[:-1].copy()), torch.from_numpy(piece[1:].copy())

    def pieces(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Cut the whole text; the last segment may be shorter."""
        return map(self.segment, range(-(-(self.ids.shape[1] - 1) // self.bptt)))


def training_stream(ids: np.ndarray, batch: int, bptt: int, items: str = "tokens") -> Stream:
    """Lay a text out as `batch` rows of equal length.

    Args:
        items: what tokens are called.

    Raises:
        RunError: if a row would be shorter than one segment and the token after it.
    """
    width = len(ids) // batch
    if width < bptt + 1:
        details = [
            ("text", f"{len(ids)} {items} for training"),
            ("need", f"{batch * (bptt + 1)} = batch {batch} x (bptt {bptt} + 1)"),
        ]
        hint = "more text, or a smaller --batch or --bptt"
        raise RunError(diagnostic("the text is too short to train on", details, hint))
    return Stream(ids[: batch * width].reshape(batch, width), bptt)


def validation_stream(
    ids: np.ndarray, limit: int, bptt: int, items: str = "tokens"
) -> tuple[Stream, np.ndarray]:
    """Take rows that lie evenly over a text, at most `limit` tokens in all.

    Args:
        items: what tokens are called.

    Returns:
        stream: up to 64 rows.
        places [N]: where the predicted tokens stand in `ids`, for other models to predict.

    Raises:
        RunError: if the text has fewer than two tokens.
    """
    predictable(ids, "validate", items)
    count = rows_of(len(ids), bptt, limit)
    width = max(2, min(limit, len(ids)) // count)
    bptt = min(bptt, width - 1)
    width = (width - 1) // bptt * bptt + 1
    starts = np.linspace(0, len(ids) - width, count).astype(np.int64)
    places = starts[:, None] + np.arange(width)
    return Stream(ids[places], bptt), places[:, 1:].ravel()


def whole_stream(ids: np.ndarray, bptt: int, items: str = "tokens") -> Stream:
    """Lay a whole text out: all its tokens but the first are targets, up to 63 at its end apart.

    Args:
        items: what tokens are called.

    Raises:
        RunError: if the text has fewer than two tokens.
    """
    predictable(ids, "test", items)
    count = rows_of(len(ids), bptt, len(ids))
    width = (len(ids) - 1) // count
    return Stream(ids[np.arange(count)[:, None] * width + np.arange(width + 1)], bptt)


def predictable(ids: np.ndarray, purpose: str, items: str) -> None:
    """Raise RunError unless a text has a token to begin with and one to predict."""
    if len(ids) < 2:
        details = [("text", f"{len(ids)} {items} to {purpose} on")]
        text = f"the text is too short to {purpose} on"
        raise RunError(diagnostic(text, details, "more text"))


def rows_of(length: int, bptt: int, limit: int) -> int:
    """Return how many rows a text is predicted in: at most 64, of four segments or more."""
    return max(1, min(VALID_ROWS, length // (4 * bptt), limit // 2))

"""Kernels beside one another on a GPU: each on a stream of its own, from one event to the next."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any

import torch
from torch import Tensor


@cache
def _side(device: torch.device) -> Any:
    """The stream beside the one that the caller uses."""
    return torch.cuda.Stream(device)


class Lanes:
    """Two lanes that begin where the current stream is; one lane alone where there is no GPU.

    Args:
        like: a tensor on the device.
        apart: whether there are two.
    """

    def __init__(self, like: Tensor, *, apart: bool) -> None:
        self._own: Any = torch.cuda.current_stream(like.device) if like.is_cuda and apart else None
        self._other: Any = None
        if self._own is not None:
            self._other = _side(like.device)
            self._other.wait_stream(self._own)

    def lane(self, index: int) -> AbstractContextManager[Any]:
        """Inside, everything is launched on a lane: on the caller's own stream for 0."""
        if self._other is None or not index:
            return nullcontext()
        return torch.cuda.stream(self._other)

    def join(self, made: Iterable[Tensor | None]) -> None:
        """What follows waits for both lanes; ``made``: results of the second."""
        if self._other is None:
            return
        self._own.wait_stream(self._other)
        for value in made:
            if value is not None:
                value.record_stream(self._own)

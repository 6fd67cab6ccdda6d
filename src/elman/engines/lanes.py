"""Kernels beside one another on a GPU: each on a stream of its own, from one event to the next."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any

import torch
from torch import Tensor


@cache
def _side(device: torch.device, index: int) -> Any:
    """A stream beside the one that the caller uses."""
    return torch.cuda.Stream(device)


class Lanes:
    """Lanes that begin where the current stream is; where there is no GPU, one behind another.

    Args:
        like: a tensor on the device.
        count: how many; the first is the caller's own stream.
    """

    def __init__(self, like: Tensor, count: int) -> None:
        self._streams: list[Any] = []
        if count > 1 and like.is_cuda:
            own = torch.cuda.current_stream(like.device)
            sides = [_side(like.device, index) for index in range(1, count)]
            for side in sides:
                side.wait_stream(own)
            self._streams = [own, *sides]

    def lane(self, index: int) -> AbstractContextManager[Any]:
        """Inside, everything is launched on a lane."""
        if not self._streams or not index:
            return nullcontext()
        return torch.cuda.stream(self._streams[index])

    def after(self, index: int, other: int) -> None:
        """What a lane is given from now on waits for all that another was given so far."""
        if self._streams:
            self._streams[index].wait_stream(self._streams[other])

    def join(self, made: Iterable[Tensor | None]) -> None:
        """What follows waits for all lanes; ``made``: results of all but the first."""
        if not self._streams:
            return
        own, *sides = self._streams
        for side in sides:
            own.wait_stream(side)
        for value in made:
            if value is not None:
                value.record_stream(own)

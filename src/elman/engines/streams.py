"""CUDA streams for concurrent kernels."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor


@lru_cache(maxsize=64)
def _side(device: torch.device, stream: int, index: int) -> Any:
    """A side stream of one of the caller's."""
    return torch.cuda.Stream(device)


class Streams:
    """Side streams of the current stream; without a GPU kernels run sequentially.

    A context: at its end the caller's stream waits for all streams, also after an exception, which
    frees memory that a stream may still write to.

    Args:
        like: a tensor on the device.
        count: number of streams; the first is the caller's own.
    """

    def __init__(self, like: Tensor, count: int) -> None:
        self._streams: list[Any] = []
        if count > 1 and like.is_cuda:
            current = torch.cuda.current_stream(like.device)
            number = current.cuda_stream
            self._streams = [current, *(_side(like.device, number, k) for k in range(1, count))]

    def __enter__(self) -> Streams:
        for side in self._streams[1:]:
            side.wait_stream(self._streams[0])
        return self

    def __exit__(self, *raised: object) -> None:
        for side in self._streams[1:]:
            self._streams[0].wait_stream(side)

    def on(self, index: int) -> AbstractContextManager[Any]:
        """A context in which kernels are launched on one of the streams."""
        if not self._streams or not index:
            return nullcontext()
        return torch.cuda.stream(self._streams[index])

    def after(self, index: int, awaited: int) -> None:
        """Make further work of a stream wait for all work of another so far."""
        if self._streams:
            self._streams[index].wait_stream(self._streams[awaited])

    def hand_over(self, results: Iterable[Tensor | None]) -> None:
        """Record for the allocator that the caller's stream uses results of side streams."""
        for value in results:
            if self._streams and value is not None:
                value.record_stream(self._streams[0])

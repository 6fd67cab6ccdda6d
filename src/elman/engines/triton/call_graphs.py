"""Calls that come again, as CUDA graphs: one launch instead of all that the host decides.

A short call takes the host longer than the GPU, above all where every step is launched by itself.
The second call of a kind is captured, by torch's own API, on arrays of its own: arguments are
copied in, results out.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from elman.engines.precision import precision
from elman.engines.triton import limits

Arguments = Sequence[Tensor | None]


class CallGraphs:
    """Graphs of the calls of one direction of a kernel.

    Args:
        capacity: bytes of arguments and results of all graphs at most: larger calls keep a GPU
            busy as they are.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._sizes: OrderedDict[Hashable, int] = OrderedDict()  # (bytes) of kinds seen once
        self._graphs: OrderedDict[Hashable, _CallGraph] = OrderedDict()  # used last comes last
        self._calls = 0
        self._lock = threading.Lock()

    def run(self, compute: Callable[[Arguments], Any], tensors: Arguments, facts: Hashable) -> Any:
        """What ``compute(tensors)`` returns.

        Args:
            compute: a function of tensors and of what the facts tell, and of nothing else; it
                returns tensors in nested tuples.
            tensors: its arguments; None for those that are not there.
            facts: what else it depends on.
        """
        if not self.applies(tensors):
            return compute(tensors)
        like = next(value for value in tensors if value is not None)
        kinds = [None if t is None else (t.shape, t.stride(), t.dtype, t.device) for t in tensors]
        key = (facts, precision(), _stream(like), *kinds)
        with self._lock:
            self._calls += 1
            graph = self._graphs.get(key)
            if graph is None:
                size = self._sizes.pop(key, None)
                if size is None or not self._makes_room(size):
                    return self._first(key, compute, tensors)
                graph = self._graphs[key] = _CallGraph(compute, tensors, size)
            self._graphs.move_to_end(key)
            graph.used = self._calls
            return graph(tensors)

    @staticmethod
    def applies(tensors: Arguments) -> bool:
        """Whether such calls can be captured, and are not being captured by the caller."""
        on_gpu = any(value is not None and value.is_cuda for value in tensors)
        return on_gpu and not torch.cuda.is_current_stream_capturing()

    def _first(self, key: Hashable, compute: Callable[[Arguments], Any], tensors: Arguments) -> Any:
        """Run a call, and remember its size."""
        result = compute(tensors)
        self._sizes[key] = sum(value.nbytes for value in _tensors((*tensors, result)))
        if len(self._sizes) > limits.KINDS_SEEN:
            self._sizes.popitem(last=False)
        return result

    def _makes_room(self, size: int) -> bool:
        """Whether there is memory for another graph, without one that was used of late: kinds that
        come alternately would be captured again and again."""
        if size > self._capacity:
            return False
        while self._graphs:
            in_use = sum(graph.size for graph in self._graphs.values())
            if len(self._graphs) < limits.CALL_GRAPHS and in_use + size <= self._capacity:
                break
            oldest = next(iter(self._graphs))
            if self._calls - self._graphs[oldest].used < limits.GRAPH_AGE:
                return False
            del self._graphs[oldest]
        return True


class _CallGraph:
    """A call on memory of its own, as a CUDA graph; on a CPU it runs again.

    Attributes:
        size: of arguments and results (bytes).
        used: number of the call that used it last.
    """

    def __init__(self, compute: Callable[[Arguments], Any], tensors: Arguments, size: int) -> None:
        self.size, self.used = size, 0
        self._compute: Callable[[Arguments], Any] | None = compute
        self._arguments = [None if t is None else torch.empty_like(t).copy_(t) for t in tensors]
        self._graph: Any = None
        like = next(_tensors(self._arguments))
        if not like.is_cuda:
            return
        aside = _aside(like.device, _stream(like))
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):  # what is made once (kernels, workspaces) is made here
            compute(self._arguments)
        torch.cuda.current_stream().wait_stream(aside)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph, stream=aside, capture_error_mode="thread_local"):
            self._result = compute(self._arguments)
        self._compute = None

    def __call__(self, tensors: Arguments) -> Any:
        """Copy in, run, copy out."""
        for target, value in zip(self._arguments, tensors, strict=True):
            if target is not None and value is not None:
                target.copy_(value)
        if self._compute is not None:
            self._result = self._compute(self._arguments)
        else:
            self._graph.replay()
        return _copied(self._result, {})


def _tensors(value: Any) -> Iterator[Tensor]:
    """All tensors in nested lists and tuples."""
    if isinstance(value, Tensor):
        yield value
    elif value is not None:
        for item in value:
            yield from _tensors(item)


def _copied(value: Any, copies: dict[tuple[int, torch.dtype], Tensor]) -> Any:
    """Nested tuples of tensors in other memory; what shares memory shares it again."""
    if value is None:
        return None
    if not isinstance(value, Tensor):
        items = [_copied(item, copies) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
    storage = value.untyped_storage()
    place = storage.data_ptr(), value.dtype
    if place not in copies:
        copies[place] = value.new_empty(0).set_(storage).clone()
    return copies[place].as_strided(value.size(), value.stride(), value.storage_offset())


def _stream(like: Tensor) -> int:
    """Who uses a graph: the other direction of a layer runs on another stream, with another."""
    return torch.cuda.current_stream(like.device).cuda_stream if like.is_cuda else 0


@lru_cache(maxsize=64)
def _aside(device: torch.device, stream: int) -> Any:
    """The stream on which graphs are made for another one: it has workspaces of its own, which
    graphs use for ever."""
    return torch.cuda.Stream(device)

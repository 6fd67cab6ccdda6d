"""Calls that come again, as CUDA graphs: one launch instead of all that the host decides.

A short call takes the host longer than the GPU, above all where every step is launched by itself.
The second call of a kind is captured, by torch's own API, on arrays of its own: arguments are
copied in, results out.
"""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from elman.engines.base import Kernel
from elman.engines.call import Call, Cotangents, Gradients, Result
from elman.engines.precision import precision
from elman.engines.triton.device import limits
from elman.engines.triton.device.launch import launching
from elman.engines.triton.device.schedule import TritonSchedule
from elman.torch_internals import copy_all

Arguments = Sequence[Tensor | None]


class CapturedKernel(Kernel):
    """A kernel whose calls of the same shapes are captured.

    Args:
        schedule: how its steps run.
    """

    packs = True

    def __init__(self, schedule: TritonSchedule) -> None:
        self.fixed = schedule
        capacity = limits.STEPS_BYTES if schedule.kind == "steps" else limits.LOOP_BYTES
        self.forwards, self.backwards = CallGraphs(capacity), CallGraphs(capacity)

    @abstractmethod
    def compute_forward(self, call: Call) -> Result:
        """Launch a forward: what :meth:`Kernel.forward` returns."""

    @abstractmethod
    def compute_backward(
        self, call: Call, saved: Sequence[Tensor], cotangents: Cotangents, keep: bool
    ) -> Gradients:
        """Launch a backward: what :meth:`Kernel.backward` returns."""

    def forward(self, call: Call) -> Result:
        """See :meth:`Kernel.forward`.

        Raises:
            EngineError: this chip cannot hold the kernel.
        """
        form = call.form

        def compute(tensors: Arguments) -> Result:
            values: Any = tensors  # none of a forward's is None
            with launching(values[0]):
                return self.compute_forward(form.call(values))

        if not self._repeats(call):
            return compute(call.tensors)
        return self.forwards.run(compute, call.tensors, form)

    def backward(
        self, call: Call, saved: Sequence[Tensor], cotangents: Cotangents, keep: bool
    ) -> Gradients:
        """See :meth:`Kernel.backward`; raises as :meth:`forward`."""
        form, first, last = call.form, len(call.tensors), len(call.tensors) + len(saved)

        def compute(tensors: Arguments) -> Gradients:
            values: Any = tensors
            d_output, *d_last = values[last:]
            ends, given = Cotangents(d_output, tuple(d_last)), form.call(values[:first])
            with launching(values[0]):
                return self.compute_backward(given, values[first:last], ends, keep)

        tensors = (*call.tensors, *saved, cotangents.output, *cotangents.last)
        if not self._repeats(call):
            return compute(tensors)
        return self.backwards.run(compute, tensors, (form, keep))

    def _repeats(self, call: Call) -> bool:
        """Whether a call is captured: dense, and of few enough launches."""
        if call.packed is not None:
            return False
        return self.fixed.kind != "steps" or call.inputs[0].shape[0] <= limits.GRAPH_STEPS


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
        with torch.cuda.device_of(like):
            return self._run(compute, tensors, facts, like)

    def _run(
        self,
        compute: Callable[[Arguments], Any],
        tensors: Arguments,
        facts: Hashable,
        like: Tensor,
    ) -> Any:
        """A call on the device of its tensors."""
        kinds = [None if t is None else (t.shape, t.stride(), t.dtype, t.device) for t in tensors]
        key = (facts, precision(), torch.is_inference_mode_enabled(), _stream(like), *kinds)
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
        self._targets = _by_dtype(self._arguments)
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
            result = compute(self._arguments)
        self._copies = _Copies(result)
        self._compute = None

    def __call__(self, tensors: Arguments) -> Any:
        """Copy in, run, copy out."""
        for targets, places in self._targets:
            values: Any = [tensors[place] for place in places]
            copy_all(targets, values)
        if self._compute is not None:
            return _Copies(self._compute(self._arguments))()
        self._graph.replay()
        return self._copies()


def _by_dtype(arguments: Arguments) -> list[tuple[list[Tensor], list[int]]]:
    """Arguments of each type, which are copied at once, and their places."""
    groups: dict[torch.dtype, tuple[list[Tensor], list[int]]] = {}
    for place, argument in enumerate(arguments):
        if argument is not None:
            targets, places = groups.setdefault(argument.dtype, ([], []))
            targets.append(argument)
            places.append(place)
    return [*groups.values()]


def _tensors(value: Any) -> Iterator[Tensor]:
    """All tensors in nested lists and tuples."""
    if isinstance(value, Tensor):
        yield value
    elif value is not None:
        for item in value:
            yield from _tensors(item)


class _Copies:
    """Makes copies of a result: callers keep one tensor without the others, and write to it. What
    shares memory shares it again."""

    def __init__(self, result: Any) -> None:
        self._result = result
        memories = {_memory(t): t.new_empty(0).set_(t.untyped_storage()) for t in _tensors(result)}
        self._keys, self._groups = [*memories], _by_dtype([*memories.values()])

    def __call__(self) -> Any:
        """The result as it is now, in other memory."""
        storages: dict[Hashable, Any] = {}
        for sources, places in self._groups:
            copies = [torch.empty_like(source) for source in sources]
            copy_all(copies, sources)
            for place, copy in zip(places, copies, strict=True):
                storages[self._keys[place]] = copy.untyped_storage()
        return _replaced(self._result, storages)


def _memory(tensor: Tensor) -> Hashable:
    return tensor.untyped_storage().data_ptr(), tensor.dtype


def _replaced(value: Any, storages: Mapping[Hashable, Any]) -> Any:
    """Nested tuples with tensors in other memory; no views, as autograd would take a change of one
    for one of all."""
    if value is None:
        return None
    if isinstance(value, Tensor):
        place = value.storage_offset(), value.size(), value.stride()
        return value.new_empty(0).set_(storages[_memory(value)], *place)
    items = [_replaced(item, storages) for item in value]
    return type(value)(*items) if hasattr(value, "_fields") else tuple(items)


def _stream(like: Tensor) -> int:
    """Who uses a graph: the other direction of a layer runs on another stream, with another."""
    return torch.cuda.current_stream(like.device).cuda_stream if like.is_cuda else 0


@lru_cache(maxsize=64)
def _aside(device: torch.device, stream: int) -> Any:
    """The stream on which graphs are made for another one: it has workspaces of its own, which
    graphs use for ever."""
    return torch.cuda.Stream(device)

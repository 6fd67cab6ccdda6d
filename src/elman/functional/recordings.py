"""Records what a layer does in one call, and does it again.

All operations of a call are recorded, each with the tensors that it reads and writes; another call
copies its arguments to where the first one's lay and runs the operations in order. Views need no
operation then, and kernels of ours no arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from elman.engines.c.noted import Launch, Launches, noted
from elman.torch_internals import (
    TorchDispatchMode,
    memory_of,
    pytree,
    schema_of,
    writing_variant,
)

_ALLOCATES = ("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided")
_REFUSED = (  # what another call could do otherwise
    torch.Tag.data_dependent_output,
    torch.Tag.dynamic_output_shape,
    torch.Tag.nondeterministic_seeded,
)


class RefusedError(Exception):
    """A call cannot be recorded."""


class _Recorder(TorchDispatchMode):
    """Notes the operations inside of it. What cannot be noted is refused before it runs, so that
    the call can be made again.

    Args:
        read: tensors that were there before, and may be read.
        written: those that may also be written to.

    Attributes:
        runs: what each call does, in order.
    """

    def __init__(self, read: Iterable[Tensor], written: Iterable[Tensor]) -> None:
        super().__init__()
        self.runs = list[Callable[[], Any]]()
        self._read = {memory_of(value) for value in read}
        self._written = {memory_of(value): value for value in written}  # made ones, too, which are
        # kept here, so that no other has the number of their memory

    def __torch_dispatch__(
        self, operation: Any, types: Any, given: Any = (), options: Any = None
    ) -> Any:
        options = options or {}
        tensors = [v for v in pytree.tree_leaves((given, options)) if isinstance(v, Tensor)]
        memories, changes = {memory_of(v) for v in tensors}, schema_of(operation).is_mutable
        if any(tag in operation.tags for tag in _REFUSED):
            raise RefusedError(f"{operation} may differ between calls")
        if not memories <= self._written.keys() | (set() if changes else self._read):
            raise RefusedError(f"{operation} has a tensor that is not the layer's own")
        result = operation(*given, **options)
        results = [v for v in pytree.tree_leaves(result) if isinstance(v, Tensor)]
        is_view = bool(results) and all(memory_of(v) in memories for v in results)
        self._written |= {memory_of(v): v for v in results if memory_of(v) not in memories}
        if tensors and not results and not changes:
            raise RefusedError(f"{operation} may differ between calls")
        if changes:
            self.runs.append(partial(operation, *given, **options))
        elif results and not is_view and operation.overloadpacket.__name__ not in _ALLOCATES:
            self.runs.append(_again(operation, given, options, result))
        return result

    def launched(self, launch: Launch) -> None:
        """Note a kernel's launch."""
        self.runs.append(launch)
        self._written |= {memory_of(value): value for value in launch.results}


def _again(operation: Any, given: Any, options: Any, result: Any) -> Callable[[], Any]:
    """An operation that writes into the results that it had."""
    variant = writing_variant(operation) if isinstance(result, Tensor) else None
    if variant is not None:
        function, name = variant
        return partial(function, *given, **options, **{name: result})
    results = pytree.tree_leaves(result)  # numbers in it may depend on shapes only

    def run() -> None:
        for target, value in zip(results, pytree.tree_leaves(operation(*given, **options))):
            if isinstance(target, Tensor):
                target.copy_(value)

    return run


class Recording:
    """The operations of one call.

    Args:
        forward: of the layer.
        layer, given, options: of the call.
        states: tensors that it may write to.
        situation: what its operations depend on, but for the numbers in tensors.

    Attributes:
        situation: as given.
        result: of the call that was recorded.
        uses: how many calls they have run.
        verified: whether a call by them was compared with the layer's own.
    """

    def __init__(
        self,
        forward: Any,
        layer: nn.Module,
        given: Any,
        options: Any,
        states: list[Tensor],
        situation: Any,
    ) -> None:
        self.situation, self.uses, self.verified = situation, 0, False
        given, options = _mapped(torch.clone, (given, options))
        self._targets = [*tensors_of((given, options))]  # not the cache, of all layers
        recorder = _Recorder(ModuleContents(layer).tensors, [*self._targets, *states])
        launches = Launches(recorder.launched)
        with recorder, noted(launches):
            self._result = forward(layer, *given, **options)
        if not launches.complete:
            raise RefusedError("a kernel that is not prepared")
        self._runs, self._recorder = recorder.runs, recorder
        self.result = self._copy()

    def _copy(self) -> Any:
        return _mapped(torch.clone, self._result)

    def run(self, given: Any, options: Any) -> Any:
        """Another call's result."""
        write(self._targets, [*tensors_of((given, options))])
        for run in self._runs:
            run()
        self.uses += 1
        return self._copy()


class ModuleContents:
    """The attributes, parts and tensors of a layer.

    A part or a weight that is exchanged changes an id that :meth:`ids` gives, so that the lists are
    right as long as the ids are the same.
    """

    def __init__(self, layer: nn.Module) -> None:
        held = [vars(part) for part in layer.modules()]
        values = [*chain.from_iterable(each.values() for each in held)]
        self._dicts = [*held, *(value for value in values if isinstance(value, dict))]
        self._weights = [*layer.parameters()]
        self.tensors = [
            *self._weights,
            *layer.buffers(),
            *(value for value in values if isinstance(value, Tensor)),
        ]

    def ids(self) -> tuple[int, ...]:
        """Of all values."""
        return tuple(map(id, chain.from_iterable(map(dict.values, self._dicts))))

    def weights(self) -> tuple[int, ...]:
        """Where the weights lie, and how often they were written to."""
        return tuple([number for w in self._weights for number in (w.data_ptr(), w._version)])


def _mapped(change: Callable[[Tensor], Tensor], value: Any) -> Any:
    """A tree of tuples, lists and dicts, its tensors changed. Not by torch's trees: caches may be
    among those."""
    if isinstance(value, Tensor):
        return change(value)
    if type(value) in (tuple, list):
        return type(value)([_mapped(change, each) for each in value])
    if type(value) is dict:
        return {key: _mapped(change, each) for key, each in value.items()}
    return value


def tensors_of(value: Any) -> Iterator[Tensor]:
    """The tensors of a tree of tuples, lists and dicts."""
    if isinstance(value, Tensor):
        yield value
    elif type(value) in (tuple, list):
        for each in value:
            yield from tensors_of(each)
    elif type(value) is dict:
        yield from tensors_of([*value.values()])


def write(targets: list[Tensor], values: list[Tensor]) -> None:
    for target, value in zip(targets, values, strict=True):
        target.copy_(value)

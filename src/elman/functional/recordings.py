"""Records what a layer does in one call, and does it again.

All operations of a call are recorded, each with the tensors that it reads and writes; another call
copies its arguments to where the first one's lay and runs the operations in order. Views need no
operation then, and kernels of ours no arguments. What depends on more than the shapes of tensors
can be called apart: each run makes such a call again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from itertools import groupby
from threading import get_ident
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from elman.engines.c.calls.noted import Launch, Launches, noted
from elman.engines.c.compilation.compilers import has_compiler
from elman.engines.c.kernels import op_lists
from elman.functional.module_contents import ModuleContents
from elman.functional.state_memory import StateMemory
from elman.torch_internals import (
    TorchDispatchMode,
    memory_of,
    name_of,
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


class NotReadyError(RefusedError):
    """A call cannot be recorded yet: a kernel was made or chosen in it."""


class Slot:
    """Stands for a value that differs between runs, as a cache that grows.

    Attributes:
        value: of the run that is under way.
    """

    __slots__ = ("value",)

    def __init__(self, value: Any = None) -> None:
        self.value = value


class _CallApart(NamedTuple):
    """A call that each run makes again.

    Attributes:
        target: to which its first result is copied; None: it is a slot, as the others are.
        slots: of its results.
    """

    function: Callable[..., Any]
    given: list[Any]
    options: dict[str, Any]
    target: Tensor | None
    slots: list[Slot]

    def run(self) -> None:
        """Call it with the tensors of this run."""
        given = [_value(each) for each in self.given]
        options = {name: _value(each) for name, each in self.options.items()}
        results = [*tensors_of(self.function(*given, **options))]
        if self.target is not None:
            if results[0].shape != self.target.shape:
                raise RefusedError("a part of it returns another shape")
            self.target.copy_(results[0])
        for slot, result in zip(self.slots, results, strict=True):
            slot.value = result


def _value(each: Any) -> Any:
    return each.value if type(each) is Slot else each


class Recorder(TorchDispatchMode):
    """Notes the operations inside of it. What cannot be noted is refused before it runs, so that
    the call can be made again.

    Args:
        read: tensors that were there before, and may be read.
        written: those that may also be written to.
        slots: by the ids of the values that they stand for.

    Attributes:
        runs: what each call does, in order: lists of operations in C, launches of kernels, and
            functions.
        slots: as given, and those of calls apart.
    """

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # torch would import its compiler, some seconds, to keep it out of here

    def __init__(
        self, read: Iterable[Tensor], written: Iterable[Tensor], slots: dict[int, Slot]
    ) -> None:
        super().__init__()
        self.runs, self.slots = list[Any](), slots
        self._compiles = has_compiler()
        self._thread = get_ident()
        self._made: dict[int, Tensor] | None = None  # by the call apart that is under way
        self._read = {memory_of(value) for value in read}
        self._written = {memory_of(value): value for value in written}  # made ones, too, which are
        # kept here, so that no other has the number of their memory

    def __torch_dispatch__(
        self, operation: Any, types: Any, given: Any = (), options: Any = None
    ) -> Any:
        options = options or {}
        tensors = [v for v in pytree.tree_leaves((given, options)) if isinstance(v, Tensor)]
        if self._made is not None:
            return self._run_apart(operation, given, options, tensors, self._made)
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
        is_new = results and not is_view and operation.overloadpacket.__name__ not in _ALLOCATES
        if changes or is_new:
            target = result if is_new else given[0] if given else None
            self._note(operation, given, options, result, target, changes)
        return result

    def _note(
        self, operation: Any, given: Any, options: Any, result: Any, target: Any, changes: bool
    ) -> None:
        """Note an operation: as one of a list in C, or as a call of torch's."""
        noted = None
        if self._compiles and isinstance(target, Tensor):
            noted = op_lists.operation(name_of(operation), given, options, target)
        if noted is not None:
            self.runs.append(noted)
        elif changes:
            self.runs.append(partial(operation, *given, **options))
        else:
            self.runs.append(_again(operation, given, options, result))

    def _run_apart(
        self, operation: Any, given: Any, options: Any, tensors: list[Tensor], made: Any
    ) -> Any:
        """An operation that each run chooses anew. It changes nothing but what the call has made,
        since a recording that is compared makes the call twice."""
        values = _arguments_of(operation, given, options)
        drawn = torch.Tag.nondeterministic_seeded in operation.tags and values.get("dropout_p", 1)
        written = {memory_of(v) for v in _written_by(operation, values)}
        if drawn or not written <= made.keys():
            raise RefusedError(f"{operation} may differ between calls")
        result = operation(*given, **options)
        known = {memory_of(v) for v in tensors}
        results = [v for v in pytree.tree_leaves(result) if isinstance(v, Tensor)]
        made |= {memory_of(v): v for v in results if memory_of(v) not in known}
        return result

    @property
    def is_apart(self) -> bool:
        """Whether a call apart is under way."""
        return self._made is not None

    def apart(self, function: Callable[..., Any], fixed: bool) -> Callable[..., Any]:
        """A function whose calls are made again by each run.

        Args:
            fixed: whether operations can read the first of its results; other calls apart can read
                all. Only if it is as large as an argument that is there in each run, since it may
                grow otherwise.
        """

        def call(*given: Any, **options: Any) -> Any:
            if get_ident() != self._thread or self.is_apart:
                return function(*given, **options)
            self._made = {}
            try:
                with noted(Launches(_ignore, _never)):
                    result = function(*given, **options)
            finally:
                self._made = None
            self._note_apart(function, given, options, [*tensors_of(result)], fixed)
            return result

        return call

    def _note_apart(
        self, function: Any, given: Any, options: Any, results: list[Tensor], fixed: bool
    ) -> None:
        others = [each for each in (*given, *options.values()) if id(each) not in self.slots]
        if any(id(each) in self.slots for each in _leaves(others)):
            raise RefusedError("a value that differs between tokens, inside of another")
        if not {memory_of(v) for v in tensors_of(others)} <= self._written.keys() | self._read:
            raise RefusedError("a call is given a tensor that is not the layer's own")
        sizes = {value.numel() for value in tensors_of(others)}
        fixed = fixed and results[:1] != [] and results[0].numel() in sizes
        places = [self.slots.get(id(each), each) for each in given]
        names = {name: self.slots.get(id(each), each) for name, each in options.items()}
        slots = [Slot(value) for value in results]
        call = _CallApart(function, places, names, results[0] if fixed else None, slots)
        self.runs.append(call.run)
        first = results[:1] if fixed else []
        self._written |= {memory_of(value): value for value in first}
        self.slots |= {id(slot.value): slot for slot in slots[len(first) :]}

    def is_own(self, value: Tensor) -> bool:
        """Whether each run writes a tensor."""
        return memory_of(value) in self._written

    def launched(self, launch: Launch) -> None:
        """Note a kernel's launch."""
        self.runs.append(launch)
        self._written |= {memory_of(value): value for value in launch.results}


def _ignore(_: Launch) -> None:
    """A launch of a call apart."""


def _never(_: Tensor) -> bool:
    return False


def _arguments_of(operation: Any, given: Any, options: dict[str, Any]) -> dict[str, Any]:
    """Arguments by name; those that are left out have their defaults."""
    arguments = schema_of(operation).arguments
    defaults = {a.name: a.default_value for a in arguments if a.has_default_value()}
    return defaults | {a.name: value for a, value in zip(arguments, given)} | options


def _written_by(operation: Any, values: dict[str, Any]) -> list[Tensor]:
    """The tensors that an operation writes to."""
    infos = {a.name: a.alias_info for a in schema_of(operation).arguments}
    written = [values[name] for name, info in infos.items() if info is not None and info.is_write]
    return [*tensors_of(written)]


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


def _joined(runs: list[Any]) -> list[Callable[[], Any]]:
    """Functions, of which one runs all operations in C and launches that follow each other."""
    joined = list[Callable[[], Any]]()
    for in_c, group in groupby(runs, lambda run: isinstance(run, list | Launch)):
        following = [*group]
        joined += [op_lists.OpList(following)] if in_c else following
    return joined


class Recording:
    """The operations of one call.

    Args:
        situation: what its operations depend on, but for the numbers in tensors.
        memory: of the tensors that it may write to.
        free: arguments by name that may be other ones in each run: calls apart alone use them.

    Attributes:
        situation, memory: as given.
        result: of the call that was recorded.
        uses: how many calls they have run.
        verified: whether a call by them was compared with the layer's own.
    """

    result: Any

    def __init__(self, situation: Any, memory: StateMemory, free: Iterable[str] = ()) -> None:
        self.situation, self.memory = situation, memory
        self.uses, self.verified = 0, False
        self._free = {name: Slot() for name in free}

    def record(
        self,
        forward: Any,
        layer: nn.Module,
        given: Any,
        options: Any,
        around: Callable[[Recorder], AbstractContextManager[Any]],
    ) -> None:
        """Make a call and record it.

        Args:
            forward: of the layer.
            layer, given, options: of the call.
            around: what runs around the call, given the recorder, so that it can put calls apart.

        Raises:
            RefusedError: an operation may differ between calls. The call has ended there.
        """
        given, fixed = _mapped(torch.clone, (given, self._fixed(options)))
        options = options | fixed
        self._targets = [*tensors_of((given, fixed))]  # not the cache, of all layers
        slots = {id(options[name]): slot for name, slot in self._free.items()}
        slots.pop(id(None), None)
        written = [*self._targets, *self.memory.own]
        recorder = Recorder(ModuleContents(layer).tensors, written, slots)
        launches = Launches(recorder.launched, recorder.is_own)
        with around(recorder), recorder, noted(launches):
            self._result = forward(layer, *given, **options)
        if not launches.complete:
            raise NotReadyError("a kernel that is not prepared")
        if not all(map(recorder.is_own, tensors_of(self._result))):
            raise RefusedError("a result of another shape in each token")
        self._runs, self._recorder = _joined(recorder.runs), recorder
        self.result = self._copy()
        self._forget()

    def _fixed(self, options: dict[str, Any]) -> dict[str, Any]:
        if not self._free:
            return options
        return {name: each for name, each in options.items() if name not in self._free}

    def _copy(self) -> Any:
        return _mapped(torch.clone, self._result)

    def _forget(self) -> None:
        """Let go of what this run's slots stand for."""
        for slot in (*self._free.values(), *self._recorder.slots.values()):
            slot.value = None

    def run(self, given: Any, options: Any) -> Any:
        """Another call's result."""
        write(self._targets, [*tensors_of((given, self._fixed(options)))])
        for name, slot in self._free.items():
            slot.value = options[name]
        for run in self._runs:
            run()
        self.uses += 1
        if self._recorder.slots:
            self._forget()
        return self._copy()


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


def _leaves(value: Any) -> Iterator[Any]:
    if type(value) in (tuple, list, dict):
        for each in value.values() if type(value) is dict else value:
            yield from _leaves(each)
    else:
        yield value


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

"""Record a call on the host: torch's operations and kernel launches.

A view is not an operation: a :class:`Place` tells where it lies, however it was reached.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false
# (torch's dispatch modes have no types)

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import Tensor

from elman.torch_internals import DispatchMode, writes_arguments

_current = threading.local()


class UnrecordableError(Exception):
    """A call that cannot be recorded."""


class Place(NamedTuple):
    """Location of a tensor.

    Attributes:
        root: the number of the tensor whose memory it is.
        offset: from its first element (elements).
        size, stride: of the tensor.
    """

    root: int
    offset: int
    size: tuple[int, ...]
    stride: tuple[int, ...]

    @property
    def extent(self) -> int:
        """Elements from the first of its own to the last."""
        if 0 in self.size:
            return 0
        return 1 + sum((n - 1) * s for n, s in zip(self.size, self.stride, strict=True))


@dataclass(frozen=True, eq=False)
class Operation:
    """One of torch's operations; arguments are numbers, types, places, and lists of them.

    Attributes:
        result: the number of the tensor that it makes; None: it writes to one that is there.
    """

    op: Any
    args: Sequence[Any]
    options: Mapping[str, Any]
    result: int | None


@dataclass(frozen=True, eq=False)
class Launch:
    """A kernel's launch.

    Attributes:
        kernel: as it is written.
        compiled: what ran; None in the interpreter.
        grid, args, options: what it was launched with.
    """

    kernel: Any
    compiled: Any
    grid: tuple[int, ...]
    args: Sequence[Any]
    options: Mapping[str, Any]


class Recorder(DispatchMode):
    """Context that records operations on tensors.

    Args:
        arguments: the tensors that are given, each another one.

    Attributes:
        roots: tensors with memory of their own: the arguments, then what is made.
        lines: what is done, in order.
        refused: why not all of it is there; the call itself goes on.
    """

    def __init__(self, arguments: Sequence[Tensor]) -> None:
        super().__init__()
        self.count = len(arguments)
        self.roots = list(arguments)
        self.lines: list[Operation | Launch] = []
        self._places = {id(value): place_of(k, value) for k, value in enumerate(arguments)}
        self._alive: list[Tensor] = []  # so that no tensor is taken for another one
        self.refused: UnrecordableError | None = None
        self._paused = False

    def __torch_dispatch__(  # type: ignore[override]
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Run and record an operation."""
        options = kwargs or {}
        result = func(*args, **options)
        self._try(lambda: self._note(func, args, options, result))
        return result

    def _try(self, note: Callable[[], None]) -> None:
        if self._paused or self.refused is not None:
            return
        try:
            note()
        except UnrecordableError as error:
            self.refused = error

    def _note(self, op: Any, args: Any, options: Any, result: Any) -> None:
        operands = [*tensors_of(args), *tensors_of(options)]
        outputs = [*tensors_of(result)]
        if not outputs:
            raise UnrecordableError(f"{op} makes no tensor")
        new: list[int] = []
        for value in outputs:
            if id(value) in self._places:
                continue
            base = next((operand for operand in operands if _shares(operand, value)), None)
            if base is None:
                new.append(len(self.roots))
                self.roots.append(value)
                self._places[id(value)] = place_of(new[-1], value)
            else:
                self._places[id(value)] = self._within(base, value)
                self._alive.append(value)
        writes = writes_arguments(op)
        if writes is None:
            raise UnrecordableError(f"{op} does not say what it writes")
        if len(new) + writes > 1:
            raise UnrecordableError(f"{op} makes several tensors")
        if new or writes:
            placed = self.placed(args), self.placed(options)
            self.lines.append(Operation(op, *placed, new[0] if new else None))

    def launched(
        self,
        kernel: Any,
        grid: tuple[int, ...],
        args: Sequence[Any],
        options: Mapping[str, Any],
        launch: Callable[[], Any],
    ) -> None:
        """Launch and record a kernel, without the interpreter's operations inside."""
        self._paused = True
        try:
            compiled = launch()
        finally:
            self._paused = False

        def note() -> None:
            self.lines.append(Launch(kernel, compiled, grid, self.placed(args), options))

        self._try(note)

    def placed(self, value: Any) -> Any:
        """A nested argument with places instead of tensors."""
        if isinstance(value, Tensor):
            place = self._places.get(id(value))
            if place is None:
                raise UnrecordableError("a tensor comes from elsewhere")
            return place
        if isinstance(value, (list, tuple)):
            return [self.placed(item) for item in value]
        if isinstance(value, dict):
            return {name: self.placed(item) for name, item in value.items()}
        return value

    def _within(self, base: Tensor, value: Tensor) -> Place:
        """The place of a view, of the memory of a tensor that has one."""
        place: Place = self.placed(base)
        root = self.roots[place.root]
        offset = int(value.storage_offset()) - int(root.storage_offset())
        view = Place(place.root, offset, tuple(value.shape), value.stride())
        if value.dtype != root.dtype:
            raise UnrecordableError("a view in another type")
        outside = offset < 0 or offset + view.extent > place_of(0, root).extent
        if place.root < self.count and outside:  # of an argument that lies elsewhere the next time
            raise UnrecordableError("arguments that are joined where they lie")
        return view


def recorder() -> Recorder | None:
    """The recorder of this thread's call, or None."""
    return getattr(_current, "recorder", None)


@contextmanager
def recording(arguments: Sequence[Tensor]) -> Iterator[Recorder]:
    """Context that records this thread's operations and launches."""
    with Recorder(arguments) as active:
        _current.recorder = active
        try:
            yield active
        finally:
            _current.recorder = None


def tensors_of(value: Any) -> Iterator[Tensor]:
    """All tensors in nested lists, tuples and dicts."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors_of(item)
    elif isinstance(value, dict):
        yield from tensors_of([*value.values()])


def place_of(root: int, value: Tensor) -> Place:
    """The place of a full tensor."""
    return Place(root, 0, tuple(value.shape), value.stride())


def _shares(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors lie in the same memory."""
    place = a.untyped_storage().data_ptr()
    return place != 0 and place == b.untyped_storage().data_ptr()

"""Tape of a step: torch's operations, recorded in order while the step runs once.

The batch has a prime number of samples while a step is recorded, one that no size of the program
has, so the axis of samples is the one whose size is a multiple of it, through every view. (Tensors
without memory would do as well, but torch imports its compiler for their shapes, some seconds.)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx
from torch.overrides import TorchFunctionMode

from elman.errors import StepError
from elman.frontend.lines import where_asked
from elman.steps.operations import find
from elman.torch_internals import (
    TorchDispatchMode,
    decomposition,
    is_functional,
    is_wrapped,
    memory_of,
    name_of,
    no_function_modes,
    no_modes,
    own_backwards,
    pytree,
    schema_of,
)

BATCHES = (101, 37)  # the second where the first is a size of the program
OWN_GRADIENT = "torch.autograd.Function"
_NO_NUMBER = "it reads a number from a tensor"
_CHOOSE = (
    "torch.where(condition, a, b) chooses for each sample; a number of the module is an attribute"
)
_READS = ("item", "__bool__", "__int__", "__float__", "__index__", "tolist", "numpy", "__array__")


class Ref(NamedTuple):
    """A tensor of the tape: its number, one per value that it has had."""

    number: int


class Place(NamedTuple):
    """Where a tensor's axis of samples is, and its shape of one sample.

    Attributes:
        shape: with the axis of samples as its rows per sample.
        batch: that axis; None: there is none.
    """

    shape: tuple[int, ...]
    batch: int | None

    def apart(self, value: Tensor, lead: int = 0) -> Tensor:
        """A tensor [*lead, ..] as [*lead, B, *shape]; without samples it is of one."""
        if self.batch is None:
            return value.unsqueeze(lead)
        axis = lead + self.batch
        value = value.unflatten(axis, (-1, self.shape[self.batch]))
        return value.movedim(axis, lead) if self.batch else value

    def join(self, value: Tensor, lead: int = 0) -> Tensor:
        """The reverse of :meth:`apart`; without samples, all are alike, and the first is taken."""
        if self.batch is None:
            return value.select(lead, 0)
        axis = lead + self.batch
        value = value.movedim(lead, axis) if self.batch else value
        return value.flatten(axis, axis + 1)


def is_ref(value: Any) -> bool:
    """Whether a leaf of arguments or results is a reference."""
    return isinstance(value, Ref)


def refs_of(tree: Any) -> list[Ref]:
    """All references in arguments or results."""
    return [leaf for leaf in pytree.tree_leaves(tree, is_leaf=is_ref) if isinstance(leaf, Ref)]


class Entry(NamedTuple):
    """One operation.

    Attributes:
        op: of torch; ``OWN_GRADIENT`` of a value, inputs and slopes.
        args, kwargs: with a :class:`Ref` in place of each tensor.
        results: what it returns, with references; of what it writes to, the new value.
        where: the user's line.
        stops: whether torch.no_grad() surrounds it.
    """

    op: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    results: Any
    where: str
    stops: bool

    @property
    def name(self) -> str:
        """See :func:`name_of`."""
        return name_of(self.op)

    @property
    def given(self) -> list[Ref]:
        """The tensors that it is given."""
        return refs_of((self.args, self.kwargs))

    @property
    def written(self) -> list[Ref]:
        """What it writes to."""
        return written_by(self.op, self.args, self.kwargs)


def _like(tensor: Tensor) -> Tensor:
    """A tensor of the same kind that takes no memory."""
    return torch.empty((), dtype=tensor.dtype).expand(tensor.shape)


def written_by(op: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
    """Those leaves of an operation's arguments that it writes to."""
    if isinstance(op, str) or not schema_of(op).is_mutable:
        return []
    values: list[Any] = []
    for at, argument in enumerate(schema_of(op).arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            values.append(args[at] if at < len(args) else kwargs.get(argument.name))
    leaves = pytree.tree_leaves(values, is_leaf=is_ref)
    return [leaf for leaf in leaves if isinstance(leaf, (Tensor, Ref))]


def is_random(op: Any) -> bool:
    """Whether an operation draws numbers."""
    return torch.Tag.nondeterministic_seeded in getattr(op, "tags", ())


@dataclass
class Tape:
    """A recorded step.

    Attributes:
        entries: in their order.
        batch: samples while it was recorded.
        tensors: by number of reference; kinds and sizes alone, once it is read.
        carries, inputs: references of the leaves of states and of inputs that the step was given.
        captured: tensors that the step closes over, by number of reference.
        per_sample: those of them that have a row for each sample.
        constants: tensors that the step makes of numbers alone.
        places: captured tensors that are indices, whose numbers are part of the formula.
        read: captured tensors a number of which the step reads, and the number.
        results: leaves of what it returns: references, or what is no tensor.
        spec: of the tree of results.
    """

    batch: int = BATCHES[0]
    entries: list[Entry] = field(default_factory=list[Entry])
    tensors: list[Tensor] = field(default_factory=list[Tensor])
    carries: list[Ref] = field(default_factory=list[Ref])
    inputs: list[Ref] = field(default_factory=list[Ref])
    captured: dict[int, Tensor] = field(default_factory=dict[int, Tensor])
    per_sample: set[int] = field(default_factory=set[int])
    places: set[int] = field(default_factory=set[int])
    constants: dict[int, Tensor] = field(default_factory=dict[int, Tensor])
    read: list[tuple[Tensor, Any]] = field(default_factory=list[tuple[Tensor, Any]])
    results: list[Any] = field(default_factory=list[Any])
    spec: Any = None

    def kind(self, ref: Ref) -> torch.dtype:
        """The type of a value."""
        return self.tensors[ref.number].dtype

    def place(self, ref: Ref) -> Place:
        """Where a value's axis of samples is. Raises StepError: it has two."""
        shape = self.tensors[ref.number].shape
        axes = [axis for axis, n in enumerate(shape) if n and n % self.batch == 0]
        if len(axes) > 1:
            raise StepError("a tensor has two axes of samples")
        sizes = [n // self.batch if axis in axes else n for axis, n in enumerate(shape)]
        return Place(tuple(sizes), axes[0] if axes else None)

    def sized(self, value: Any, batch: Callable[[int], Any]) -> Any:
        """A number of an operation's arguments; of samples, what ``batch`` makes of how many times
        the batch it is."""
        is_batch = type(value) is int and value and value % self.batch == 0
        return batch(value // self.batch) if is_batch else value

    def same_as(self, other: Tape) -> bool:
        """Whether two tapes are of one formula: the same operations of the same values."""
        return (
            self._plain() == other._plain()
            and self.constants.keys() == other.constants.keys()
            and all(
                _equal(value, other.constants[number]) for number, value in self.constants.items()
            )
        )

    def forget(self) -> None:
        """Let go of all tensors but constants and indices."""
        self.tensors = [_like(tensor) for tensor in self.tensors]
        kept = self.captured.items()
        self.captured = {n: t if n in self.places else self.tensors[n] for n, t in kept}
        self.read = []

    def _plain(self) -> Any:
        """All but tensors, with the batch as a name."""

        def number(value: Any) -> Any:
            return self.sized(value, "{}B".format)

        entries = [
            (entry.op, *pytree.tree_map(number, entry[1:4], is_leaf=lambda v: type(v) is Ref))
            for entry in self.entries
        ]
        kinds = [(tensor.dtype, [*map(number, tensor.shape)]) for tensor in self.tensors]
        return entries, self.results, self.spec, [*self.captured], self.per_sample, kinds


def _equal(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and a.dtype == b.dtype and bool((a == b).all())


class OverlapError(Exception):
    """A tensor is read after another one that shares its memory was written to."""


def record(
    step: Callable[..., Any],
    arguments: Callable[[int], tuple[list[Tensor], list[Tensor]]],
    per_sample: Sequence[Tensor] = (),
    batch: int = BATCHES[0],
) -> Tape:
    """Run a step once.

    Args:
        step: called with the arguments.
        arguments: leaves of states and of inputs, made for so many samples.
        per_sample: closed-over tensors with a row for each sample.
        batch: samples.

    Raises:
        StepError: the step raises an error, which is its cause, or does what no tape can hold.
    """
    recorder, given = Recorder(per_sample, batch), arguments(batch)
    tape = recorder.tape
    tape.carries, tape.inputs = ([*map(recorder.enter, leaves)] for leaves in given)
    token = _current.set(recorder)
    try:
        with own_backwards(_apply), _Images(recorder), recorder:
            leaves, tape.spec = pytree.tree_flatten(step(*given))
        tape.results = [recorder.refer(leaf) if _is(leaf) else leaf for leaf in leaves]
    except OverlapError:  # of which a step without writes has none
        functional = cast("Callable[..., Any]", torch.func.functionalize)
        return record(functional(step, remove="mutations"), arguments, per_sample, batch)
    except StepError:
        raise
    except Exception as error:
        reason = str(error).partition("\n")[0]
        where = recorder.where or where_asked()
        raise StepError(f"{type(error).__name__}: {reason}", at=where) from error
    finally:
        _current.reset(token)
    return tape


def _is(value: Any) -> bool:
    return isinstance(value, Tensor)


_current: ContextVar[Recorder | None] = ContextVar("elman_recorder", default=None)


class Recorder(TorchDispatchMode):
    """Mode that writes operations on a tape."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # torch would import its compiler, some seconds, to keep it out of here

    def __init__(self, per_sample: Sequence[Tensor], batch: int) -> None:
        super().__init__()
        self.tape = Tape(batch)
        self.where = ""
        self._graded = torch.is_grad_enabled()
        self._numbers: dict[int, int] = {}  # id of a tensor -> its present number
        self._images: dict[int, Tensor] = {}  # id of a captured tensor -> its stand-in
        self._alive: list[Tensor] = []  # so that no id stands for two
        self._per_sample = {id(tensor) for tensor in per_sample}
        self._written: dict[int, list[Tensor]] = {}  # storage -> tensors that were written to

    def enter(self, tensor: Tensor) -> Ref:
        """Number a tensor."""
        self._alive.append(tensor)
        self.tape.tensors.append(tensor)
        number = self._numbers[id(tensor)] = len(self.tape.tensors) - 1
        return Ref(number)

    def image(self, tensor: Tensor) -> Tensor:
        """The stand-in of a captured tensor, a copy; others are themselves."""
        if id(tensor) in self._numbers or is_functional(tensor):
            return tensor
        if id(tensor) not in self._images:
            if type(tensor) not in (Tensor, torch.nn.Parameter) or tensor.layout != torch.strided:
                raise StepError(f"it reads a {type(tensor).__name__}", at=where_asked())
            is_sample = id(tensor) in self._per_sample
            copy = plain_value(tensor)
            if is_sample:
                count = self.tape.batch // len(copy) + 1
                copy = copy.repeat(count, *[1] * (copy.dim() - 1))[: self.tape.batch]
            self._alive.append(tensor)
            self._images[id(tensor)] = copy
            number = self.enter(copy).number
            self.tape.captured[number] = tensor
            if is_sample:
                self.tape.per_sample.add(number)
        return self._images[id(tensor)]

    def captured(self, tensor: Any) -> bool:
        """Whether a tensor is one that the step closes over."""
        is_new = _is(tensor) and id(tensor) not in self._numbers
        return is_new and not is_functional(tensor)

    def is_value(self, tensor: Any) -> bool:
        """Whether a tensor depends on what the step is given, or closes over."""
        if not _is(tensor):
            return False
        return self._numbers.get(id(tensor)) not in self.tape.constants

    def refer(self, tensor: Tensor) -> Ref:
        """The reference of a tensor's present value.

        Raises:
            StepError: nothing recorded made it.
        """
        with no_function_modes(), no_modes():
            tensor = self.image(tensor)
        number = self._numbers.get(id(tensor))
        if number is None:
            raise StepError("a value comes from outside of torch's operations", at=where_asked())
        self._check_overlap(tensor)
        return Ref(number)

    def _check_overlap(self, tensor: Tensor) -> None:
        number = self._numbers[id(tensor)]
        for other in self._written.get(memory_of(tensor), ()):
            later = self._numbers[id(other)] > number
            if later and other is not tensor and _overlap(tensor, other):
                raise OverlapError

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        self.where = where_asked()
        leaves = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if _is(leaf)]
        if self._is_constant(func, leaves, args):
            results = func(*args, **kwargs)
            for leaf in pytree.tree_leaves(results):
                if _is(leaf):
                    self.tape.constants[self.enter(leaf).number] = leaf.clone()
            return results
        if "_local_scalar_dense" in str(func):
            raise StepError(_NO_NUMBER, at=self.where)
        args, kwargs = pytree.tree_map_only(Tensor, self._stand_in, (args, kwargs))
        name = name_of(func)
        if find(name) is None and (rewritten := decomposition(func)) is not None:
            with self:
                results = rewritten(*args, **kwargs)
            if results is not NotImplemented:
                return results
        given = pytree.tree_map_only(Tensor, self.refer, (args, kwargs))
        results = func(*args, **kwargs)
        self._note(func, given, args, kwargs, results)
        return results

    def _stand_in(self, tensor: Tensor) -> Tensor:
        """What an operation reads for a tensor: for a constant, which may be written to, a copy."""
        number = self._numbers.get(id(tensor))
        if number is None:
            return self.image(tensor)
        if number not in self.tape.constants:
            return tensor
        copy = tensor.detach().clone()
        self.tape.constants[self.enter(copy).number] = copy
        return copy

    def _is_constant(self, func: Any, leaves: list[Tensor], args: Any) -> bool:
        """Whether an operation is of numbers alone, and not of the batch: it runs as it is."""
        if is_random(func):
            return False
        if any(self._numbers.get(id(leaf)) not in self.tape.constants for leaf in leaves):
            return name_of(func).startswith("lift_fresh")
        sizes = [n for n in pytree.tree_leaves(args) if isinstance(n, int)]
        return not any(n and n % self.tape.batch == 0 for n in sizes)

    def _note(self, func: Any, refs: Any, given: Any, named: Any, results: Any) -> None:
        """Write an operation down.

        Args:
            refs: its arguments by position and name, as references.
            given, named: its arguments.
        """
        written: list[Tensor] = written_by(func, given, named)
        for tensor in written:
            others = self._written.setdefault(memory_of(tensor), [])
            others[:] = [other for other in others if other is not tensor] + [tensor]
        noted = {id(leaf): leaf for leaf in pytree.tree_leaves(results) if _is(leaf)}
        refs_of_results = {key: self.enter(tensor) for key, tensor in noted.items()}
        returned = pytree.tree_map_only(Tensor, lambda t: refs_of_results[id(t)], results)
        for tensor in written:
            if id(tensor) not in noted:
                raise StepError(f"{func} writes to a tensor that it does not return", at=self.where)
        stops = self._graded and not torch.is_grad_enabled()
        entry = Entry(func, refs[0], refs[1], returned, self.where, stops)
        self.tape.entries.append(entry)

    def own_gradient(self, function: Any, args: tuple[Any, ...]) -> Any:
        """Call a torch.autograd.Function: its forward, and its backward for a gradient of one."""
        context = _Context([_is(arg) and arg.is_floating_point() for arg in args])
        with torch.no_grad():
            if function.setup_context is not torch.autograd.Function.setup_context:
                value = function.forward(*args)
                function.setup_context(context, args, value)
            else:
                value = function.forward(context, *args)
        values = value if isinstance(value, tuple) else (value,)
        results = [
            self._with_slopes(function, context, args, values, at) for at in range(len(values))
        ]
        return tuple(results) if isinstance(value, tuple) else results[0]

    def _with_slopes(
        self, function: Any, context: _Context, args: Any, values: tuple[Any, ...], at: int
    ) -> Any:
        """One of the values of a torch.autograd.Function, with the slopes that its backward states:
        its gradients where that of this value is one."""
        output = values[at]
        if not _is(output) or not output.is_floating_point():
            return output
        ones = [
            torch.ones_like(other) if k == at else torch.zeros_like(other)
            for k, other in enumerate(values)
        ]
        slopes = function.backward(context, *ones)
        slopes = slopes if isinstance(slopes, tuple) else (slopes,)
        pairs = [
            (self.refer(self.image(arg)), self.refer(slope))
            for arg, slope in zip(args, slopes)
            if _is(arg) and _is(slope)
        ]
        with no_modes():
            result = output.clone()
        given = (self.refer(output), [a for a, _ in pairs], [s for _, s in pairs])
        entry = Entry(OWN_GRADIENT, given, {}, self.enter(result), where_asked(), False)
        self.tape.entries.append(entry)
        return result


class _Images(TorchFunctionMode):
    """Mode in which a captured tensor is its stand-in, from the outermost function on."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self._recorder = recorder

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        recorder, name = self._recorder, getattr(func, "__name__", "")
        if args and name in _READS:
            tensor = args[0]
            if recorder.captured(tensor) and tensor.numel() == 1 and name != "numpy":
                value = func(tensor)
                recorder.tape.read.append((tensor, value))
                return value
            if recorder.is_value(tensor):
                raise StepError(_NO_NUMBER, _CHOOSE, at=where_asked())
        if name == "__set__" and args and recorder.captured(args[0]):
            raise StepError("it changes a tensor that it closes over", at=where_asked())

        def image(tensor: Tensor) -> Tensor:
            with no_modes():
                return recorder.image(tensor)

        args, kwargs = pytree.tree_map_only(Tensor, image, (args, kwargs or {}))
        if name == "_is_all_true":  # a distribution checks its arguments
            return torch.tensor(True)
        if name == "one_hot":  # it reads numbers to check them
            return _one_hot(*args, **kwargs)
        return func(*args, **kwargs)


def _one_hot(places: Tensor, num_classes: int = -1) -> Tensor:
    """torch.nn.functional.one_hot of a known number of classes."""
    if num_classes < 1:
        raise StepError(_NO_NUMBER, "one_hot(v, num_classes=…)", at=where_asked())
    classes = torch.arange(num_classes, device=places.device)
    return (places.unsqueeze(-1) == classes).long()


class _Context(FunctionCtx):
    """What a torch.autograd.Function saves for its backward."""

    def __init__(self, needs: Sequence[bool]) -> None:
        self.needs_input_grad = tuple(needs)
        self.saved_tensors: tuple[Any, ...] = ()

    def save_for_backward(self, *tensors: Any) -> None:
        self.saved_tensors = tensors

    def mark_dirty(self, *tensors: Any) -> None:
        raise StepError("a torch.autograd.Function writes to its input", at=where_asked())

    def _ignored(self, *_: Any) -> None:
        """What changes no value and no slope."""

    save_for_forward = mark_non_differentiable = _ignored

    def set_materialize_grads(self, value: bool) -> None:
        """Every gradient is given."""


def _apply(function: Any, args: tuple[Any, ...], original: Callable[..., Any]) -> Any:
    """A call of a torch.autograd.Function while a step is recorded."""
    recorder = _current.get()
    return original(*args) if recorder is None else recorder.own_gradient(function, args)


def plain_value(tensor: Tensor) -> Tensor:
    """A copy of a tensor; of one that a transform of torch.func hides, another one like it."""
    return some_value(tensor, tensor.shape) if is_wrapped(tensor) else tensor.detach().clone()


def some_value(like: Tensor, shape: Sequence[int]) -> Tensor:
    """A tensor of a shape and of the kind of another one: random numbers, or whole ones of 0."""
    make = torch.rand if like.is_floating_point() else torch.zeros
    return make(shape, dtype=like.dtype, device=like.device)


def recording() -> bool:
    """Whether a step is being recorded: a loop inside of it is part of it."""
    return _current.get() is not None


def _overlap(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors of one storage have an element in common."""
    if a.stride() != b.stride() or a.shape != b.shape:
        return True
    dims = sorted(zip(a.stride(), a.shape, strict=True), reverse=True)
    return _meet(int(a.storage_offset()) - int(b.storage_offset()), dims)


def _meet(distance: int, dims: Sequence[tuple[int, int]]) -> bool:
    """Whether strides, each taken less than its size times in either direction, cover a
    distance."""
    if not dims:
        return distance == 0
    (stride, size), rest = dims[0], dims[1:]
    if stride == 0:
        return _meet(distance, rest)
    count = distance // stride
    return any(abs(n) < size and _meet(distance - n * stride, rest) for n in (count, count + 1))

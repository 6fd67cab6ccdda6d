"""Records a step by a dispatch mode, and by a function mode for the tensors it closes over."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx
from torch.overrides import TorchFunctionMode

from elman.errors import StepError
from elman.frontend.lines import where_asked
from elman.steps.operations.table import find
from elman.steps.recording.memory import overlap, plain_value
from elman.steps.recording.tape import (
    BATCHES,
    OWN_GRADIENT,
    Entry,
    Ref,
    Tape,
    is_random,
    written_by,
)
from elman.torch_internals import (
    TorchDispatchMode,
    decomposition,
    is_functional,
    memory_of,
    name_of,
    no_function_modes,
    no_modes,
    own_backwards,
    pytree,
)

_NO_NUMBER = "it reads a number from a tensor"
_CHOOSE = (
    "torch.where(condition, a, b) chooses for each sample; a number of the module is an attribute"
)
_READS = ("item", "__bool__", "__int__", "__float__", "__index__", "tolist", "numpy", "__array__")


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
            if later and other is not tensor and overlap(tensor, other):
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


def recording() -> bool:
    """Whether a step is being recorded: a loop inside of it is part of it."""
    return _current.get() is not None

"""What a step closes over: everything that its formula could depend on besides its arguments.

A step is walked through its closure, defaults, the globals that its code names, the attributes of
its modules and objects, and what these hold. Numbers, flags and functions are part of the formula:
a changed one means another formula. Tensors are arguments of it.
"""

from __future__ import annotations

import builtins
import contextvars
import dis
import functools
import operator
import os
import random
import sys
import sysconfig
import types
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from elman.errors import StepError

_PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.Size)
_PATHS = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
# modules whose functions give another number in each call
_OF_CHANCE = ("random", "secrets", "time", "datetime", "uuid")
_IN_C = (types.BuiltinFunctionType, types.MethodType)
_HOOKS = nn.modules.module
_NONE = object()  # in place of what is not there


class Walk:
    """One walk through what a step closes over.

    Args:
        step: to walk.
        batch: B; a plain tensor with so many rows may have one for each sample.

    Attributes:
        signature: all that the formula depends on, in the order of the walk.
        tensors: all tensors, each once.
        names: of them, as a user would write them.

    Raises:
        StepError: what the step does depends on what cannot be walked.
    """

    def __init__(self, step: Any, batch: int = 0) -> None:
        self._batch = batch
        self.signature: list[Any] = []
        self.tensors: list[Tensor] = []
        self.names: list[str] = []
        self.dicts: list[dict[Any, Any]] = [_HOOKS._global_forward_hooks]
        self.dicts += [_HOOKS._global_forward_pre_hooks]
        self.lists: list[list[Any]] = []
        self._classes: list[Mapping[str, Any]] = []
        self._known: set[type] = set()
        self._names_of: list[tuple[Mapping[str, Any], str]] = []  # values under names
        self._watched: list[Callable[[], Any]] = []  # values that have no dict or list
        self._copies: list[tuple[Callable[[], Any], Any]] = []  # compared by value
        self._held: list[Any] = []  # objects whose ids the signature has
        self._seen: dict[int, int] = {}
        self._watched += [torch.get_default_dtype, torch.is_grad_enabled]
        self._add(torch.get_default_dtype(), torch.is_grad_enabled())
        self._add(*map(id, chain(*[hooks.values() for hooks in self.dicts])))
        self._walk(step, "", frozenset())
        dicts = [d.values() for d in (*self.dicts, *self._classes)]  # views, of what is there now
        self._views: list[Iterable[Any]] = [*dicts, *self.lists]
        self._ids = self._present()

    def _present(self) -> list[int]:
        found = [*map(id, chain.from_iterable(self._views))]
        found += [id(names.get(name, _NONE)) for names, name in self._names_of]
        found += [id(look()) for look in self._watched]
        return found

    def unchanged(self) -> bool:
        """Whether every container holds the objects that it held."""
        return self._present() == self._ids and all(look() == value for look, value in self._copies)

    # ---- the walk

    def _add(self, *facts: Any) -> None:
        self.signature.extend(facts)

    def _walk(self, value: Any, name: str, names: frozenset[str]) -> None:
        """Walk a value.

        Args:
            name: of it, for messages.
            names: that the code reads which it was found in: attributes of modules are among them.
        """
        if isinstance(value, Tensor):
            self._tensor(value, name)
        elif isinstance(value, _PLAIN):
            self._add(type(value), repr(value) if isinstance(value, float | complex) else value)
        elif id(value) in self._seen:
            self._add("again", self._seen[id(value)])
        else:
            self._seen[id(value)] = len(self._seen)
            self._held.append(value)
            self._object(value, name, names)

    def _tensor(self, value: Tensor, name: str) -> None:
        number = self._seen.get(id(value))
        if number is None:
            number = self._seen[id(value)] = len(self._seen)
            self.tensors.append(value)
            self.names.append(name)
        shape = [*value.shape]
        if shape and shape[0] == self._batch and type(value) is Tensor:
            shape[0] = -1
        self._add("tensor", number, tuple(shape), value.dtype, value.device, type(value))

    def _object(self, value: Any, name: str, names: frozenset[str]) -> None:
        self._add(type(value))
        if isinstance(value, types.FunctionType):
            self._function(value, name)
        elif isinstance(value, types.MethodType):
            if isinstance(value.__self__, random.Random):
                raise _of_chance("random")
            self._walk(value.__func__, name, names)
            self._walk(value.__self__, name, names)
        elif isinstance(value, functools.partial):
            for part in (value.func, value.args, value.keywords):
                self._walk(part, name, names)
        elif isinstance(value, types.ModuleType):
            self._module_of_python(value, names)
        elif isinstance(value, nn.Module):
            self._module(value, name)
        elif isinstance(value, (tuple, list)):
            if isinstance(value, list):
                self.lists.append(value)
            self._add(len(value))
            for at, item in enumerate(value):
                self._walk(item, f"{name}_{at}", names)
        elif isinstance(value, (dict, types.MappingProxyType)):
            self._mapping(value, name, names)
        elif isinstance(value, (set, frozenset)):
            self._by_value(value.copy)
        elif isinstance(value, contextvars.ContextVar):
            self._watched.append(functools.partial(value.get, None))
            self._walk(value.get(None), name, names)
        elif type(value).__module__ == "numpy" and hasattr(value, "tobytes"):
            self._by_value(value.tobytes)
        elif isinstance(value, (deque, bytearray, array)):
            self._by_value(functools.partial(tuple, value))
        elif hasattr(type(value), "__next__"):
            raise StepError(f"it reads {type(value).__name__}, an iterator", "give it as an input")
        elif value is os.environ:
            self._by_value(os.environ.copy)
        else:
            self._plain(value, name)

    def _by_value(self, look: Callable[[], Any]) -> None:
        self._copies.append((look, look()))
        self._add(look())

    def _mapping(self, values: Mapping[Any, Any], name: str, names: frozenset[str]) -> None:
        if isinstance(values, dict):
            self.dicts.append(values)
        for key, item in values.items():
            self._add(key)
            self._walk(item, f"{name}_{key}" if name else str(key), names)

    def _plain(self, value: Any, name: str) -> None:
        """An object with attributes; of others, as functions in C, its identity alone."""
        if isinstance(value, _IN_C):  # of no other: a class's own __getattr__ may raise
            for owner in (value.__module__, type(getattr(value, "__self__", None)).__module__):
                if str(owner).partition(".")[0] in _OF_CHANCE:
                    raise _of_chance(str(owner))
        attributes = getattr(value, "__dict__", None)
        slots = [slot for kind in type(value).__mro__ for slot in _slots_of(kind)]
        if isinstance(value, type):
            self._add(id(value))
            self._class(value)
            return
        if callable(value) and _is_library(type(value).__module__):
            self._add(id(value))
            self._watch(value, "__wrapped__", name)  # of a cached function
            return
        if not (isinstance(attributes, dict) or slots) or _is_library(type(value).__module__):
            self._add(id(value))
        self._class(type(value))
        if isinstance(attributes, dict) and not isinstance(value, types.BuiltinFunctionType):
            self._mapping(attributes, name, frozenset())
        for slot in slots:
            self._watch(value, slot, f"{name}_{slot}")

    def _watch(self, value: Any, attribute: str, name: str) -> None:
        """An attribute that stands in no dict."""
        look = functools.partial(getattr, value, attribute, None)
        self._watched.append(look)
        self._walk(look(), name, frozenset())

    def _module(self, value: nn.Module, name: str) -> None:
        if value._backward_hooks or value._backward_pre_hooks:
            raise StepError(f"{type(value).__name__} has backward hooks", "its tensors can have")
        self._class(type(value))
        self._watch(type(value), "forward", name)
        self.dicts.append(value.__dict__)
        for key, item in value.__dict__.items():
            if key in ("_parameters", "_buffers", "_modules"):
                self._add(key)
                self._mapping(item, name, frozenset())
            elif isinstance(item, dict) and not item:
                self.dicts.append(item)
            elif key not in _WITHOUT_MEANING:
                self._add(key)
                self._walk(item, f"{name}_{key}" if name else key, frozenset())

    def _class(self, kind: type) -> None:
        """Functions and numbers of the classes that users write."""
        for base in kind.__mro__:
            if base in self._known or _is_library(base.__module__):
                continue
            self._known.add(base)
            self._classes.append(vars(base))
            for key, item in [*vars(base).items()]:
                if key in ("__dict__", "__weakref__", "__module__", "__doc__", "__slots__"):
                    continue
                self._add(key)
                if isinstance(item, (staticmethod, classmethod)):
                    item = item.__func__
                if isinstance(item, property):
                    item = item.fget
                if isinstance(item, (types.FunctionType, *_PLAIN, tuple, list, dict, Tensor)):
                    self._walk(item, key, frozenset())
                else:
                    self._add(id(item))
                    self._held.append(item)

    def _function(self, value: types.FunctionType, name: str) -> None:
        code = value.__code__
        self._add(code)
        if _is_library(value.__module__) and not value.__closure__:
            self._add(id(value))
            return
        self._watched.append(functools.partial(getattr, value, "__code__"))
        globals_read, names = _names_in(code)
        for cell, variable in zip(value.__closure__ or (), code.co_freevars):
            self._watched.append(functools.partial(_contents, cell))
            self._walk(_contents(cell), variable, names)
        for attribute in ("__defaults__", "__kwdefaults__", "__dict__"):
            self._watch(value, attribute, name)
        for variable in sorted(globals_read):
            self._named(value.__globals__, variable, names)

    def _module_of_python(self, module: types.ModuleType, names: frozenset[str]) -> None:
        """What code reads of a module: its attributes of the names in the code."""
        self._add(id(module))
        if module.__name__ in _OF_CHANCE or (module.__name__ == "numpy" and "random" in names):
            raise _of_chance(module.__name__)
        known = module is os and "environ" in names
        if not _is_library(module.__name__) or known:
            for name in sorted(names) if not known else ("environ",):
                self._named(vars(module), name, names)

    def _named(self, values: Mapping[str, Any], name: str, names: frozenset[str]) -> None:
        """A value under a name; one that is not there may come to be."""
        self._names_of.append((values, name))
        if name in values:
            self._add(name)
            self._walk(values[name], name, names)


_WITHOUT_MEANING = (
    *("_is_full_backward_hook", "_non_persistent_buffers_set", "_state_dict_hooks"),
    *("_state_dict_pre_hooks", "_load_state_dict_pre_hooks", "_load_state_dict_post_hooks"),
)


def _of_chance(module: str) -> StepError:
    return StepError(
        f"it reads the clock or random numbers of {module}", "give them as an input; torch.rand"
    )


def _contents(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not bound yet
        return None


def same_function(a: Any, b: Any) -> bool:
    """Whether two functions are one code that reads the same objects, as a function that is made
    in each call."""
    if not (type(a) is type(b) is types.FunctionType) or a.__code__ is not b.__code__:
        return False
    if a.__globals__ is not b.__globals__ or a.__dict__ or b.__dict__:
        return False
    mine, others = _captured_values(a), _captured_values(b)
    return len(mine) == len(others) and all(map(operator.is_, mine, others))


def _captured_values(function: types.FunctionType) -> list[Any]:
    """List the values of a function's closure and of its defaults."""
    named = function.__kwdefaults__ or {}
    cells = map(_contents, function.__closure__ or ())
    return [*cells, *(function.__defaults__ or ()), *chain.from_iterable(named.items())]


@functools.cache
def _slots_of(kind: type) -> tuple[str, ...]:
    """Attributes that a class of a user keeps in slots."""
    if _is_library(kind.__module__):
        return ()
    slots: Any = vars(kind).get("__slots__", ())
    slots = (slots,) if isinstance(slots, str) else slots
    return tuple([slot for slot in slots if not slot.startswith("__")])


@functools.cache
def _names_in(code: types.CodeType) -> tuple[frozenset[str], frozenset[str]]:
    """The globals that code reads, and all its names; with those of functions inside of it."""
    read = {
        i.argval for i in dis.get_instructions(code) if i.opname in ("LOAD_GLOBAL", "LOAD_NAME")
    }
    names = {*code.co_names}
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            inner = _names_in(constant)
            read |= inner[0]
            names |= inner[1]
    return frozenset(read), frozenset(names)


@functools.cache
def _is_library(module: str | None) -> bool:
    """Whether a module is installed, or Python's own: what it holds does not change."""
    top = (module or "").partition(".")[0]
    if top == "__main__":  # a file of Python's by `python -m cProfile`, with a script's globals
        return False
    if top in sys.builtin_module_names or top in ("torch", "elman", "numpy", builtins.__name__):
        return True
    file = getattr(sys.modules.get(top), "__file__", None) or ""
    return any(file.startswith(path) for path in _PATHS if path)


def restored(walk: Walk) -> Callable[[], dict[str, tuple[Any, Any]]]:
    """Take note of what containers hold.

    Returns:
        A function that puts it back, and returns of all that had changed what it was, and became.
    """
    dicts = [(d, dict(d)) for d in walk.dicts]
    lists = [(values, [*values]) for values in walk.lists]

    def restore() -> dict[str, tuple[Any, Any]]:
        changed: dict[str, tuple[Any, Any]] = {}
        for d, before in dicts:
            now = dict(d)
            for key in {*now, *before}:
                pair = before.get(key, _NONE), now.get(key, _NONE)
                if pair[0] is not pair[1]:
                    changed[str(key)] = pair
            if [*map(id, now.values())] != [*map(id, before.values())]:
                d.clear()
                d.update(before)
        for values, before in lists:
            if [*map(id, values)] != [*map(id, before)]:
                changed["a list"] = before, [*values]
                values[:] = before
        return changed

    return restore

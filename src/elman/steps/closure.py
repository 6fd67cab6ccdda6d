"""What a step closes over: everything that its formula could depend on besides its arguments.

A step is walked through its closure, defaults, the globals that its code names, the attributes of
its modules and objects, and what these hold. Numbers, flags and functions are part of the formula:
a changed one means another formula. Tensors are arguments of it.
"""

from __future__ import annotations

import functools
import sys
import sysconfig
import types
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

_ATOMS = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.Size)
_FUNCTIONS = (types.FunctionType,)
_PATHS = tuple(
    {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
)
_MOST = 20_000  # objects of one walk
_NAN = object()


class Walk:
    """One walk through what a step closes over.

    Attributes:
        signature: all that the formula depends on, in the order of the walk.
        tensors: all tensors, each once.
        names: of them, as a user would write them.
        held: objects whose identity the signature has, so that no other one takes it.
        dicts, cells: containers that have to hold the same objects for nothing to have changed.
    """

    def __init__(self, step: Any, batch: int = 0) -> None:
        self._batch = batch
        self.signature: list[Any] = [torch.get_default_dtype(), torch.is_grad_enabled()]
        self.tensors: list[Tensor] = []
        self.names: list[str] = []
        self.held: list[Any] = []
        self.dicts: list[Any] = []
        self.lists: list[Any] = []
        self.cells: list[Any] = []
        self.globals: list[tuple[dict[str, Any], str]] = []
        self.copies: list[Any] = []
        self._seen: dict[int, int] = {}
        self._walk(step, "")
        self._ids = self._present()

    # ---- has anything changed

    def _present(self) -> list[int]:
        values = [*map(id, chain.from_iterable([d.values() for d in self.dicts]))]
        values += map(id, chain.from_iterable(self.lists))
        values += [id(_contents(cell)) for cell in self.cells]
        values += [id(names.get(name)) for names, name in self.globals]
        return values

    def unchanged(self) -> bool:
        """Whether every container holds the objects that it held."""
        return (
            self._present() == self._ids
            and self.signature[1] is torch.is_grad_enabled()
            and self.signature[0] is torch.get_default_dtype()
            and all(_same_array(array, copy) for array, copy in self.copies)
        )

    # ---- the walk

    def _add(self, *facts: Any) -> None:
        self.signature.extend(facts)
        if len(self.signature) > _MOST:
            raise RecursionError

    def _walk(self, value: Any, name: str) -> None:
        if isinstance(value, Tensor):
            self._tensor(value, name)
        elif isinstance(value, _ATOMS):
            self._add(type(value), _NAN if value != value else value)
            self.held.append(value)
        else:
            number = self._seen.get(id(value))
            if number is not None:
                self._add("again", number)
                return
            self._seen[id(value)] = len(self._seen)
            self.held.append(value)
            self._object(value, name)

    def _tensor(self, value: Tensor, name: str) -> None:
        number = self._seen.get(id(value))
        if number is None:
            number = self._seen[id(value)] = len(self._seen)
            self.tensors.append(value)
            self.names.append(name)
        shape = [*value.shape]
        if shape and shape[0] == self._batch and type(value) is Tensor:
            shape[0] = -1  # maybe a row for each sample
        self._add("tensor", number, tuple(shape), value.dtype, value.device, type(value))

    def _object(self, value: Any, name: str) -> None:
        if isinstance(value, types.FunctionType):
            self._function(value, name)
        elif isinstance(value, types.MethodType):
            self._add("method")
            self._walk(value.__func__, name)
            self._walk(value.__self__, name)
        elif isinstance(value, functools.partial):
            self._add("partial")
            self._walk(value.func, name)
            self._items(value.args, name)
            self._mapping(value.keywords, name)
        elif isinstance(value, nn.Module):
            self._module(value, name)
        elif isinstance(value, (tuple, list)):
            self._add(type(value), len(value))
            if isinstance(value, list):
                self.lists.append(value)
            self._items(value, name)
        elif isinstance(value, (dict, OrderedDict, Mapping)):
            self._add(type(value))
            if isinstance(value, dict):
                self.dicts.append(value)
            self._mapping(value, name)
        elif isinstance(value, (set, frozenset)):
            self._add(type(value), len(value), frozenset(map(_key, value)))
        elif isinstance(value, (type, types.ModuleType, types.BuiltinFunctionType, Enum)):
            self._add(id(value))
            if isinstance(value, type):
                self._class(value)
        elif type(value).__module__ == "numpy" and hasattr(value, "tobytes"):
            if value.nbytes > 1_000_000:
                self._add(id(value))
            else:
                copy = value.copy()
                self._add("array", value.shape, str(value.dtype), value.tobytes())
                self.copies.append((value, copy))
        else:
            self._plain(value, name)

    def _items(self, values: Any, name: str) -> None:
        for at, item in enumerate(values):
            self._walk(item, f"{name}_{at}" if name else str(at))

    def _mapping(self, values: Mapping[Any, Any], name: str) -> None:
        for key, item in values.items():
            self._add(_key(key))
            self._walk(item, f"{name}_{key}" if name else str(key))

    def _plain(self, value: Any, name: str) -> None:
        """An object with attributes."""
        attributes = getattr(value, "__dict__", None)
        slots = [
            slot
            for kind in type(value).__mro__
            for slot in _slots(kind)
            if hasattr(value, slot) and not slot.startswith("__")
        ]
        if isinstance(attributes, dict):
            self._add(type(value))
            self._class(type(value))
            self.dicts.append(attributes)
            self._mapping(attributes, name)
        elif not slots:
            self._add(id(value))
        for slot in slots if type(value).__module__.partition(".")[0] != "torch" else ():
            self._add(slot)
            self._walk(getattr(value, slot), f"{name}_{slot}")

    def _module(self, value: nn.Module, name: str) -> None:
        self._add(type(value))
        self._class(type(value))
        attributes = value.__dict__
        self.dicts.append(attributes)
        for key, item in attributes.items():
            if key in ("_parameters", "_buffers", "_modules"):
                self.dicts.append(item)
                self._add(key)
                self._mapping(item, name)
            elif key not in _OF_NO_MEANING and not (
                item is None or (item == {} and _is_empty(item))
            ):
                self._add(key)
                self._walk(item, f"{name}_{key}" if name else key)
            elif isinstance(item, dict):
                self.dicts.append(item)

    def _class(self, kind: type) -> None:
        """Functions and numbers of the classes that users write."""
        for base in kind.__mro__:
            if id(base) in self._seen or _is_library(base.__module__):
                continue
            self._seen[id(base)] = len(self._seen)
            self.held.append(base)
            for key, item in [*vars(base).items()]:
                if key.startswith("__") and key not in ("__call__", "__getattr__"):
                    continue
                self.globals.append((_ClassDict(base), key))  # type: ignore[arg-type]
                self._add(key)
                if isinstance(item, (staticmethod, classmethod)):
                    item = item.__func__
                if isinstance(item, property):
                    item = item.fget
                if isinstance(item, (*_FUNCTIONS, *_ATOMS, tuple, list, dict, Tensor)):
                    self._walk(item, key)
                else:
                    self._add(id(item))
                    self.held.append(item)

    def _function(self, value: types.FunctionType, name: str) -> None:
        self._add("function", value.__code__)
        if _is_library(value.__module__) and not value.__closure__:
            self._add(id(value))
            return
        for cell, variable in zip(value.__closure__ or (), value.__code__.co_freevars):
            self.cells.append(cell)
            self._walk(_contents(cell), variable)
        if value.__defaults__:
            self._items(value.__defaults__, name)
        if value.__kwdefaults__:
            self.dicts.append(value.__kwdefaults__)
            self._mapping(value.__kwdefaults__, name)
        if value.__dict__:
            self._mapping(value.__dict__, name)
        names = {*_names_of(value.__code__)}
        for variable in sorted(names & value.__globals__.keys()):
            item = value.__globals__[variable]
            self.globals.append((value.__globals__, variable))
            self._add(variable)
            if isinstance(item, types.ModuleType):
                self._add(id(item))
                self.held.append(item)
                self._module_globals(item, names)
            else:
                self._walk(item, variable)

    def _module_globals(self, module: types.ModuleType, names: set[str]) -> None:
        """What code reads of a module of users': its attributes of the names in the code."""
        if _is_library(module.__name__):
            return
        values = vars(module)
        for name in sorted(names & values.keys()):
            self.globals.append((values, name))
            self._add(name)
            self._walk(values[name], name)


_OF_NO_MEANING = (
    "_is_full_backward_hook",
    "_non_persistent_buffers_set",
    "_state_dict_hooks",
    "_state_dict_pre_hooks",
    "_load_state_dict_pre_hooks",
    "_load_state_dict_post_hooks",
    "_forward_hooks_with_kwargs",
    "_backward_pre_hooks",
)


class _ClassDict:
    """The attributes of a class, looked up anew each time."""

    def __init__(self, kind: type) -> None:
        self._kind = kind

    def get(self, name: str) -> Any:
        return vars(self._kind).get(name)


def _is_empty(value: Any) -> bool:
    return isinstance(value, dict) and not value


def _contents(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not bound yet
        return None


def _slots(kind: type) -> tuple[str, ...]:
    slots: Any = vars(kind).get("__slots__", ())
    return (slots,) if isinstance(slots, str) else tuple(slots)


def _key(value: Any) -> Any:
    try:
        hash(value)
    except TypeError:
        return id(value)
    return value


def _names_of(code: types.CodeType) -> Iterator[str]:
    """Names of globals and attributes in a function and those inside of it."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names_of(constant)


@functools.cache
def _is_library(module: str | None) -> bool:
    """Whether a module is installed, or Python's own: what it holds does not change."""
    top = (module or "").partition(".")[0]
    if top in sys.builtin_module_names or top in ("torch", "elman", "numpy"):
        return True
    file = getattr(sys.modules.get(top), "__file__", None) or ""
    return any(file.startswith(path) for path in _PATHS if path)


def _same_array(array: Any, copy: Any) -> bool:
    return array.shape == copy.shape and array.tobytes() == copy.tobytes()


def restored(walk: Walk) -> Callable[[], list[str]]:
    """Take note of what containers hold; the function returned puts it back, and returns the names
    of what had changed."""
    dicts = [(d, dict(d)) for d in walk.dicts]
    lists = [(values, [*values]) for values in walk.lists]
    cells = [(cell, _contents(cell)) for cell in walk.cells]

    def restore() -> list[str]:
        changed: list[str] = []
        for d, before in dicts:
            if len(d) != len(before) or any(d.get(k, _NAN) is not v for k, v in before.items()):
                keys = {*d, *before}
                changed += [str(k) for k in keys if d.get(k, _NAN) is not before.get(k, _NAN)]
                for key in [key for key in d if key not in before]:
                    del d[key]
                d.update(before)
        for values, before in lists:
            if len(values) != len(before) or any(a is not b for a, b in zip(values, before)):
                changed.append("a list")
                values[:] = before
        for cell, before in cells:
            if _contents(cell) is not before:
                changed.append("a variable")
                cell.cell_contents = before
        return changed

    return restore

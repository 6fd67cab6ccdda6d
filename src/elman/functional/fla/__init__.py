"""Layers and models of flash-linear-attention on a CPU, without Triton.

The functions of the package ``fla`` that start kernels of Triton are replaced by elman's and by
torch's, in all of its modules, also in those that are imported later:

    >>> elman.functional.fla.install()  # before `import fla`, or after it
    >>> elman.functional.fla.uninstall()

Where Triton is not installed, ``fla`` alone sees one whose kernels cannot be started. Without a
GPU, a function that is not replaced raises EngineError when it starts a kernel, with its name.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable, Iterator
from types import FunctionType, MethodType, ModuleType
from typing import Any

from elman.errors import InputError, ShapeError
from elman.functional.fla import parts, rules
from elman.functional.fla.loading import PACKAGE, Finder, Kernel, kernels

__all__ = ["install", "replaced", "uninstall"]

FUNCTIONS = rules.FUNCTIONS | parts.FUNCTIONS
_KINDS = inspect.Parameter
_calls: dict[Any, Callable[..., Any]] = {}  # what is in the place of each function of fla
_kept: list[tuple[Any, str, Any]] = []  # what was there: owner, name, value


def install() -> None:
    """Make flash-linear-attention (0.6) run on a CPU: GLA, simple GLA, RetNet, lightning and linear
    attention, DeltaNet, gated DeltaNet and DeltaProduct, KDA, RWKV-6 and 7, HGRN and HGRN-2,
    Mamba-2, with gradients, caches and sequences behind one another.

    Functions are replaced by name, for the whole process; parameters, caches and results stay. An
    option that a replacement does not know is refused with an InputError that names the function.

    Example:
        >>> elman.functional.fla.install()
        >>> elman.functional.fla.uninstall()
    """
    if _FINDER not in sys.meta_path:
        sys.meta_path.insert(0, _FINDER)
    package = sys.modules.get(PACKAGE)
    for module in _modules():
        replace(module)
    if package is not None and not hasattr(package, "layers"):
        importlib.reload(package)  # it went without its layers, whose import had failed


def uninstall() -> None:
    """Undo :func:`install`. Modules that were imported without Triton stay without kernels.

    Example:
        >>> elman.functional.fla.uninstall()
    """
    if _FINDER in sys.meta_path:
        sys.meta_path.remove(_FINDER)
    for owner, name, value in reversed(_kept):
        _set(owner, name, value)
    _kept.clear()


def replaced() -> list[str]:
    """The functions in whose place ours are, with their modules.

    Example:
        >>> elman.functional.fla.replaced()
        []
    """
    modules = [(owner, name) for owner, name, _ in _kept if isinstance(owner, ModuleType)]
    names = [(owner, name) for owner, name in modules if not isinstance(vars(owner)[name], Kernel)]
    return sorted(f"{owner.__name__}.{name}" for owner, name in names)


def original(owner: str, name: str) -> Any:
    """The function of fla that was replaced in a module or a class.

    Raises:
        InputError: none was.
    """
    for each, key, value in _kept:
        if key == name and getattr(each, "__name__", "") == owner:
            return value
    raise InputError(f"nothing is in the place of {owner}.{name}")


def replace(module: ModuleType) -> None:
    """Put ours into the place of what a module of fla has, in its dicts and classes, too."""
    for name, kernel in kernels(module):
        _put(module, name, kernel)
    for name, value in [*vars(module).items()]:
        if name in FUNCTIONS and _is_of_fla(value) and value not in _calls:
            _calls[value] = _in_place_of(value, name, FUNCTIONS[name])
    for name, value in [*vars(module).items()]:
        if isinstance(value, FunctionType | MethodType) and value in _calls:
            _put(module, name, _calls[value])
        elif isinstance(value, type) and name in parts.METHODS and _is_of_fla(value):
            method, function = parts.METHODS[name]
            if vars(value).get(method, function) is not function:
                _put(value, method, function)
        elif type(value) is dict and name != "__builtins__":
            for key, inner in [*value.items()]:
                if isinstance(inner, FunctionType | MethodType) and inner in _calls:
                    _put(value, key, _calls[inner])


_FINDER = Finder(replace)


def _modules() -> Iterator[ModuleType]:
    for name, module in [*sys.modules.items()]:
        if name.partition(".")[0] == PACKAGE and isinstance(module, ModuleType):
            yield module


def _is_of_fla(value: Any) -> bool:
    """Whether it is a function, a method of a class or a class of the package."""
    owner = getattr(value, "__self__", value)
    kinds = FunctionType, MethodType, type
    return isinstance(value, kinds) and str(owner.__module__).partition(".")[0] == PACKAGE


def _in_place_of(
    original: Callable[..., Any], name: str, function: Callable[..., Any]
) -> Callable[..., Any]:
    """A function with the call of fla's, whose arguments get names and defaults there."""
    signature = inspect.signature(original)
    parameters = signature.parameters.values()
    plain = any(p.kind is _KINDS.VAR_POSITIONAL for p in parameters)
    names = [p.name for p in parameters if p.kind is _KINDS.POSITIONAL_OR_KEYWORD]
    defaults = {p.name: p.default for p in parameters if p.default is not _KINDS.empty}

    def call(*given: Any, **options: Any) -> Any:
        try:
            if plain:
                return function(*given, **options)
            if len(given) > len(names) or not options.keys().isdisjoint(names[: len(given)]):
                signature.bind(*given, **options)  # raises TypeError
            return function(**{**defaults, **dict(zip(names, given)), **options})
        except (InputError, ShapeError) as error:
            raise type(error)(f"{name} of fla, run by elman: {error}") from error

    call.__name__ = call.__qualname__ = name
    call.__wrapped__ = original  # type: ignore[attr-defined]  # by which fla registers more
    return call


def _put(owner: Any, name: str, value: Any) -> None:
    before = owner[name] if isinstance(owner, dict) else vars(owner)[name]
    _kept.append((owner, name, before))
    _set(owner, name, value)


def _set(owner: Any, name: str, value: Any) -> None:
    if isinstance(owner, dict):
        owner[name] = value
    else:
        setattr(owner, name, value)

"""Import of modules of flash-linear-attention where nothing runs Triton's kernels."""

from __future__ import annotations

import builtins
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType, SimpleNamespace
from typing import Any, NoReturn

import torch

from elman.errors import EngineError

PACKAGE = "fla"
_VERSION = "3.3.0"  # of Triton: the least that fla accepts


class Finder(MetaPathFinder):
    """Finds the package's modules as others do, and has a function called with each that has
    run."""

    def __init__(self, function: Callable[[ModuleType], None]) -> None:
        self._function = function

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The spec of the next finder that has one, with a loader that does more."""
        if fullname.partition(".")[0] != PACKAGE:
            return None
        others = (finder for finder in sys.meta_path if finder is not self)
        specs = (finder.find_spec(fullname, path, target) for finder in others)
        spec = next((spec for spec in specs if spec is not None), None)
        if spec is not None and spec.loader is not None:
            loader: Any = spec.loader
            loader.exec_module = partial(self._run, loader.exec_module)
        return spec

    def _run(self, execute: Callable[[ModuleType], None], module: ModuleType) -> None:
        if sys.modules.get("triton") is None and find_spec("triton") is None:
            # Seen by this module alone: torch and transformers ask whether there is a Triton.
            vars(module)["__builtins__"] = {**vars(builtins), "__import__": _import}
        execute(module)
        self._function(module)


def _import(
    name: str,
    globals: Mapping[str, object] | None = None,
    locals: Mapping[str, object] | None = None,
    fromlist: Sequence[str] | None = (),
    level: int = 0,
) -> Any:
    """``__import__`` in modules of the package."""
    first, *rest = name.split(".")
    if level or first != "triton":
        return builtins.__import__(name, globals, locals, fromlist or (), level)
    if rest[:1] == ["experimental"]:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)
    found = _TRITON
    for part in rest if fromlist else ():
        found = getattr(found, part)
    return found


class _Absent:
    """A name of Triton's, which has any other name and does nothing."""

    def __init__(self, name: str) -> None:
        self.__name__ = name

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Absent(f"{self.__name__}.{name}")

    def __call__(self, *given: Any, **options: Any) -> Any:
        _refuse(self.__name__)


class Kernel(_Absent):
    """A kernel that says why it is not started."""

    def __init__(self, function: Any, *given: Any, **options: Any) -> None:
        super().__init__(function.__name__)

    def __getitem__(self, grid: Any) -> Any:
        _refuse(self.__name__)


def kernels(module: ModuleType) -> Iterator[tuple[str, Kernel]]:
    """Names of Triton's kernels in a module, and what to put there without a GPU."""
    if torch.cuda.is_available() or torch.xpu.is_available():
        return
    for name, value in [*vars(module).items()]:
        if type(value).__module__.partition(".")[0] == "triton" and hasattr(value, "run"):
            yield name, Kernel(SimpleNamespace(__name__=name))


def _refuse(what: str) -> NoReturn:
    """Raise EngineError with the function of the package that was called."""
    caller, frame = "", inspect.currentframe()
    while frame:
        place = str(frame.f_globals.get("__name__"))
        if place.startswith((f"{PACKAGE}.ops", f"{PACKAGE}.modules")):
            if frame.f_code.co_name in frame.f_globals:
                caller = f"{place}.{frame.f_code.co_name}"
        frame = frame.f_back
    raise EngineError(
        f"{caller or what} needs Triton and a GPU: elman.functional.fla has nothing in its place",
        kernel=what,
    )


def _decorate(function: Any = None, **options: Any) -> Any:
    return Kernel if function is None else Kernel(function)


def _leave(*given: Any, **options: Any) -> Callable[[Any], Any]:
    return lambda kernel: kernel


def _config(*given: Any, **options: Any) -> SimpleNamespace:
    return SimpleNamespace(**options)


def _make_triton() -> Any:
    """A stand-in for Triton, with the names that modules of the package use while they are
    imported."""
    root, language = _Absent("triton"), _Absent("triton.language")
    vars(language)["constexpr"] = lambda value: value
    target = SimpleNamespace(backend="cpu", arch="")
    driver = SimpleNamespace(active=SimpleNamespace(get_current_target=lambda: target))
    autotuner = SimpleNamespace(Autotuner=Kernel, autotune=_leave)
    vars(root).update(
        __version__=_VERSION,
        language=language,
        runtime=SimpleNamespace(driver=driver, autotuner=autotuner),
        jit=_decorate,
        autotune=_leave,
        heuristics=_leave,
        Config=_config,
        cdiv=lambda x, y: (x + y - 1) // y,
        next_power_of_2=lambda n: 1 << (n - 1).bit_length(),
    )
    return root


_TRITON = _make_triton()

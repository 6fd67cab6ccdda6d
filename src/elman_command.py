"""Entry point of the command `elman`: what has to be set before torch and elman are imported, and
`elman run`, whose program imports both.

While they are imported, Ctrl-C ends the command at once: an exception could be lost in what is
being imported. What torch would log comes as an error of the command.
"""

from __future__ import annotations

import atexit
import importlib
import importlib.util
import io
import os
import signal
import sys
from collections.abc import Callable, Sequence
from importlib.abc import InspectLoader, Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from types import CodeType, FrameType, ModuleType
from typing import Any, NoReturn, cast


def end_at_once(number: int, frame: FrameType | None) -> NoReturn:
    """End this process, which has nothing to lose yet."""
    os.write(2, b"interrupted\n")
    os._exit(128 + number)


def main() -> None:
    """Run the command line."""
    if sys.argv[1:2] == ["run"] and names_program(sys.argv[2:]):
        run_program(sys.argv[2:])
        return
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, end_at_once)
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "FATAL")  # read when torch is imported
    from elman.errors import MissingPackageError
    from elman.extras import require

    try:
        for package in ("rich", "typer"):
            require(package, "the command elman")
    except MissingPackageError as error:
        sys.exit(str(error))
    from elman.cli.app import main as run

    run()


# ---- elman run


def names_program(words: Sequence[str]) -> bool:
    """Whether arguments of `elman run` begin with a program, or with -m and a module."""
    return bool(words) and (not words[0].startswith("-") or (words[0] == "-m" and len(words) > 1))


def run_program(words: Sequence[str]) -> None:
    """Run a program as `python` does, with :func:`elman.install` as soon as it imports torch.

    Args:
        words: the program's path, or -m and a module's name; then its own arguments.
    """
    program = sys.modules["__main__"] = ModuleType("__main__")
    once_imported("torch", lambda _: importlib.import_module("elman").install())
    try:
        code = _of_module(words[1:], program) if words[0] == "-m" else _of_file(words, program)
        atexit.register(_tell, os.getpid())  # first, so that it is called last
        exec(code, vars(program))
    except SystemExit:
        raise
    except BaseException as error:
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
            trace = trace.tb_next
        sys.excepthook(type(error), error.with_traceback(trace), trace)
        sys.exit(128 + signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1)


def _of_file(words: Sequence[str], program: ModuleType) -> CodeType:
    path = os.path.abspath(words[0])
    try:
        with io.open_code(path) as file:
            text = file.read()
    except OSError as error:
        sys.stderr.write(f"elman run: can't open the program: {error}\n")
        sys.exit(2)
    _begin(words, os.path.dirname(os.path.realpath(path)))
    vars(program).update(__file__=path, __loader__=SourceFileLoader("__main__", path))
    return compile(text, path, "exec", dont_inherit=True)


def _of_module(words: Sequence[str], program: ModuleType) -> CodeType:
    _begin(["-m", *words[1:]], os.getcwd())
    try:
        spec = importlib.util.find_spec(words[0])
        if spec is not None and spec.submodule_search_locations is not None:
            spec = importlib.util.find_spec(f"{words[0]}.__main__")
    except ModuleNotFoundError:
        spec = None
    code = None if spec is None else cast(InspectLoader, spec.loader).get_code(spec.name)
    if spec is None or code is None:
        sys.exit(f"elman run: no module to run is named {words[0]}")
    sys.argv[0] = str(spec.origin)
    vars(program).update(
        __file__=spec.origin, __loader__=spec.loader, __package__=spec.parent, __spec__=spec
    )
    return code


def _begin(words: Sequence[str], folder: str) -> None:
    """Set what a program sees of the command line."""
    sys.argv[:] = words
    if not sys.flags.safe_path:
        sys.path[0] = folder


def _tell(process: int) -> None:
    """Say at the end of this process, not of its forks, what ran."""
    programs = sys.modules.get("elman.programs")
    if os.getpid() == process:
        lines = ["the program did not import torch"] if programs is None else programs.summary()
        sys.stderr.writelines(f"elman: {line}\n" for line in lines)


# ---- what is done when a module is imported


def once_imported(name: str, function: Callable[[ModuleType], Any]) -> None:
    """Call a function with a module: now, or when somebody imports it."""
    if name in sys.modules:
        function(sys.modules[name])
    else:
        sys.meta_path.insert(0, _Finder(name, function))


class _Finder(MetaPathFinder):
    """Finds one module until it is imported, and has a function called after it has run."""

    def __init__(self, name: str, function: Callable[[ModuleType], Any]) -> None:
        self._name, self._function, self._asking = name, function, False

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The usual spec, with a loader that does more. Who asks may only ask, and not import."""
        if fullname != self._name or self._asking:
            return None
        self._asking = True
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self._asking = False
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, self._imported)
        return spec

    def _imported(self, module: ModuleType) -> None:
        if self in sys.meta_path:
            sys.meta_path.remove(self)
            self._function(module)


class _Loader(Loader):
    """Another loader, and what comes after it."""

    def __init__(self, loader: Any, function: Callable[[ModuleType], Any]) -> None:
        self._loader, self._function = loader, function

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """As the other one."""
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """As the other one, which the module keeps; then the function is called."""
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        self._function(module)


if __name__ == "__main__":
    main()

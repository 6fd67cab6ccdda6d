"""A cell by name: of the library, or of a Python file of the user's, which is run once."""

from __future__ import annotations

import hashlib
import importlib.util
import linecache
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from traceback import extract_tb
from types import ModuleType
from typing import Any

from elman import cells, ops
from elman.checks import check_text
from elman.errors import ElmanError, InputError, RunError, diagnostic
from elman.frontend.cell import Cell
from elman.frontend.lines import line_of

_MODULE = "torch.nn.modules.module"  # where the class of step modules is
_DECORATE = "decorate the formula: @elman.cell(input=…, state=…, weights=…)"
_registered: dict[str, ModuleType] = {}  # of users' files, by name


def find_sequence_cell(cell: str | Cell, static: bool = False) -> Cell:
    """Find a cell that reads one input of any size, with `static` perhaps one static input of any
    size, too, and whose first output is a vector, as the layers of a run do. Raises InputError: the
    library has no such cell, or it reads or returns something else; RunError: as
    :func:`find_cell`."""
    cell = cell if isinstance(cell, Cell) else find_cell(check_text("cell", cell, '"gru"'))
    reads = [*cell.inputs, *cell.static]
    shapes = [entry.shape for entry in reads]
    vectors = [shape[0][0] for shape in shapes if [len(dim) for dim in shape] == [1]]
    dims = [dim for dim in vectors if isinstance(dim, str)]
    most = 1 + (static and len(cell.static) == 1)
    if len(cell.inputs) != 1 or not len({*dims}) == len(reads) <= most:
        names = ", ".join(map(str, reads)) or "nothing"
        title = f"{cell.name} reads {names}, not one input of any size"
        hint = "a script with elman.Recurrent, which hands each step what the cell reads"
        raise InputError(title, hint)
    first = (*cell.outputs, *cell.states)[0]
    if not first.shape or isinstance(first.shape[0][0], tuple):  # of rows and columns
        title = f"the first output of {cell.name} is {first}, not a vector"
        raise InputError(title, "return a vector first, which the next layer or a read-out reads")
    return cell


def find_cell(name: str) -> Cell:
    """Find a cell: a name of elman.cells, or file.py:cell of the user's.

    As :func:`find_formula`, where a step module is none.
    """
    value = find_formula(name)
    if not isinstance(value, Cell):
        _, _, attribute = name.rpartition(":")
        raise RunError(f"{attribute!r} in the file is not a cell", _DECORATE, value=repr(value))
    return value


def find_formula(name: str) -> Any:
    """Find a cell: a name of elman.cells, or file.py:cell of the user's; or a step module, or a
    class of such, of the file.

    As when Python runs the file, its folder comes first on the path, so that it can import its
    neighbours; only while it runs.

    Raises:
        InputError: if the library has no such cell.
        RunError: if the file does not exist, does not run, or has no such cell.
    """
    if ":" not in name:
        library_cells = {cell.name: cell for cell in cells.ALL}
        if name not in library_cells:
            if Path(name).expanduser().is_file():
                raise RunError(_cells_hint(Path(name).expanduser(), "which cell of the file?"))
            near = get_close_matches(name, library_cells, 4) or ["gru", "lstm"]
            raise InputError(
                f"no cell is called {name!r}",
                f"{', '.join(near)}, or my_file.py:my_cell for a cell of your own; "
                f"elman.cells.ALL has all {len(library_cells)}",
            )
        return library_cells[name]
    path, _, attribute = name.rpartition(":")
    file = Path(path).expanduser()
    if not file.is_file():
        raise RunError("the file of the cell does not exist", path=file)
    value = getattr(_run_file(file), attribute, None)
    if value is None:
        raise RunError(_cells_hint(file, f"the file has no cell {attribute!r}", attribute))
    kind = value if isinstance(value, type) else type(value)
    if not (isinstance(value, Cell) or any(base.__module__ == _MODULE for base in kind.__mro__)):
        raise RunError(
            f"{attribute!r} in the file is not a cell", _DECORATE, path=file, value=repr(value)
        )
    return value


def _cells_hint(file: Path, title: str, attempt: str = "") -> str:
    """Hint for a file without the name of a cell: the cells in it."""
    names = [name for name, value in vars(_run_file(file)).items() if isinstance(value, Cell)]
    details = [("path", str(file))]
    if not names:
        return diagnostic(title, details, _DECORATE)
    near = get_close_matches(attempt, names, 1) or names
    return diagnostic(title, [*details, ("cells", ", ".join(names))], f"{file}:{near[0]}")


def _run_file(file: Path) -> ModuleType:
    """The module of a user's file, run once as long as the file stays as it is."""
    facts = file.stat()
    return _module_of(file, file.resolve(), facts.st_mtime_ns, facts.st_size)


@cache
def _module_of(file: Path, resolved: Path, changed_ns: int, size: int) -> ModuleType:
    """Run a user's file, its folder first on the path; ``changed_ns`` and ``size`` tell its text
    from others."""
    name = _module_name(resolved)
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise RunError("the file of the cell is not a Python file", path=file)
    module = importlib.util.module_from_spec(spec)
    try:
        with _importable(module, str(resolved.parent)):
            spec.loader.exec_module(module)
    except ElmanError:
        raise
    except (Exception, SystemExit) as error:
        linecache.checkcache(str(file))
        text = f"{type(error).__name__}: {error}"
        title = "the file of the cell does not run"
        raise RunError(
            title, _import_of(error), path=file, at=_error_place(file, error), error=text
        ) from error
    return module


def _module_name(resolved: Path) -> str:
    """The name of a file's module: the file's own, unless another module has that one."""
    name = resolved.stem
    if name.isidentifier():
        module = sys.modules.get(name)
        spec = importlib.util.find_spec(name) if module is None else None
        file = getattr(module, "__file__", None) if spec is None else spec.origin
        if (module is None and spec is None) or (file and Path(file).resolve() == resolved):
            return name
    mark = hashlib.sha256(str(resolved).encode(errors="surrogateescape")).hexdigest()[:8]
    return f"{name}_{mark}"


@contextmanager
def _importable(module: ModuleType, folder: str) -> Iterator[None]:
    """Inside, a module imports its neighbours, and is there for who looks it up by name: later
    too, if it has run. A module that the user has imported is not replaced."""
    name = module.__name__
    before = sys.modules.get(name)
    if before is None or before is _registered.get(name):
        sys.modules[name] = _registered[name] = module
    sys.path.insert(0, folder)
    try:
        yield
    except BaseException:
        if sys.modules.get(name) is module:
            del sys.modules[name], _registered[name]
        raise
    finally:
        if folder in sys.path:  # which the file may have changed
            sys.path.remove(folder)


def _error_place(file: Path, error: BaseException) -> str:
    """The innermost line of a file that an error came through; empty if there is none."""
    if isinstance(error, SyntaxError):
        return line_of(error.filename or "", error.lineno or 0)
    frames = [frame for frame in extract_tb(error.__traceback__) if Path(frame.filename) == file]
    return line_of(frames[-1].filename, frames[-1].lineno or 0) if frames else ""


def _import_of(error: BaseException) -> str:
    """The import that would be right where an operation was looked for in elman itself."""
    if not isinstance(error, ImportError) or error.name != "elman":
        return ""
    name = re.search(r"name '(\w+)'", str(error))
    return f"from elman.ops import {name[1]}" if name and hasattr(ops, name[1]) else ""

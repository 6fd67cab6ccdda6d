"""Exceptions of elman. Each message says what is wrong, where, with which operands, and a remedy.

ElmanError
├── TraceError            a cell does something a formula cannot (if, print, a torch call …)
├── ShapeError            shapes that do not fit (also a ValueError)
├── StepError             a step in torch's operations is no formula (a branch on a number …)
├── InputError            tensors, sizes or options that do not fit a module (also a ValueError)
├── VerifyError           an invariant of elman's own graphs is broken: a bug of ours
├── EngineError           an engine asked for by name cannot run this plan; the text says why
│   ├── BuildError        the C compiler is missing or failed
│   ├── InternalError     an engine failed while it planned or made a kernel: a bug of ours
│   └── DisagreementError a kernel does not compute what the oracle does: a bug of ours
├── PickleError           a cell cannot be saved by name, or is not the one that was saved
├── RunError              a run folder, a checkpoint or a data file that cannot be used
└── MissingPackageError   a package is not installed that an extra brings (also an ImportError)
"""

from __future__ import annotations

import inspect
import pickle
import warnings
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from contextvars import ContextVar


class ElmanError(Exception):
    """Base of all errors raised by elman.

    Args:
        message: the mistake with its values, one line.
        hint: a corrected line; omitted if empty.
        details: rows below it, such as ``at="my_cell.py:12: z = W @ x"``; empty ones are omitted.
    """

    def __init__(self, message: str = "", hint: str = "", **details: object) -> None:
        rows = [(label, str(value)) for label, value in details.items()]
        super().__init__(diagnostic(message, rows, hint))


class TraceError(ElmanError):
    """A cell does something that is not a formula of its arguments."""


class StepError(ElmanError):
    """A step in torch's operations cannot be read as a formula; the text names the operation."""


class StepWarning(UserWarning):
    """A step runs as a plain loop, since it cannot be read as a formula."""


class ShapeError(ElmanError, ValueError):
    """Shapes of a cell's values, or of tensors given to a module, do not fit."""


class InputError(ElmanError, ValueError):
    """A tensor, a size or an option does not fit the module it was given to."""


class VerifyError(ElmanError):
    """An invariant of a graph or a program is broken: a bug in elman, not in the cell."""


class EngineError(ElmanError, RuntimeError):
    """The named engine cannot run a layer; the text gives its reason."""


class BuildError(EngineError):
    """No C compiler was found, or it refused the generated text."""


class InternalError(EngineError):
    """An engine failed while it planned or made a kernel: a bug in elman, not in the cell."""


class DisagreementError(EngineError):
    """A kernel does not compute what the oracle computes: a bug in elman, not in the cell.

    Args:
        engine: the engine and its schedule.
        cell: its name.
        off: which result is off, and by how much.
    """

    def __init__(self, engine: str, cell: str, off: str) -> None:
        self.reason = f"does not agree with the reference: {off}"
        super().__init__(f"engine {engine} cannot run {cell}: it {self.reason}")


class PickleError(ElmanError, pickle.PickleError):
    """A cell cannot be saved by its name, or its name stands for another formula than when it was
    saved."""


class RunError(ElmanError):
    """A run folder, a checkpoint or a data file cannot be used."""


class MissingPackageError(ElmanError, ImportError):
    """A package that an extra of elman brings is not installed; the text names the extra.

    Args:
        message: the text.
        name: of the module, as of any ImportError.
    """

    def __init__(self, message: str = "", name: str | None = None) -> None:
        super().__init__(message)
        self.name = name


def diagnostic(message: str, details: Iterable[tuple[str, str]], hint: str = "") -> str:
    """Build a message: what happened, then one row per detail, then a hint to paste.

    Args:
        message: the mistake with its values, one line.
        details: (label, text) rows such as ``("at", "my_cell.py:12: z = W @ x")``.
        hint: a corrected line; omitted if empty.
    """
    rows = [(label, text) for label, text in details if text]
    if hint:
        rows.append(("hint", hint))
    return "\n".join([message, *(f"  {label:<5} {text}" for label, text in rows)])


_on_command_line: ContextVar[bool] = ContextVar("on_command_line", default=False)


@contextmanager
def on_command_line() -> Generator[None]:
    """Inside, messages say what to type on the command line, not what to write in Python."""
    before = _on_command_line.set(True)
    try:
        yield
    finally:
        _on_command_line.reset(before)


def spelled(python: str, command: str) -> str:
    """Return the hint for Python, or for the command line if elman runs as a command."""
    return command if _on_command_line.get() else python


def sized_by(names: Iterable[str]) -> str:
    """Describe how the sizes of dims are given: ``by keyword, e.g. P=…``, or ``with --dim P=…``."""
    options = [f"{name}=…" for name in names]
    return spelled(f"by keyword, e.g. {', '.join(options)}", f"with --dim {','.join(options)}")


_warned: set[str] = set()
_PACKAGES = ("elman", "torch", "functools")  # between a warning and the user's line


def warn_once(text: str, key: str = "") -> None:
    """Warn at the user's line, but never twice in one process about the same thing.

    Args:
        text: of the warning.
        key: what it is about; the text itself if omitted.
    """
    if (key or text) in _warned:
        return
    _warned.add(key or text)
    warn(text)


def warn(text: str, category: type[Warning] = UserWarning) -> None:
    """Warn at the user's line."""
    level, frame = 1, inspect.currentframe()
    while frame and str(frame.f_globals.get("__name__")).partition(".")[0] in _PACKAGES:
        level, frame = level + 1, frame.f_back
    warnings.warn(text, category, stacklevel=level)


@contextmanager
def quiet_warnings() -> Generator[None]:
    """Inside, no warning is shown; what was not shown is said the next time."""
    before = set(_warned)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            yield
        finally:
            _warned.intersection_update(before)

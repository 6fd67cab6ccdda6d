"""What elman raises. Every message says what happened, where, with which operands, and a way out.

ElmanError
├── TraceError            a cell does something a formula cannot (if, print, a torch call …)
├── ShapeError            shapes that do not fit (also a ValueError)
├── InputError            tensors, sizes or options that do not fit a module (also a ValueError)
├── VerifyError           an invariant of elman's own graphs is broken: a bug of ours
├── EngineError           an engine asked for by name cannot run this plan; the text says why
│   └── BuildError        the C compiler is missing or failed
└── RunError              a run folder, a checkpoint or a data file that cannot be used
"""

from __future__ import annotations

from collections.abc import Iterable


class ElmanError(Exception):
    """Base of all errors raised by elman."""


class TraceError(ElmanError):
    """A cell does something that is no formula over its arguments."""


class ShapeError(ElmanError, ValueError):
    """Shapes of a cell's values, or of tensors given to a module, do not fit."""


class InputError(ElmanError, ValueError):
    """A tensor, a size or an option does not fit the module it was given to."""


class VerifyError(ElmanError):
    """An invariant of a graph or a program is broken: a bug in elman, not in the cell."""


class EngineError(ElmanError, RuntimeError):
    """An engine asked for by name cannot run a plan; the text is its own reason."""


class BuildError(EngineError):
    """No C compiler was found, or it refused the generated text."""


class RunError(ElmanError):
    """A run folder, a checkpoint or a data file cannot be used."""


def rows(what: str, details: Iterable[tuple[str, str]], hint: str = "") -> str:
    """Build a message: what happened, then one row per detail, then a hint to paste.

    Args:
        what: the mistake with its values, one line.
        details: (label, text) rows such as ``("at", "my_cell.py:12: z = W @ x")``.
        hint: a line that would be right; left out if empty.
    """
    found = [(label, text) for label, text in details if text]
    if hint:
        found.append(("hint", hint))
    return "\n".join([what, *(f"  {label:<5} {text}" for label, text in found)])

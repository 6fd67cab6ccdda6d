"""Arguments of one kind each, checked in one place: a flag, a size, a number, a choice, a path.

Each function returns what the argument says, or raises an InputError that names the argument, what
is wrong with it and what would be right. Values may be anything: tensors and arrays have no truth
value and no equality, so nothing is compared before its type is known.
"""

from __future__ import annotations

import inspect
import math
import operator
import os
from collections.abc import Collection, Mapping, Sequence, Set
from pathlib import Path
from typing import Any

from elman.errors import InputError, warn

MOST = 2**31 - 1  # of a size: numbers of units fit into an int of C
MOST_LAYERS = 10_000  # each takes a millisecond to make
_SHORT = 60  # letters of values that a message repeats


def shown(value: Any) -> str:
    """A value as a message repeats it: in one line, and not a long one."""
    if value is None or isinstance(value, bool | int | float | complex | str | bytes):
        text = repr(value)
        return text if len(text) <= _SHORT else f"{text[:_SHORT]}…"
    if isinstance(value, tuple | list | dict | set | frozenset) and not value:
        return repr(value)
    if isinstance(value, type):
        return f"the class {value.__name__}"
    if inspect.isroutine(value):
        return f"the function {value.__name__}"
    return f"a {type(value).__name__}"


def check_flag(name: str, value: Any) -> bool:
    """True or False; 1 and 0 too. Raises InputError: it is neither."""
    kind = type(value).__name__
    if isinstance(value, bool) or (isinstance(value, int) and value in (0, 1)):
        return bool(value)
    if type(value).__module__ == "numpy" and kind in ("bool", "bool_"):
        return bool(value)
    raise InputError(f"{name} must be True or False, got {shown(value)}", "")


def is_number(value: Any) -> bool:
    """Whether a value is a number of Python's or numpy's, not a bool."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def check_size(name: str, size: Any, least: int = 1, most: int = MOST) -> int:
    """A whole number of something. Raises InputError: it is none, or too small or too large."""
    if isinstance(size, bool) or not isinstance(size, int):
        raise InputError(f"{name} should be of type int, got: {type(size).__name__}")
    if size < least:
        raise InputError(f"{name} must be at least {least}, got {shown(size)}")
    if size > most:
        raise InputError(f"{name} must be at most {most}, got {shown(size)}")
    return size


def check_index(name: str, value: Any) -> int:
    """A whole number of Python's or numpy's, of any sign, that fits into 64 bits. Raises
    InputError: it is none."""
    try:
        number = None if isinstance(value, bool) or hasattr(value, "dim") else operator.index(value)
    except TypeError:
        number = None
    if number is None or not -(2**63) <= number < 2**63:
        raise InputError(f"{name} must be a whole number of 64 bits, got {shown(value)}")
    return number


def check_share(name: str, value: Any) -> float:
    """A share of something. Raises InputError: it is not a number in [0, 1]."""
    if not (is_number(value) and 0.0 <= value <= 1.0):
        text = f"{name} must be in [0, 1], got {shown(value)}"
        raise InputError(text, f"{name}=0.1")
    return float(value)


def check_dropout(dropout: Any, num_layers: int) -> float:
    """The share of values dropped after each layer but the last. Warns, as torch's layers do, if
    there is one layer. Raises InputError: it is not a number in [0, 1]."""
    share = check_share("dropout", dropout)
    if share and num_layers == 1:
        warn(
            "dropout option adds dropout after all but last recurrent layer, so non-zero dropout "
            f"expects num_layers greater than 1, but got dropout={dropout} and num_layers=1"
        )
    return share


def check_number(name: str, value: Any, least: float = 0.0, most: float = math.inf) -> float:
    """A finite number that is neither too small nor too large. Raises InputError: it is none."""
    if not (is_number(value) and least <= value <= most and value < math.inf):
        limit = "" if most == math.inf else f" and at most {most:g}"
        text = f"{name} must be a number of at least {least:g}{limit}, got {shown(value)}"
        raise InputError(text)
    return float(value)


def check_choice(name: str, value: Any, choices: Collection[str]) -> str:
    """Check that a value is one of some words. Raises InputError: it is not."""
    if not isinstance(value, str) or value not in choices:
        *head, last = map(repr, choices)
        expected = f"{', '.join(head)} or {last}" if head else last
        raise InputError(f"{name} must be {expected}, got {shown(value)}")
    return value


def check_text(name: str, value: Any, example: str) -> str:
    """A text. Raises InputError: it is none."""
    if not isinstance(value, str):
        raise InputError(f"{name} must be a text, got {shown(value)}", example)
    return value


def check_names(name: str, value: Any, example: str) -> frozenset[str]:
    """Some words: one, or a list, tuple, set or dict of them. Raises InputError: there is something
    else among them."""
    is_collection = isinstance(value, Sequence | Set | Mapping) and not isinstance(
        value, str | bytes
    )
    words: list[Any] = [*value] if is_collection else [value]
    if not all(isinstance(word, str) for word in words):
        raise InputError(f"{name} must be words, got {shown(value)}", example)
    return frozenset(words)


def check_mapping(name: str, value: Any, example: str) -> dict[str, Any]:
    """A dict by names; None is an empty one. Raises InputError: it is none."""
    mapping = {} if value is None else value
    if not isinstance(mapping, Mapping) or not all(isinstance(key, str) for key in mapping):
        message = f"{name} must be a dict by names, got {shown(value)}"
        raise InputError(message, example)
    return dict(mapping)


def check_list(name: str, value: Any, example: str) -> None:
    """A list or a tuple. Raises InputError: it is neither."""
    if not isinstance(value, list | tuple):
        raise InputError(f"{name} must be a list, got {shown(value)}", example)


def check_path(name: str, value: Any, example: str) -> Path:
    """The path of a file or a folder. Raises InputError: it is none."""
    text = os.fspath(value) if isinstance(value, str | os.PathLike) else None
    if not isinstance(text, str) or not text or "\0" in text:
        raise InputError(f"{name} must be a path, got {shown(value)}", example)
    return Path(text)


def check_callable(name: str, value: Any, arguments: Sequence[str], example: str) -> None:
    """A function of some arguments, or a module. Raises InputError: it is none, or does not take as
    many."""
    if not callable(value):
        raise InputError(f"{name} must be a function, got {shown(value)}", example)
    try:
        function = value if isinstance(value, type) else getattr(value, "forward", value)
        inspect.signature(function).bind(*arguments)
    except ValueError:  # of Python's own functions, some of which do not tell
        return
    except TypeError:
        message = f"{name} must take ({', '.join(arguments)}), and {shown(value)} does not"
        raise InputError(message, example) from None

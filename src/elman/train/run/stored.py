"""Files that others may have touched since they were written: read, and held against their types.

Whatever lies there, what comes out is a value of the declared type, or a `DamageError` that says in
one line what is wrong.
"""

from __future__ import annotations

import json
import reprlib
import sys
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

from elman.errors import RunError
from elman.files import missing, read_file

LARGEST = 1 << 27  # bytes of a file of a run
DEEPEST = 50  # objects and lists of JSON inside one another
WANTED = {
    str: "text",
    int: "an integer",
    float: "a number",
    bool: "true or false",
    dict: "an object",
    list: "a list",
    NoneType: "null",
}


class DamageError(RunError):
    """What is wrong with a stored file, in one line."""


@dataclass(frozen=True)
class Range:
    """The values that a number may have, both ends included; NaN is in no range."""

    low: float
    high: float

    def check(self, value: Any, where: str) -> None:
        """Raise DamageError if a number lies outside."""
        if not self.low <= value <= self.high:
            text = f"{reprlib.repr(value)} is not in [{self.low:g}, {self.high:g}]"
            raise DamageError(at(where, text))


Count = Annotated[int, Range(0, 2**53)]
Positive = Annotated[float, Range(1e-9, 1e18)]  # seconds, speeds and their ratios
Share = Annotated[float, Range(0, 1)]


def read_bytes(path: Path) -> bytes | None:
    """Read a regular file; None if there is none. Raises DamageError: it cannot be read, or is not
    a file that a run would write."""
    try:
        return read_file(path, LARGEST)
    except OSError as error:
        if missing(path, error):
            return None
        raise DamageError(f"it cannot be read: {error.strerror}") from error


def read_object(path: Path) -> dict[str, Any] | None:
    """Read a file with a JSON object; None if there is no file. Raises DamageError: it cannot be
    read, or holds something else."""
    held = read_bytes(path)
    if held is None:
        return None
    try:
        content = json.loads(held)
    except RecursionError as error:
        raise DamageError("its values are nested too deep") from error
    except ValueError as error:  # bytes that are not text, text that is not JSON, endless digits
        raise DamageError(f"it is not JSON: {error}" if held.strip() else "it is empty") from error
    if not isinstance(content, dict):
        raise DamageError(f"expected an object, got {reprlib.repr(content)}")
    if deep(content):
        raise DamageError("its values are nested too deep")
    return content


def deep(content: Any) -> bool:
    """Whether lists and objects stand inside one another more than DEEPEST times."""
    layer = [content]
    for _ in range(DEEPEST):
        layer = [
            part
            for whole in layer
            if isinstance(whole, dict | list)
            for part in (whole.values() if isinstance(whole, dict) else whole)
        ]
    return bool(layer)


def typed(hint: Any, value: Any, where: str = "") -> Any:
    """Return a value of JSON as its type hint has it.

    Args:
        hint: str, int, float, bool, Any, None, `dict[str, T]`, `list[T]`, a dataclass, unions of
            these, or `Annotated[T, Range]`. A whole number may stand for a float.
        where: names of the fields on the way to the value, for the message.

    Raises:
        DamageError: if the value is of another type or out of range.
    """
    origin, arguments = get_origin(hint), get_args(hint)
    if hint is Any:
        return value
    if origin is Annotated:
        item = typed(arguments[0], value, where)
        arguments[1].check(item, where)
        return item
    if origin in (Union, UnionType):
        return one_of(arguments, value, where)
    if is_dataclass(hint) and isinstance(value, dict):
        return filled(hint, value, where)
    if origin is dict and isinstance(value, dict):
        return {
            name: typed(arguments[1], part, within(where, name)) for name, part in value.items()
        }
    if origin is list and isinstance(value, list):
        return [typed(arguments[0], part, within(where, str(k))) for k, part in enumerate(value)]
    if hint is float and type(value) is int and abs(value) <= sys.float_info.max:
        return float(value)
    if type(value) is not hint:
        wanted = WANTED.get(dict if is_dataclass(hint) else origin or hint)
        raise DamageError(at(where, f"expected {wanted}, got {reprlib.repr(value)}"))
    return value


def one_of(options: tuple[Any, ...], value: Any, where: str) -> Any:
    """Return a value as the first of several hints that it fits; null only where null may be."""
    rest = [option for option in options if option is not NoneType]
    if value is None and len(rest) < len(options):
        return None
    for option in rest[:-1]:
        try:
            return typed(option, value, where)
        except DamageError:
            continue
    return typed(rest[-1], value, where)


def filled(kind: Any, content: dict[str, Any], where: str = "") -> Any:
    """Make a dataclass from an object; what it has beyond the fields is left out. Raises
    DamageError: a field is missing, of another type, or breaks a rule of the dataclass."""
    hints, values = hints_of(kind), {}
    for field in fields(kind):
        if field.name in content:
            inner = within(where, field.name)
            values[field.name] = typed(hints[field.name], content[field.name], inner)
        elif field.default is MISSING and field.default_factory is MISSING:
            raise DamageError(f"{within(where, field.name)} is missing")
    try:
        return kind(**values)
    except ValueError as error:
        raise DamageError(at(where, str(error))) from error


@cache
def hints_of(kind: Any) -> dict[str, Any]:
    """Return the types of a dataclass's fields, with their ranges."""
    return get_type_hints(kind, include_extras=True)


def number(text: str) -> int | float | None:
    """Read a number of a table; None where nothing stands. Raises DamageError: something else
    stands there."""
    if not text:
        return None
    try:
        return int(text)
    except ValueError:
        pass
    try:
        return float(text)
    except ValueError as error:
        raise DamageError(f"expected a number, got {reprlib.repr(text)}") from error


def within(where: str, name: str) -> str:
    """Name a field of what stands at a place."""
    return f"{where}.{name}" if where else name


def at(where: str, text: str) -> str:
    """Put the place before a text, if there is one."""
    return f"{where}: {text}" if where else text

"""Files that others may have changed since they were written: reading, and decoding by type.

The result is always a value of the declared type, or a `DamageError` that names the damage in one
line.
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
KIND_NAMES = {
    str: "text",
    int: "an integer",
    float: "a number",
    bool: "true or false",
    dict: "an object",
    list: "a list",
    NoneType: "null",
}


class DamageError(RunError):
    """A damaged file; the message is one line."""


@dataclass(frozen=True)
class Range:
    """The values that a number may have, both ends included; NaN is in no range."""

    low: float
    high: float

    def check(self, value: Any, place: str) -> None:
        """Raise DamageError if a number lies outside."""
        if not self.low <= value <= self.high:
            text = f"{reprlib.repr(value)} is not in [{self.low:g}, {self.high:g}]"
            raise DamageError(prefix(place, text))


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
    data = read_bytes(path)
    if data is None:
        return None
    try:
        content = json.loads(data)
    except RecursionError as error:
        raise DamageError("its values are nested too deep") from error
    except ValueError as error:  # bytes that are not text, text that is not JSON, endless digits
        raise DamageError(f"it is not JSON: {error}" if data.strip() else "it is empty") from error
    if not isinstance(content, dict):
        raise DamageError(f"expected an object, got {reprlib.repr(content)}")
    if is_too_deep(content):
        raise DamageError("its values are nested too deep")
    return content


def is_too_deep(content: Any) -> bool:
    """Whether lists and objects stand inside one another more than DEEPEST times."""
    layer = [content]
    for _ in range(DEEPEST):
        layer = [
            part
            for outer in layer
            if isinstance(outer, dict | list)
            for part in (outer.values() if isinstance(outer, dict) else outer)
        ]
    return bool(layer)


def convert(hint: Any, value: Any, place: str = "") -> Any:
    """Convert a value of JSON to the type of a hint.

    Args:
        hint: str, int, float, bool, Any, None, `dict[str, T]`, `list[T]`, a dataclass, unions of
            these, or `Annotated[T, Range]`. A whole number may stand for a float.
        place: names of the fields on the way to the value, for the message.

    Raises:
        DamageError: if the value is of another type or out of range.
    """
    origin, arguments = get_origin(hint), get_args(hint)
    if hint is Any:
        return value
    if origin is Annotated:
        item = convert(arguments[0], value, place)
        arguments[1].check(item, place)
        return item
    if origin in (Union, UnionType):
        return convert_union(arguments, value, place)
    if is_dataclass(hint) and isinstance(value, dict):
        return decode(hint, value, place)
    if origin is dict and isinstance(value, dict):
        return {
            name: convert(arguments[1], part, join(place, name)) for name, part in value.items()
        }
    if origin is list and isinstance(value, list):
        return [convert(arguments[0], part, join(place, str(k))) for k, part in enumerate(value)]
    if hint is float and type(value) is int and abs(value) <= sys.float_info.max:
        return float(value)
    if type(value) is not hint:
        expected = KIND_NAMES.get(dict if is_dataclass(hint) else origin or hint)
        raise DamageError(prefix(place, f"expected {expected}, got {reprlib.repr(value)}"))
    return value


def convert_union(options: tuple[Any, ...], value: Any, place: str) -> Any:
    """Convert a value by the first of several hints that fits; null only where null may be."""
    candidates = [option for option in options if option is not NoneType]
    if value is None and len(candidates) < len(options):
        return None
    for option in candidates[:-1]:
        try:
            return convert(option, value, place)
        except DamageError:
            continue
    return convert(candidates[-1], value, place)


def decode(kind: Any, content: dict[str, Any], place: str = "") -> Any:
    """Decode an object into a dataclass; unknown fields are ignored. Raises
    DamageError: a field is missing, of another type, or breaks a rule of the dataclass."""
    hints, values = hints_of(kind), {}
    for field in fields(kind):
        if field.name in content:
            inner = join(place, field.name)
            values[field.name] = convert(hints[field.name], content[field.name], inner)
        elif field.default is MISSING and field.default_factory is MISSING:
            raise DamageError(f"{join(place, field.name)} is missing")
    try:
        return kind(**values)
    except ValueError as error:
        raise DamageError(prefix(place, str(error))) from error


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


def join(place: str, name: str) -> str:
    """Append a field's name to a path of fields."""
    return f"{place}.{name}" if place else name


def prefix(place: str, text: str) -> str:
    """Prefix a message with the path of a field, if there is one."""
    return f"{place}: {text}" if place else text

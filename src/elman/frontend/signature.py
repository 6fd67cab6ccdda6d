"""The signature strings of ``@cell``: ``input="x[I], m"``, ``weights="W[3H, I], b[3H]"``."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from elman.errors import ShapeError, TraceError, sized_by, spelled
from elman.frontend.reserved import check_names
from elman.ir.types import (
    Dim,
    Shape,
    axis_of,
    dim_size,
    is_matrix,
    matrix_axes,
    names_in,
    parse_dim,
    parts_of,
    show_dim,
    show_shape,
)

_ENTRY = re.compile(r"\s*([A-Za-z_]\w*)\s*(?:\[([^\]]*)\])?\s*")

_SAMPLE = "a cell knows neither batch nor time: one sample, one step"
_MAPS = (
    "heads are an option of the module, heads=N; a map of channels and pixels is one vector, "
    '"h[N]" with N = C * Y * X; what depends on x alone is convolved before, by a layer of '
    "torch.nn over all steps, and what depends on h is a product with weights times a constant "
    "mask, (mask * R) @ h"
)
_TOO_MANY = {  # kind -> what to write instead of a further dim
    "weights": "declare a matrix for each slice: W0[H, I], W1[H, I]",
    "constants": "declare a matrix for each slice: A0[H, H], A1[H, H]",
}
_PER_SAMPLE = ("input", "static", "state", "output")


@dataclass(frozen=True)
class Declared:
    """One declared argument: its name and shape; a bare name is a scalar (per sample, or one
    weight)."""

    name: str
    shape: Shape

    def __str__(self) -> str:
        return self.name + (show_shape(self.shape) if self.shape else "")


def _entries(text: str) -> list[str]:
    """Cut at commas outside brackets."""
    entries: list[str] = []
    depth, start = 0, 0
    for index, char in enumerate(text):
        depth += (char == "[") - (char == "]")
        if char == "," and depth == 0:
            entries.append(text[start:index])
            start = index + 1
    entries.append(text[start:])
    return [entry for entry in entries if entry.strip()]


def _as_one(values: Any) -> str:
    """A list of entries as one text, for hints; otherwise an example."""
    names: list[Any] = [*values] if isinstance(values, list | tuple) else []
    return ", ".join(map(str, names)) or "x[I], m"


def parse_signature(kind: str, text: Any, rank: int, where: str) -> tuple[Declared, ...]:
    """Parse one signature string.

    Args:
        kind: what the string declares (input, static, state, weights, constants, output), for
            messages.
        text: names with dims in brackets, separated by commas.
        rank: the highest number of dims allowed. Two dims of a weight are a matrix [rows, cols];
            of what each sample has, one gate block of rows · cols units (``ir/types.py``).
        where: the cell's line, for messages.

    Raises:
        TraceError: the text cannot be read, a name stands twice, a dim is wrong.
    """
    if not isinstance(text, str):
        message = f"{kind} is one text, not a {type(text).__name__}"
        raise TraceError(message, f'{kind}="{_as_one(text)}"', at=where)
    declared: list[Declared] = []
    for entry in _entries(text):
        match = _ENTRY.fullmatch(entry)
        if match is None:
            raise TraceError(
                f"cannot read {entry.strip()!r} in {kind}={text!r}",
                'write names of the letters a to z, dims in brackets: "x[I], m"',
                at=where,
            )
        name, inside = match.groups()
        try:
            shape = tuple(parse_dim(dim) for dim in inside.split(",")) if inside else ()
        except ValueError as reason:
            raise TraceError(f"{kind}={text!r}: {reason}", at=where) from None
        if len(shape) > rank:
            raise TraceError(
                f"{kind} {name}{show_shape(shape)} has {len(shape)} dims, at most {rank} here",
                _TOO_MANY.get(kind, f"{_SAMPLE}; {_MAPS}"),
                at=where,
            )
        if len(shape) == 2 and kind in _PER_SAMPLE:
            shape = (_matrix_dim(kind, name, shape, where),)
        declared.append(Declared(name, shape))
    names = [entry.name for entry in declared]
    for name in names:
        if names.count(name) > 1:
            raise TraceError(f"{name!r} is declared twice in {kind}={text!r}", at=where)
    return tuple(declared)


def _matrix_dim(kind: str, name: str, shape: Shape, where: str) -> Dim:
    """The dim of a matrix per sample. Raises TraceError: an axis names the batch."""
    rows, columns = shape
    for dim in shape:
        if dim in (("B",), ("T",)):
            raise TraceError(
                f"{kind} {name}{show_shape(shape)} has a dim {show_dim(dim)}",
                f'{_SAMPLE}; a matrix of each sample is "S[K, V]", with other names of dims',
                at=where,
            )
    return ((axis_of(rows), axis_of(columns)),)


def solve_dim(
    entry: Declared, size: int, bound: dict[str, int], size_name: str, origin: str
) -> None:
    """Find the one unknown name of a declared vector from its size and record it in ``bound``.

    ``h[2K]`` with size 64 gives K = 32. The size of a matrix is that of its rows, its last axis:
    ``S[K, V]`` with size 64 gives V = 64, ``S[K, 2V]`` gives V = 32.

    Raises:
        ShapeError: the size does not fit, or more than one name is unknown.
    """
    dim, of_matrix = entry.shape[0], is_matrix(entry)
    if of_matrix:
        dim = parts_of(matrix_axes(entry)[1])
    unknown = sorted({a for a in dim if isinstance(a, str) and a not in bound})
    text = show_dim(dim)
    if not unknown:
        units = dim_size(dim, bound)
        if units != size:
            has = f"{units} columns" if of_matrix else f"{units} units"
            hint = (
                "input_size is that of the first input, hidden_size that of the first state; of a"
                f" matrix the last axis, here {text}"
            )
            message = f"{size_name} is {size}, but {origin} {entry} has {has}"
            raise ShapeError(message, hint if of_matrix else "")
        return
    if len(unknown) > 1:
        hint = f"give {' and '.join(unknown[1:])} {sized_by(unknown[1:])}"
        raise ShapeError(f"{size_name}: {text} has several unknown dims, {hint}")
    name = unknown[0]
    rest = dim_size(tuple(a for a in dim if a != name), bound)
    count = dim.count(name)
    value, remainder = divmod(size - rest, count)
    if remainder or value < 0 or (value == 0 and size != 0):
        raise ShapeError(f"{size_name} is {size}, which no {name} makes equal to {text}")
    bound[name] = value


def bind_dims(
    inputs: tuple[Declared, ...],
    states: tuple[Declared, ...],
    weights: tuple[Declared, ...],
    input_size: int,
    hidden_size: int,
    sizes: Mapping[str, int],
) -> dict[str, int]:
    """Bind every named dim: the first input and the first state (without states: the output) give
    theirs, all others by keyword. Raises ShapeError: a size does not fit its dim, a dim stays
    unknown, or a keyword names none."""
    declared = (*inputs, *states, *weights)
    names = {name for entry in declared for name in names_in(entry.shape)}
    for name in sizes:
        if name not in names:
            dims = ", ".join(sorted(names)) or "none"
            raise ShapeError(f"{name!r} is not a dim of this cell (its dims: {dims})")
    bound: dict[str, int] = dict(sizes)
    if inputs and inputs[0].shape:
        solve_dim(
            inputs[0], input_size, bound, spelled("input_size", "--inputs"), "the first input"
        )
    if states and states[0].shape:
        solve_dim(
            states[0], hidden_size, bound, spelled("hidden_size", "--hidden"), "the first state"
        )
    missing = sorted(names - set(bound))
    if missing:
        raise ShapeError(f"unknown dim {', '.join(missing)}: give it {sized_by(missing)}")
    return bound


def defaults_of(function: Callable[..., Any]) -> dict[str, Any]:
    """The keyword arguments of a cell's function, its options, with their default values."""
    parameters = inspect.signature(function).parameters.values()
    return {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}


def check_declared(
    function: Callable[..., Any],
    declared: Sequence[tuple[Declared, ...]],
    constants: tuple[Declared, ...],
    where: str,
) -> None:
    """Check what a cell declares against the arguments of its function.

    Args:
        function: of the cell.
        declared: inputs, static inputs, states, weights, constants.
        constants: the last of them.
        where: the function's line.

    Raises:
        TraceError: a name stands for two things, also in a module, or the function takes other
            arguments.
    """
    names = [entry.name for group in declared for entry in group]
    for name in names:
        if names.count(name) > 1:
            raise TraceError(f"{name!r} is declared twice", at=where)
    dims = {name for group in declared for entry in group for name in names_in(entry.shape)}
    for name in sorted(dims & {entry.name for entry in constants}):
        message = f"{name!r} is both a constant and a dim: a module could not tell {name}=…"
        lower = ", ".join(map(str, constants)).lower()
        raise TraceError(message, f"constants={lower!r}", at=where)
    check_names(defaults_of(function), dims, [entry.name for entry in constants], where)
    kinds = inspect.signature(function).parameters.values()
    for p in kinds:
        if p.kind is p.KEYWORD_ONLY and p.default is p.empty:
            message = f"option {p.name!r} of {function.__name__} has no default value"
            raise TraceError(message, f"*, {p.name}=…", at=where)
        if p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD):
            message = f"{function.__name__} takes {p}: a cell's arguments are those it declares"
            right = f"def {function.__name__}({', '.join(names)}):"
            raise TraceError(message, right, at=where)
    arguments = [p.name for p in kinds if p.kind is p.POSITIONAL_OR_KEYWORD]
    if arguments != names:
        options = [
            f"{p.name}={p.default if isinstance(p.default, int | float) else '…'}"
            for p in kinds
            if p.name not in names and p.default is not p.empty
        ]
        right = ", ".join([*names, *(["*", *options] if options else [])])
        raise TraceError(
            f"{function.__name__} takes ({', '.join(arguments)}), "
            f"but its signature declares ({', '.join(names)})",
            f"def {function.__name__}({right}):",
            at=where,
        )

"""Options as a user gave them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import typer

from elman.frontend.cell import Cell
from elman.ir.types import dim_size, names_in


def named(context: typer.Context) -> list[str]:
    """List the options that the user gave."""
    sources = {name: context.get_parameter_source(name) for name in context.params}
    return [n for n, source in sources.items() if source is not None and source.name != "DEFAULT"]


def option(name: str) -> str:
    """Write an option as a user types it."""
    return "--" + name.replace("_", "-")


def sizes(given: Iterable[str]) -> dict[str, int]:
    """Read ``P=32``, and several as ``H=128,I=64``."""
    found: dict[str, int] = {}
    for text in (part for whole in given for part in whole.split(",")):
        name, equals, size = text.partition("=")
        if not (equals and name.isidentifier() and size.isdigit()):
            raise typer.BadParameter(f"{text!r} is not of the form P=32", param_hint="--dim")
        found[name] = int(size)
    return found


def sized(
    cell: Cell, hidden: int, inputs: int | None, dim: list[str] | None
) -> tuple[int, int, dict[str, int]]:
    """Sizes of a cell's first input and first state, and of its dims that are given by name; those
    of input and state may be among these, and ``--hidden`` and ``--inputs`` say less then."""
    dims = sizes(dim or [])

    def of(entries: Iterable[Any], otherwise: int) -> int:
        first = next(iter(entries), None)
        if first is None or not first.shape or not names_in(first.shape[:1]) <= dims.keys():
            return otherwise
        return dim_size(first.shape[0], dims)

    height = of(cell.states or cell.outputs, hidden)
    return of(cell.inputs, height if inputs is None else inputs), height, dims

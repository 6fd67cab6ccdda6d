"""From the function of a cell to the graph of its formula."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from elman.errors import InputError, ShapeError, TraceError, diagnostic
from elman.frontend.cuts import Cuts, check_cut, cut_shape
from elman.frontend.lines import describe, line_of, written_at
from elman.frontend.products import read_by_products
from elman.frontend.signature import Declared
from elman.frontend.trace import Tracer, lift
from elman.ir.graph import Graph, Node, Rate, node
from elman.ir.types import show_shape

if TYPE_CHECKING:
    from elman.frontend.cell import Cell


def _return_line(function: Callable[..., Any]) -> str:
    """The line of the function's last ``return``; its first line if the source is not at hand."""
    code = function.__code__
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, SyntaxError):
        return line_of(code.co_filename, code.co_firstlineno)
    lines = [item.lineno for item in ast.walk(tree) if isinstance(item, ast.Return)]
    return line_of(code.co_filename, code.co_firstlineno + max(lines, default=1) - 1)


def cut(declared: tuple[Declared, ...], cuts: Cuts) -> tuple[Declared, ...]:
    """Declared arguments with their numbers cut."""
    return tuple(Declared(entry.name, cut_shape(entry.shape, cuts)) for entry in declared)


def traced(cell: Cell, cuts: Cuts) -> Graph:
    """The graph of a cell's formula, its function run once.

    Args:
        cuts: into what numbers among the dims are cut.

    Raises:
        TraceError, ShapeError: what it returns is not what it declares.
        UncutError: a number is to be cut further.
    """

    def leaves(op: str, declared: tuple[Declared, ...]) -> tuple[Node, ...]:
        return tuple(
            node(op, (), (entry.name,), entry.shape, cell.where) for entry in cut(declared, cuts)
        )

    inputs, states, weights = (
        leaves("input", (*cell.inputs, *cell.static)),
        leaves("state", cell.states),
        leaves("weight", cell.weights),
    )
    read = [Tracer(leaf) for leaf in states]
    with written_at(cell.where):
        for change in cell.changes:
            read = [change.read(leaf.name, v) for leaf, v in zip(states, read, strict=True)]
    arguments = [*map(Tracer, inputs), *read, *map(Tracer, weights)]
    returned = cell.function(*arguments, **cell.options)
    several = isinstance(returned, tuple | list)
    values: list[Any] = [*returned] if several else [returned]
    expected = [*cell.outputs, *cell.states]
    names = ", ".join(str(entry) for entry in expected)
    if len(values) != len(expected):
        raise TraceError(
            diagnostic(
                f"{cell.name} returns {len(values)} values, but declares {len(expected)}: {names}",
                [("at", _return_line(cell.function))],
                f"return {', '.join(entry.name for entry in expected)}",
            )
        )
    found: list[Node] = []
    for entry, value in zip(expected, values, strict=True):
        if value is None:
            raise TraceError(
                diagnostic(
                    f"{cell.name} returns None for {entry}",
                    [("at", _return_line(cell.function))],
                    f"return {', '.join(item.name for item in expected)}",
                )
            )
        made = lift(value)
        shape = cut_shape(entry.shape, cuts)
        check_cut(made.shape, shape)
        if made.shape != shape and not (made.shape == () and made.rate == Rate.WEIGHT):
            raise ShapeError(
                diagnostic(
                    f"{cell.name} returns {show_shape(made.shape)} for {entry}",
                    [("at", _return_line(cell.function)), ("value", describe(made))],
                    f"{entry.name} is declared as {show_shape(entry.shape)}",
                )
            )
        if made.shape != shape:
            raise ShapeError(
                diagnostic(
                    f"{cell.name} returns a constant for {entry}",
                    [("at", _return_line(cell.function))],
                    f"0 * {entry.name} + constant has the right shape",
                )
            )
        found.append(made)
    found = _multiplied(cell, read, found)
    count = len(cell.outputs)
    outputs, next_states = tuple(found[:count]), found[count:]
    with written_at(cell.where):
        for change in cell.changes:
            next_states = [
                change.written(leaf.name, Tracer(leaf), Tracer(new)).node
                for leaf, new in zip(states, next_states, strict=True)
            ]
    next_states = tuple(next_states)
    return Graph(inputs, states, weights, next_states, outputs or next_states[:1])


def _multiplied(cell: Cell, read: list[Tracer], roots: list[Node]) -> list[Node]:
    """What a cell computes, with products that read its states through its changes.

    Raises:
        InputError: there is a change of that kind, but no such product.
    """
    seen = read
    with written_at(cell.where):
        for change in cell.changes:
            seen = [
                change.multiplied(entry.name, v) for entry, v in zip(cell.states, seen, strict=True)
            ]
    pairs = zip(read, seen, strict=True)
    instead = {old.node: new.node for old, new in pairs if old is not new}
    made = read_by_products(roots, instead) if instead else roots
    if instead and made == roots:
        raise InputError(
            diagnostic(
                f"recurrent_dropout: {cell.name} multiplies no state with a weight matrix",
                [("at", cell.where)],
                "zoneout=0.1 holds units of any state; dropout(v, 0.1) in a formula drops others",
            )
        )
    return made

"""Trace a cell's function into the graph of its formula."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from elman.errors import InputError, ShapeError, TraceError, diagnostic, warn_once
from elman.frontend.changes import Change, read_by_products
from elman.frontend.dims import Cuts, check_cut, check_names, cut_shape
from elman.frontend.foreign_names import written_call
from elman.frontend.lines import describe, line_of, written_at
from elman.frontend.signature import Declared
from elman.frontend.trace import Tracer, lift, per_sample
from elman.ir.graph import Graph, Node, Rate, node
from elman.ir.types import show_shape


@dataclass(frozen=True, eq=False)
class Declaration:
    """A cell's function, and what it declares.

    Attributes:
        inputs: per step.
        static: inputs with one value per sequence.
        states, outputs, options: as declared.
        weights: trained ones, then constants.
        changes: modifications of how the formula reads and writes states.
        idle: whether the state is one that the function does not see.
    """

    name: str
    inputs: tuple[Declared, ...]
    static: tuple[Declared, ...]
    states: tuple[Declared, ...]
    weights: tuple[Declared, ...]
    outputs: tuple[Declared, ...]
    function: Callable[..., Any]
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    changes: tuple[Change, ...] = ()
    idle: bool = False

    @property
    def where(self) -> str:
        """``file:line: text`` of the function's definition."""
        code = self.function.__code__
        return line_of(code.co_filename, code.co_firstlineno)


def _return_line(cell: Declaration) -> tuple[str, str]:
    """The line of the function's last ``return``; its first line if the source is not at hand."""
    function = cell.function
    code = function.__code__
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, SyntaxError):
        return "at", line_of(code.co_filename, code.co_firstlineno)
    lines = [item.lineno for item in ast.walk(tree) if isinstance(item, ast.Return)]
    return "at", line_of(code.co_filename, code.co_firstlineno + max(lines, default=1) - 1)


def cut(declared: tuple[Declared, ...], cuts: Cuts) -> tuple[Declared, ...]:
    """Declared arguments with their numbers cut."""
    return tuple(Declared(entry.name, cut_shape(entry.shape, cuts)) for entry in declared)


def traced(cell: Declaration, cuts: Cuts) -> Graph:
    """Run a cell's function once on tracers and return its graph.

    Args:
        cuts: how numbers among the dims are split.

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
    idle = read if cell.idle else []
    arguments = [*map(Tracer, inputs), *([] if idle else read), *map(Tracer, weights)]
    try:
        returned = cell.function(*arguments, **cell.options)
    except TypeError as error:
        raise _refused(error) or error from None
    roots = _multiplied(cell, read, _checked_results(cell, returned, idle, cuts))
    count = len(cell.outputs)
    outputs, next_states = tuple(roots[:count]), roots[count:]
    with written_at(cell.where):
        for change in cell.changes:
            next_states = [
                change.written(leaf.name, Tracer(leaf), Tracer(new)).node
                for leaf, new in zip(states, next_states, strict=True)
            ]
    next_states = tuple(next_states)
    graph = Graph(inputs, states, weights, next_states, outputs or next_states[:1])
    for change in cell.changes:
        graph = change.rewritten(graph)
    check_names(graph)
    if not cell.changes:  # it was traced before, without any
        _warn_of_unread(cell, graph)
    return graph


def _warn_of_unread(cell: Declaration, graph: Graph) -> None:
    """Warn of inputs and weights that no result depends on: most likely a mistake."""
    read = {*graph.walk()}
    unread = [repr(leaf.data[0]) for leaf in (*graph.inputs, *graph.weights) if leaf not in read]
    if unread:
        message = f"{cell.name} declares {', '.join(unread)}, but no result depends on "
        message += "them" if len(unread) > 1 else "it"
        warn_once(message, f"{cell.where}: {message}")


def _refused(error: TypeError) -> TraceError | None:
    """Error for a call of an elman function with wrong arguments; None for other errors."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    match = re.match(r"(\w+)\(\) ", str(error))
    right = written_call(match[1]) if match else ""
    if not right:
        return None
    return TraceError(str(error), right, at=line_of(frame.filename, frame.lineno or 0))


def _checked_results(
    cell: Declaration, returned: Any, idle: list[Tracer], cuts: Cuts
) -> list[Node]:
    """The outputs and next states that a cell's function returned, in declared order, and an idle
    state behind them. Raises TraceError: there are more or fewer than it declares, or one is None;
    ShapeError: one has another shape than it declares."""
    values: list[Any] = [*returned] if isinstance(returned, tuple | list) else [returned]
    values += idle
    expected = [*cell.outputs, *cell.states]
    hint = f"return {', '.join(entry.name for entry in expected)}"
    if len(values) != len(expected):
        names = ", ".join(str(entry) for entry in expected)
        message = f"{cell.name} returns {len(values)} values, but declares {len(expected)}: {names}"
        raise TraceError(diagnostic(message, [_return_line(cell)], hint))
    results: list[Node] = []
    for entry, value in zip(expected, values, strict=True):
        if value is None:
            message = f"{cell.name} returns None for {entry}"
            raise TraceError(diagnostic(message, [_return_line(cell)], hint))
        result, shape = lift(value), cut_shape(entry.shape, cuts)
        if show_shape(result.shape) == show_shape(shape):  # as written; W may be the same for all
            with written_at(cell.where):
                result = per_sample(result)
        check_cut(result.shape, shape)
        if result.shape != shape:
            raise _misshapen(cell, entry, result)
        results.append(result)
    return results


def _misshapen(cell: Declaration, entry: Declared, result: Node) -> ShapeError:
    """The error for a result that has another shape than it was declared with."""
    line = _return_line(cell)
    if result.shape == () and result.rate == Rate.WEIGHT:
        message = f"{cell.name} returns a constant for {entry}"
        return ShapeError(
            diagnostic(message, [line], f"0 * {entry.name} + constant has the right shape")
        )
    message = f"{cell.name} returns {show_shape(result.shape)} for {entry}"
    hint = f"{entry.name} is declared as {show_shape(entry.shape)}"
    return ShapeError(diagnostic(message, [line, ("value", describe(result))], hint))


def _multiplied(cell: Declaration, read: list[Tracer], roots: list[Node]) -> list[Node]:
    """Apply the changes that products read states through. Raises InputError: there is such a
    change, but no product reads a state."""
    operands = read
    with written_at(cell.where):
        for change in cell.changes:
            operands = [
                change.multiplied(entry.name, v)
                for entry, v in zip(cell.states, operands, strict=True)
            ]
    pairs = zip(read, operands, strict=True)
    instead = {old.node: new.node for old, new in pairs if old is not new}
    if not instead:
        return roots
    rewritten = read_by_products(roots, instead)
    if rewritten == roots:
        raise InputError(
            f"recurrent_dropout: {cell.name} multiplies no state [H] with a weight matrix",
            "zoneout=0.1 holds units of any state; dropout(v, 0.1) in a formula drops others",
            at=cell.where,
        )
    return rewritten

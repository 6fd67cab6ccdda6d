"""Cells, sizes and constants of each layer, from one value for all layers or a list."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any

from elman import cells
from elman.checks import MOST_LAYERS, check_size, shown
from elman.errors import InputError, ShapeError, spelled
from elman.frontend.cell import Cell
from elman.frontend.changes import Change
from elman.frontend.initial import Init, check_init
from elman.frontend.reserved import OF_CALLS, OF_MODULES
from elman.ir.types import names_in
from elman.nn.execute.layer import Formula


def resolve_layers(
    cell: Any,
    hidden_size: Any,
    num_layers: int,
    heads: int,
    changes: Sequence[Change],
    arguments_by_name: Mapping[str, Any],
) -> tuple[list[Formula], list[dict[str, Init]]]:
    """Bind the cell, sizes, options and constants of every layer.

    Args:
        cell: of all layers, or a list.
        hidden_size: of all layers, or a list.
        num_layers: the argument; lists set it, too.
        heads: of all layers.
        changes: of all layers that have such states.
        arguments_by_name: other arguments by name: options, dims and constants of cells.

    Returns:
        The formula of each layer, lowest first, and the values of its constants, by name.

    Raises:
        InputError: no cell, an argument that no cell has, or lists of unlike length.
        ShapeError: heads do not divide a cell.
    """
    check_size("heads", heads)
    check_size("num_layers", num_layers, 1, MOST_LAYERS)
    count = _count(cell, hidden_size, num_layers)
    cells: list[Any] = _per_layer("cell", cell, count)
    sizes = _per_layer("hidden_size", hidden_size, count)
    for layer_cell in cells:
        _check_cell(layer_cell)
    cells = [layer_cell.recurrent for layer_cell in cells]
    states = dict.fromkeys([entry.name for layer_cell in cells for entry in layer_cell.states])
    for change in changes:
        change.check("/".join(dict.fromkeys([layer_cell.name for layer_cell in cells])), [*states])
    constant_names = {name for layer_cell in cells for name in layer_cell.constants}
    for name in arguments_by_name:
        if name in OF_CALLS and name not in constant_names:
            raise InputError(f"{name} is an argument of each call", f"net(x, {name}=…)")
    names = {name for layer_cell in cells for name in _names_of(layer_cell)}
    bound: dict[int, Cell] = {}  # layers of equal cells share one object, so they can run together
    formulas: list[Formula] = []
    constants: list[dict[str, Init]] = []
    for layer, (layer_cell, size) in enumerate(zip(cells, sizes, strict=True)):
        elsewhere = names - _names_of(layer_cell)
        values: dict[str, Any] = {}
        for name, value in arguments_by_name.items():
            if name in elsewhere:
                continue
            if not _is_single_value(layer_cell, name, value, count):
                value = _per_layer(name, value, count)[layer]
            if value is not None or name in layer_cell.defaults or name not in names:
                values[name] = value
        bound_cell, dims, fixed = _bind_options(layer_cell, values)
        for name, number in (("hidden_size", size), *dims.items()):
            check_size(name, number)
        if heads > size:
            raise ShapeError(f"hidden_size={size} cannot be divided among {heads} heads")
        if id(layer_cell) not in bound:
            layer_changes = [
                change.of_states([s.name for s in layer_cell.states]) for change in changes
            ]
            bound[id(layer_cell)] = bound_cell.with_heads(heads).with_changes(*layer_changes)
        formulas.append((bound[id(layer_cell)], size, dims))
        constants.append(fixed)
    return formulas, constants


def _count(cell: Any, hidden_size: Any, num_layers: int) -> int:
    """The number of layers."""
    lists = {"cell": cell, "hidden_size": hidden_size}
    counts = {name: len(value) for name, value in lists.items() if isinstance(value, (list, tuple))}
    if num_layers != 1 or not counts:
        counts["num_layers"] = num_layers
    numbers = set(counts.values())
    if len(numbers) > 1 or 0 in numbers:
        raise InputError(
            "lists have one entry for each layer, and all say the same number of layers",
            "Recurrent([cell_a, cell_b], input_size, [64, 32])",
            **counts,
        )
    return numbers.pop()


def _per_layer(name: str, value: Any, count: int) -> list[Any]:
    """A value of each layer: an entry of a list, or one for all."""
    if not isinstance(value, (list, tuple)):
        return [value] * count
    if len(value) != count:
        raise InputError(f"{name} has {len(value)} entries for {count} layers", f"{name}=[…]")
    return list(value)


def _is_single_value(cell: Cell, name: str, value: Any, count: int) -> bool:
    """Whether a list is one value for all layers: an option's, or the numbers of a constant."""
    if name in cell.constants and isinstance(value, (list, tuple)):
        return count == 1 or len(value) != count
    return name in cell.defaults


def _check_cell(cell: Any) -> None:
    """Raise InputError for an object that is not a cell."""
    if not isinstance(cell, Cell):
        is_name = isinstance(cell, str) and isinstance(getattr(cells, cell, None), Cell)
        raise InputError(
            f"Recurrent takes a cell, not {type(cell).__name__}",
            f"elman.cells.{cell}"
            if is_name
            else "decorate the formula: @elman.cell(input=…, state=…, weights=…)",
            value=shown(cell),
        )


def _dims_of(cell: Cell) -> set[str]:
    """The named dims of a cell."""
    entries = (*cell.inputs, *cell.static, *cell.states, *cell.weights)
    return {name for entry in entries for name in names_in(entry.shape)}


def _names_of(cell: Cell) -> set[str]:
    """Keyword names that a cell accepts: options, constants, dims."""
    return {*cell.defaults, *cell.constants, *_dims_of(cell)}


def _bind_options(
    cell: Cell, arguments_by_name: dict[str, Any]
) -> tuple[Cell, dict[str, int], dict[str, Init]]:
    """Bind the options of a cell; return it with sizes of its dims, and its constants."""
    options = {name: value for name, value in arguments_by_name.items() if name in cell.defaults}
    bound = cell.with_options(**options)
    fixed = {name: value for name, value in arguments_by_name.items() if name in cell.constants}
    for name, choice in fixed.items():
        check_init(name, choice, cell.weights, cell.states, cell.where)
    for entry in cell.weights:
        if entry.name in cell.constants and entry.name not in {*fixed, *cell.init}:
            initial = f"init={{{entry.name!r}: …}} in the cell"
            raise InputError(
                f"{cell.name} needs its constant {entry}",
                spelled(
                    f"Recurrent({cell.name}, …, {entry.name}=…), a number, a tensor, or a "
                    f"function that fills one; or {initial}",
                    initial,
                ),
                at=cell.where,
            )
    dims = {
        name: value for name, value in arguments_by_name.items() if name not in {*options, *fixed}
    }
    dims_of_cell = _dims_of(cell)
    constants = f"; constants: {', '.join(sorted(cell.constants))}" if cell.constants else ""
    for name in dims:
        if name not in dims_of_cell:
            where = spelled("Recurrent", "--dim")
            message = (
                f"{where} has no argument {name!r}, and {cell.name} neither a dim nor an option "
                f"of that name (dims: {', '.join(sorted(dims_of_cell))}; options: "
                f"{', '.join(cell.defaults) or 'none'}{constants})"
            )
            raise InputError(message, _suggest_name(cell, name))
    return bound, dims, fixed


def _suggest_name(cell: Cell, name: str) -> str:
    """The hint for an unknown argument: a similar name, or how weights are initialised."""
    if any(entry.name == name for entry in cell.weights):
        return f"{name} is a weight: init={{{name!r}: …}} in the cell says what it begins with"
    near = get_close_matches(name, [*OF_MODULES, *sorted(_names_of(cell))], 1)
    return f"{near[0]}=…" if near else ""

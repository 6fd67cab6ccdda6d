"""Who runs each layer and direction of a module: each layer's input is the output below."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from elman.errors import InputError, ShapeError
from elman.frontend.cell import Cell
from elman.ir.types import dim_size, shape_size
from elman.nn.execute.layer import Runner
from elman.nn.modules.layer_config import Formula
from elman.plan.spec import PlanOptions

Shared = dict[tuple[str, str], tuple[int, tuple[int, ...]]]  # kind, name -> first layer, its sizes
_APART = "modules of one layer each, one after the other, may differ in their sizes"


def runners_of(
    formulas: Sequence[Formula],
    input_size: int,
    bidirectional: bool,
    residual: bool,
    options: PlanOptions,
) -> dict[str, Runner]:
    """One runner per layer and direction, by the suffix of its weights' names.

    Args:
        formulas: of each layer.
        input_size: of the lowest layer; those above read the output of the one below.
        bidirectional, residual: as of the module.
        options: of all layers.

    Raises:
        InputError, ShapeError: the cells cannot be stacked so.
    """
    size, runners = input_size, dict[str, Runner]()
    shared = Shared()
    for layer, (cell, height, dims) in enumerate(formulas):
        if not cell.inputs:
            raise InputError(f"{cell.name} has no input: there is nothing to run it over")
        output = cell.graph.output.shape
        scalars = [not value.shape for value in cell.graph.outputs]
        if (layer + 1 < len(formulas) and not output) or (bidirectional and all(scalars)):
            raise InputError(
                f"{cell.name} has a scalar output, which allows only one layer in one direction"
            )
        try:
            bound = cell.bind(size, height, **dims)
        except ShapeError as error:
            subject, what = f"{cell.name}, layer {layer}: {error}", cell.inputs[0]
            if size == input_size:
                raise ShapeError(subject) from None
            read = f"{what} is the output of the layer below: {size} units, not {input_size}"
            raise ShapeError(subject, _APART, input=read) from None
        _check_shared(cell, layer, bound, shared)
        for end in ("", "_reverse")[: 1 + bidirectional]:
            runners[f"l{layer}{end}"] = Runner(cell, bound, options)
        width = dim_size(output[0], bound) * (1 + bidirectional) if output else 1
        if residual and layer and width != size:
            raise ShapeError(
                f"{cell.name}, layer {layer}: residual adds its input [{size}] to its output "
                f"[{width}], which must have the same size",
                "one hidden_size for all layers, or residual=False",
            )
        size = width
    return runners


def _check_shared(cell: Cell, layer: int, bound: Mapping[str, int], shared: Shared) -> None:
    """Check that what layers have in common has one size in all: further and static inputs.

    Args:
        cell, layer, bound: of one layer.
        shared: of the layers below, to which this one's are added.

    Raises:
        ShapeError: a size follows that of the first input, which is another in the layers above.
    """
    for kind, entries in (("further", cell.inputs[1:]), ("static", cell.static)):
        for entry in entries:
            here = shape_size(entry.shape, dict(bound))
            first, first_place = shared.setdefault((kind, entry.name), (layer, here))
            if first_place != here:
                sizes = [size[0] if size else "no axis" for size in (here, first_place)]
                unlike = (
                    f"{cell.name}, layer {layer}: {entry} has size {sizes[0]} here and {sizes[1]} "
                    f"in layer {first}, but all layers get the same {kind} inputs"
                )
                apart = (
                    f"one cell per layer, without {entry.name} above: Recurrent([{cell.name}, …]"
                )
                raise ShapeError(unlike, f"{apart}, …)")

"""Draw the graph of a cell, forward and backward."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from elman.cell_files import find_cell
from elman.cli._options import OUTPUT, CellName, Dims, Hidden, Inputs, TapeOption, resolve_sizes
from elman.cli._terminal import say
from elman.drawing import draw as draw_cell
from elman.errors import RunError
from elman.plan.spec import PlanOptions

EXAMPLES = (
    "elman draw gru gru.svg",
    "elman draw mine.py:cell cell.svg --compact",
)


def draw(
    cell: CellName,
    path: Annotated[Path, typer.Argument(help="The .svg file to write.")],
    hidden: Hidden = 128,
    inputs: Inputs = None,
    dim: Dims = None,
    tape: TapeOption = "auto",
    compact: Annotated[
        bool,
        typer.Option(
            "--compact", help="Draw the forward alone, with narrow gaps.", rich_help_panel=OUTPUT
        ),
    ] = False,
    collapse: Annotated[
        bool, typer.Option(help="Draw a layer norm as one shape.", rich_help_panel=OUTPUT)
    ] = True,
    parameters: Annotated[
        bool, typer.Option("--parameters", help="Draw parameters as shapes.")
    ] = False,
    symbols: Annotated[
        bool,
        typer.Option("--symbols", help="Draw symbols alone, large.", rich_help_panel=OUTPUT),
    ] = False,
) -> None:
    """Draw the graph of a cell, forward and backward.

    The forward is above, the backward below. A red outline marks a value that the backward reads;
    a filled shape is saved for it.
    """
    formula = find_cell(cell)
    input_size, hidden_size, dims = resolve_sizes(formula, hidden, inputs, dim)
    try:
        drawing = draw_cell(
            formula,
            path,
            hidden_size=hidden_size,
            input_size=input_size,
            plan=PlanOptions(tape),
            compact=compact,
            collapse=collapse,
            parameters=parameters,
            symbols=symbols,
            **dims,
        )
    except OSError as error:
        raise RunError("cannot write the picture", error=error) from error
    say(Console(), str(drawing.path))

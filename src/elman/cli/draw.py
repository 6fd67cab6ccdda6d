"""Draw the graph of a cell, forward and backward, or the table of operations."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from elman.cell_files import find_cell
from elman.cli._options import OUTPUT, Dims, Hidden, Inputs, TapeOption, resolve_sizes
from elman.cli._terminal import say
from elman.drawing import draw as drawn
from elman.drawing import draw_ops
from elman.errors import RunError
from elman.plan.spec import PlanOptions

EXAMPLES = (
    "elman draw gru gru.svg",
    "elman draw mine.py:cell cell.svg --compact",
    "elman draw --ops operations.svg",
)


def draw(
    cell: Annotated[
        str | None, typer.Argument(help="A cell: gru, lstm, another one, or file.py:cell.")
    ] = None,
    path: Annotated[
        Path | None, typer.Argument(help="File to write: .svg, or .dot for Graphviz.")
    ] = None,
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
    ops: Annotated[
        Path | None,
        typer.Option(
            help="Draw the table of operations into this .svg file instead.",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
) -> None:
    """Draw the graph of a cell, forward and backward, or the table of operations.

    The forward is above, the backward below. A red outline marks a value that the backward reads;
    a filled shape is saved for it.
    """
    if ops is not None and cell is not None:
        raise typer.BadParameter("the table is of no cell: give it alone", param_hint="--ops")
    if ops is None and (cell is None or path is None):
        raise typer.BadParameter("elman draw CELL FILE.svg, or elman draw --ops FILE.svg")
    try:
        if ops is not None:
            drawing = draw_ops(ops)
        else:
            formula = find_cell(cell or "")
            input_size, hidden_size, dims = resolve_sizes(formula, hidden, inputs, dim)
            plan = PlanOptions(tape)
            drawing = drawn(
                formula,
                path,
                hidden_size=hidden_size,
                input_size=input_size,
                plan=plan,
                compact=compact,
                collapse=collapse,
                **dims,
            )
    except OSError as error:
        raise RunError("cannot write the picture", error=error) from error
    say(Console(), str(drawing.path))

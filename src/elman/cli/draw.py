"""Draw the differentiable graph of a cell as SVG."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from elman.cli.explain import sizes
from elman.drawing import draw as drawn
from elman.errors import RunError, diagnostic
from elman.train.layers import find_cell


def draw(
    cell: Annotated[str, typer.Argument(help="gru, lstm, another cell, or file.py:cell.")],
    path: Annotated[Path, typer.Argument(help="The .svg file; .dot for graphviz' language.")],
    hidden: Annotated[int, typer.Option(help="Units: the first state's size.")] = 128,
    inputs: Annotated[int | None, typer.Option(help="Size of the input; as --hidden.")] = None,
    dim: Annotated[list[str] | None, typer.Option(help="Another size of the cell: P=32.")] = None,
) -> None:
    """Draw the differentiable graph: forward above, backward below, taped values in red."""
    try:
        options: dict[str, Any] = sizes(dim or [])
        drawn(find_cell(cell), path, hidden_size=hidden, input_size=inputs, **options)
    except OSError as error:
        raise RunError(diagnostic("cannot write the picture", [("error", str(error))])) from error
    Console().print(str(path), highlight=False, markup=False, soft_wrap=True)

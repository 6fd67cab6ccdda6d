"""Arguments and options of several commands, and their parsers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Literal

import torch
import typer

from elman.frontend.cell import Cell
from elman.ir.types import dim_size, names_in

# Panels of the help: what is run, on what data, how, and where the results go.
CELL, CALL, ENGINE, OUTPUT, RUN = "Cell", "Call", "Engine", "Output", "Run folder"

CellName = Annotated[str, typer.Argument(help="A cell: gru, lstm, another one, or file.py:cell.")]
CellOfRun = Annotated[
    str | None,
    typer.Option(
        "--cell",
        help="Run this file.py:cell instead of the one that the run folder names.",
        rich_help_panel=RUN,
    ),
]
TRUST = "Run the Python file that the run folder names. Anybody may have written it."
LAST = "Use the last weights instead of those with the best validation result."
Trust = Annotated[bool, typer.Option("--trust", help=TRUST, rich_help_panel=RUN)]
Hidden = Annotated[
    int, typer.Option(help="Hidden size: units of the cell's first state.", rich_help_panel=CELL)
]
Inputs = Annotated[
    int | None,
    typer.Option(
        help="Size of the cell's first input; the hidden size by default.", rich_help_panel=CELL
    ),
]
Heads = Annotated[int, typer.Option(help="Heads of each layer.", min=1, rich_help_panel=CELL)]
Dims = Annotated[
    list[str] | None,
    typer.Option(
        help="Sizes of the cell's other dims: P=32, or H=128,I=64.",
        metavar="NAME=SIZE",
        rich_help_panel=CELL,
    ),
]
Steps = Annotated[int, typer.Option(help="Steps of a sequence, T.", min=1, rich_help_panel=CALL)]
Batch = Annotated[int, typer.Option(help="Samples of a batch, B.", min=1, rich_help_panel=CALL)]
Engine = Annotated[
    str, typer.Option(help="auto, or the name of an engine.", rich_help_panel=ENGINE)
]
Training = Annotated[bool, typer.Option(help="Include the backward pass.", rich_help_panel=CALL)]
TapeOption = Annotated[
    Literal["save", "auto", "recompute"],
    typer.Option(
        help="How many activations the forward saves for the backward.", rich_help_panel=ENGINE
    ),
]
DTypeOption = Annotated[
    Literal["float32", "float64", "bfloat16"],
    typer.Option(
        help="Type of inputs, states and weights: float32, float64 or bfloat16.",
        metavar="DTYPE",
        rich_help_panel=CALL,
    ),
]
# ROCm's GPUs have torch's name, cuda.
DeviceOption = Annotated[
    Literal["cpu", "cuda"], typer.Option(help="Device to run on.", rich_help_panel=CALL)
]


def check_device(device: str) -> str:
    """The name of a device on which kernels can be timed. Raises BadParameter: it is not here."""
    if device == "cuda" and not torch.cuda.is_available():
        raise typer.BadParameter("torch can use no GPU here", param_hint="--device")
    return device


def set_options(context: typer.Context) -> list[str]:
    """Names of the options set by the user."""
    sources = {name: context.get_parameter_source(name) for name in context.params}
    return [n for n, source in sources.items() if source is not None and source.name != "DEFAULT"]


def option(name: str) -> str:
    """Write an option as a user types it."""
    return "--" + name.replace("_", "-")


def parse_sizes(texts: Iterable[str]) -> dict[str, int]:
    """Read ``P=32``, and several as ``H=128,I=64``."""
    sizes: dict[str, int] = {}
    for text in (part for text_list in texts for part in text_list.split(",")):
        name, equals, size = text.partition("=")
        if not (equals and name.isidentifier() and size.isdigit()):
            raise typer.BadParameter(f"{text!r} is not of the form P=32", param_hint="--dim")
        sizes[name] = int(size)
    return sizes


def resolve_sizes(
    cell: Cell, hidden: int, inputs: int | None, dim: list[str] | None
) -> tuple[int, int, dict[str, int]]:
    """Resolve the sizes of a cell's first input and first state, and of its other dims. Sizes given
    by ``--dim`` take precedence over ``--hidden`` and ``--inputs``."""
    dims = parse_sizes(dim or [])

    def of(entries: Iterable[Any], otherwise: int) -> int:
        first = next(iter(entries), None)
        if first is None or not first.shape:
            return otherwise
        dim = first.shape[0]
        dim = dim[0][1:] if isinstance(dim[0], tuple) else dim  # columns of a matrix per sample
        return dim_size(dim, dims) if names_in((dim,)) <= dims.keys() else otherwise

    height = of(cell.states or cell.outputs, hidden)
    return of(cell.inputs, height if inputs is None else inputs), height, dims

"""Compare a cell with a plain Python loop: agreement, then speed."""

from __future__ import annotations

from typing import Annotated

import torch
import typer
from rich.console import Console

from elman.cell_files import find_formula
from elman.cli._options import (
    ENGINE,
    Batch,
    CellName,
    Dims,
    DTypeOption,
    Engine,
    Heads,
    Hidden,
    Inputs,
    Steps,
    Training,
    resolve_sizes,
)
from elman.cli._terminal import say
from elman.frontend.cell import Cell
from elman.measuring.measure import measure

EXAMPLES = (
    "elman bench gru --steps 100 --batch 32 --hidden 128",
    "elman bench mine.py:cell --dim H=128,I=64",
    "elman bench mine.py:MyModule --inputs 64 --hidden 128",
)


def bench(
    cell: CellName,
    steps: Steps = 100,
    batch: Batch = 32,
    hidden: Hidden = 128,
    inputs: Inputs = None,
    heads: Heads = 1,
    dim: Dims = None,
    dtype: DTypeOption = "float32",
    engine: Engine = "auto",
    training: Training = True,
    threads: Annotated[
        int | None,
        typer.Option(help="Threads; torch's number by default.", min=1, rich_help_panel=ENGINE),
    ] = None,
    seconds: Annotated[
        float, typer.Option(help="Seconds of timing.", min=0, rich_help_panel=ENGINE)
    ] = 2.0,
) -> None:
    """Compare a cell with a plain Python loop: agreement, then speed.

    The loop runs the cell's formula step by step in torch's operators. All outputs and gradients
    must agree before both are timed in alternating rounds. Of file.py:MyModule, a torch module of
    one step or its class, it is the module's own loop.

    The command imports your file, so keep a training loop under `if __name__ == "__main__":`.
    """
    formula = find_formula(cell)
    if isinstance(formula, Cell):
        input_size, hidden_size, dims = resolve_sizes(formula, hidden, inputs, dim)
        dims["heads"] = heads
    elif heads > 1 or dim:
        raise typer.BadParameter("a step module has no --heads and no --dim")
    else:
        input_size, hidden_size, dims = inputs, hidden, {}
    if threads is not None:
        torch.set_num_threads(threads)
    result = measure(
        formula,
        input_size,
        hidden_size,
        steps=steps,
        batch=batch,
        dtype=dtype,
        training=training,
        engine=engine,
        seconds=seconds,
        **dims,
    )
    say(Console(), str(result))

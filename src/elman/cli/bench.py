"""Measure a cell beside its plain loop."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console

from elman.cell_files import find_cell
from elman.cli._options import (
    CellName,
    Dims,
    DType,
    DTypeOption,
    Engine,
    Hidden,
    Inputs,
    Training,
    sized,
)
from elman.cli._terminal import say
from elman.measuring.process import MeasureRequest, measure_in_process


def bench(
    cell: CellName,
    steps: Annotated[int, typer.Option(help="Steps of a sequence, T.", min=1)] = 100,
    batch: Annotated[int, typer.Option(help="Samples of a batch, B.", min=1)] = 32,
    hidden: Hidden = 128,
    inputs: Inputs = None,
    dim: Dims = None,
    dtype: DTypeOption = DType.FLOAT32,
    engine: Engine = "auto",
    training: Training = True,
    threads: Annotated[
        int | None, typer.Option(help="Threads; torch's number by default.", min=1)
    ] = None,
    seconds: Annotated[float, typer.Option(help="Seconds of timing.", min=0)] = 2.0,
) -> None:
    """Measure a cell beside its plain loop.

    The loop is the cell's formula, step by step, in torch's operations. Both agree first, in
    every output and gradient; then they are timed in alternating rounds, in a process of its own.
    """
    request = MeasureRequest(
        cell,
        *sized(find_cell(cell), hidden, inputs, dim),
        *(steps, batch, str(dtype), training, engine, seconds, threads),
    )
    say(Console(), str(measure_in_process(request)))

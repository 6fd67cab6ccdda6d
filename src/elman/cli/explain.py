"""Show every stage of a cell: formula, steps, program, engines, memory and work."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import torch
import typer
from rich.console import Console

from elman.cli._options import sized
from elman.nn.explain import explain as explained
from elman.plan.spec import OPTIMIZATIONS
from elman.train.layers import find_cell

PIPED_WIDTH = 160


class Tape(StrEnum):
    """How much the forward keeps for the backward."""

    SAVE = "save"
    AUTO = "auto"
    RECOMPUTE = "recompute"


class DType(StrEnum):
    """Of the computation."""

    FLOAT32 = "float32"
    FLOAT64 = "float64"
    BFLOAT16 = "bfloat16"


class Device(StrEnum):
    """Where a cell is to run; ROCm's GPUs go by torch's name of them, cuda."""

    CPU = "cpu"
    CUDA = "cuda"


def measurable(device: Device) -> str:
    """The name of a device on which kernels can be timed.

    Raises:
        BadParameter: it is not here.
    """
    if device is Device.CUDA and not torch.cuda.is_available():
        raise typer.BadParameter("torch can use no GPU here", param_hint="--device")
    return str(device)


def explain(
    cell: Annotated[str, typer.Argument(help="gru, lstm, another cell, or file.py:cell.")],
    hidden: Annotated[int, typer.Option(help="Units: the first state's size.")] = 128,
    inputs: Annotated[int | None, typer.Option(help="Size of the input; as --hidden.")] = None,
    steps: Annotated[int, typer.Option(help="T.")] = 100,
    batch: Annotated[int, typer.Option(help="B.")] = 16,
    dim: Annotated[list[str] | None, typer.Option(help="Another size of the cell: P=32.")] = None,
    dtype: Annotated[DType, typer.Option(help="Of the computation.")] = DType.FLOAT32,
    device: Annotated[Device, typer.Option(help="Where it is to run.")] = Device.CPU,
    tape: Annotated[Tape, typer.Option(help="What the forward keeps.")] = Tape.AUTO,
    without: Annotated[
        list[str] | None, typer.Option(help=f"Leave out one of {', '.join(OPTIMIZATIONS)}.")
    ] = None,
    engine: Annotated[str, typer.Option(help="auto, or the name of an engine.")] = "auto",
    training: Annotated[bool, typer.Option(help="With a backward.")] = True,
    measure: Annotated[bool, typer.Option(help="Time the engines.")] = True,
    stage: Annotated[
        str | None, typer.Option(help="One of graph, step, backward, program, engines, cost.")
    ] = None,
) -> None:
    """Show every stage of a cell, from its text to the engine that runs it."""
    console = Console()
    if not console.is_terminal:
        console = Console(width=PIPED_WIDTH)
    what = find_cell(cell)
    input_size, hidden_size, dims = sized(what, hidden, inputs, dim)
    found = explained(
        what,
        hidden_size=hidden_size,
        input_size=input_size,
        steps=steps,
        batch=batch,
        dtype=str(dtype),
        device=measurable(device) if measure else str(device),
        tape=str(tape),
        without=without or [],
        engine=engine,
        training=training,
        measure=measure,
        **dims,
    )
    if stage is not None and stage not in found.stages:
        raise typer.BadParameter(f"there are {', '.join(found.stages)}", param_hint="--stage")
    text = str(found) if stage is None else found.stages[stage]
    console.print(text, highlight=False, markup=False, soft_wrap=True)

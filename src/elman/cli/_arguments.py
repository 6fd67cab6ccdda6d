"""Arguments and options that several commands have."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import torch
import typer

CellName = Annotated[str, typer.Argument(help="A cell: gru, lstm, another one, or file.py:cell.")]
CellOfRun = Annotated[
    str | None, typer.Option("--cell", help="file.py:cell, in place of the file that a run names.")
]
TRUST = "Run the file of the cell that a run folder names, which can be anybody's."
Trust = Annotated[bool, typer.Option("--trust", help=TRUST)]
Hidden = Annotated[int, typer.Option(help="Hidden size: units of the cell's first state.")]
Inputs = Annotated[
    int | None, typer.Option(help="Size of the cell's first input; the hidden size by default.")
]
Dims = Annotated[
    list[str] | None, typer.Option(help="Sizes of the cell's other dims: P=32, or H=128,I=64.")
]
Engine = Annotated[str, typer.Option(help="auto, or the name of an engine.")]
Training = Annotated[bool, typer.Option(help="With the backward pass.")]


class Tape(StrEnum):
    """How much the forward keeps for the backward."""

    SAVE = "save"
    AUTO = "auto"
    RECOMPUTE = "recompute"


class DType(StrEnum):
    """Type of inputs, states and weights."""

    FLOAT32 = "float32"
    FLOAT64 = "float64"
    BFLOAT16 = "bfloat16"


class Device(StrEnum):
    """Where a cell is to run; ROCm's GPUs go by torch's name of them, cuda."""

    CPU = "cpu"
    CUDA = "cuda"


TapeOption = Annotated[Tape, typer.Option(help="How much the forward keeps for the backward.")]
DTypeOption = Annotated[DType, typer.Option(help="Type of inputs, states and weights.")]
DeviceOption = Annotated[Device, typer.Option(help="Device to run on.")]


def measurable(device: Device) -> str:
    """The name of a device on which kernels can be timed.

    Raises:
        BadParameter: it is not here.
    """
    if device is Device.CUDA and not torch.cuda.is_available():
        raise typer.BadParameter("torch can use no GPU here", param_hint="--device")
    return str(device)

"""Show every stage of a cell: formula, steps, program, engines, memory and work."""

from __future__ import annotations

from typing import Annotated

import typer

from elman.cell_files import find_cell
from elman.cli._options import (
    CellName,
    Device,
    DeviceOption,
    Dims,
    DType,
    DTypeOption,
    Engine,
    Hidden,
    Inputs,
    Tape,
    TapeOption,
    Training,
    measurable,
    sized,
)
from elman.cli._terminal import say, wide_console
from elman.nn.explain import explain as explained
from elman.plan.spec import OPTIMIZATIONS, PlanOptions


def explain(
    cell: CellName,
    hidden: Hidden = 128,
    inputs: Inputs = None,
    steps: Annotated[int, typer.Option(help="Steps of a sequence, T.")] = 100,
    batch: Annotated[int, typer.Option(help="Samples of a batch, B.")] = 16,
    dim: Dims = None,
    dtype: DTypeOption = DType.FLOAT32,
    device: DeviceOption = Device.CPU,
    tape: TapeOption = Tape.AUTO,
    without: Annotated[
        list[str] | None,
        typer.Option(help=f"Optimization to leave out: {', '.join(OPTIMIZATIONS)}."),
    ] = None,
    engine: Engine = "auto",
    training: Training = True,
    measure: Annotated[
        bool, typer.Option(help="Time the engines, where that is not known yet.")
    ] = True,
    stage: Annotated[
        str | None,
        typer.Option(help="Show one stage alone: graph, step, backward, program, engines or cost."),
    ] = None,
) -> None:
    """Show every stage of a cell, from its text to the engine that runs it."""
    console = wide_console()
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
        plan=PlanOptions(tape.value, without or ()),
        engine=engine,
        training=training,
        measure=measure,
        **dims,
    )
    if stage is not None and stage not in found.stages:
        raise typer.BadParameter(f"there are {', '.join(found.stages)}", param_hint="--stage")
    text = str(found) if stage is None else found.stages[stage]
    say(console, text)

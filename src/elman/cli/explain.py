"""Show which engine runs a cell, its speed and memory, or every stage of compilation."""

from __future__ import annotations

from typing import Annotated

import typer

from elman.cell_files import find_cell
from elman.cli._options import (
    ENGINE,
    OUTPUT,
    Batch,
    CellName,
    DeviceOption,
    Dims,
    DTypeOption,
    Engine,
    Heads,
    Hidden,
    Inputs,
    Steps,
    TapeOption,
    Training,
    check_device,
    resolve_sizes,
)
from elman.cli._terminal import say, wide_console
from elman.explaining import WHY
from elman.nn.inspect import explain as explained
from elman.plan.spec import OPTIMIZATIONS, PlanOptions
from elman.tuning.machine import Waiting, describe_waiting

EXAMPLES = (
    "elman explain gru --hidden 128 --steps 100 --batch 16",
    "elman explain mine.py:cell --dim P=4 --stage backward",
)


def explain(
    cell: CellName,
    hidden: Hidden = 128,
    inputs: Inputs = None,
    steps: Steps = 100,
    batch: Batch = 16,
    heads: Heads = 1,
    dim: Dims = None,
    dtype: DTypeOption = "float32",
    device: DeviceOption = "cpu",
    tape: TapeOption = "auto",
    without: Annotated[
        list[str] | None,
        typer.Option(
            help=f"Leave out an optimization: {', '.join(OPTIMIZATIONS)}.",
            metavar="NAME",
            rich_help_panel=ENGINE,
        ),
    ] = None,
    engine: Engine = "auto",
    training: Training = True,
    measure: Annotated[
        bool,
        typer.Option(
            help="Time the engines if their times are not known yet.", rich_help_panel=ENGINE
        ),
    ] = True,
    stage: Annotated[
        str | None,
        typer.Option(
            help="Show one stage alone: graph, step, backward, program, engines or cost.",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    all_stages: Annotated[
        bool,
        typer.Option(
            "--all",
            help="Show every stage, from the formula to the memory.",
            rich_help_panel=OUTPUT,
        ),
    ] = False,
) -> None:
    """Show which engine runs a cell, its speed and memory, or every stage of compilation.

    With --all the output has every stage, from the formula to the engine that runs it.
    """
    console = wide_console()
    formula = find_cell(cell).with_heads(heads)
    input_size, hidden_size, dims = resolve_sizes(formula, hidden, inputs, dim)
    waiting = Waiting()
    explanation = explained(
        formula,
        hidden_size=hidden_size,
        input_size=input_size,
        steps=steps,
        batch=batch,
        dtype=dtype,
        device=check_device(device) if measure else device,
        plan=PlanOptions(tape, without or ()),
        engine=engine,
        training=training,
        measure=measure,
        **dims,
    )
    if stage is not None and stage not in explanation.stages:
        raise typer.BadParameter(f"there are {', '.join(explanation.stages)}", param_hint="--stage")
    if stage is not None:
        say(console, explanation.stages[stage])
    elif all_stages:
        say(console, explanation.all)
    else:
        engines = explanation.stages["engines"]
        busy = describe_waiting(waiting.share()) if WHY["benchmarked"] in engines else ""
        warning = f"busy    {busy}\n" if busy else ""
        say(console, f"{explanation.title}\n{explanation.summary}\n{warning}\n{engines}\n")
        say(console, "--all shows formula, backward, program and costs, too")

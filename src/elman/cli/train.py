"""Train a model on real data and write a run folder."""

from __future__ import annotations

import dataclasses
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from elman.cli._reporting import report_run
from elman.errors import InputError, rows
from elman.train import text as text_task
from elman.train.config import Config
from elman.train.outcome import Outcome

DEFAULT = Config()
FREE = {"resume", "task", "compare"}  # what may be said beside --resume


class Task(StrEnum):
    """What to train on."""

    TEXT = "text"


def option(help_text: str, **more: Any) -> Any:
    """Describe an option."""
    return typer.Option(help=help_text, **more)


def train(
    context: typer.Context,
    task: Annotated[Task, typer.Argument(help="What to train: a character model.")] = Task.TEXT,
    data: Annotated[
        str | None, option("A text file, or a folder of them; else Python's own sources.")
    ] = DEFAULT.data,
    resume: Annotated[Path | None, option("Go on with this run folder.")] = None,
    out: Annotated[Path, option("Where run folders are made.")] = Path("runs"),
    minutes: Annotated[float, option("Time for everything.")] = DEFAULT.minutes,
    steps: Annotated[int | None, option("Training steps, instead of --minutes.")] = None,
    cell: Annotated[
        str, option("gru, lstm, rnn, another of elman.cells, or file.py:cell.")
    ] = DEFAULT.cell,
    layers: Annotated[int, option("Recurrent layers.")] = DEFAULT.layers,
    hidden: Annotated[int, option("Units per layer.")] = DEFAULT.hidden,
    embedding: Annotated[int, option("Size of a character's vector.")] = DEFAULT.embedding,
    dropout: Annotated[float, option("Share dropped after each layer.")] = DEFAULT.dropout,
    batch: Annotated[int, option("Rows of text side by side.")] = DEFAULT.batch,
    bptt: Annotated[int, option("Characters per step of truncated BPTT.")] = DEFAULT.bptt,
    lr: Annotated[float, option("Highest learning rate.")] = DEFAULT.lr,
    warmup: Annotated[float, option("Share of steps to reach it.")] = DEFAULT.warmup,
    weight_decay: Annotated[float, option("AdamW's.")] = DEFAULT.weight_decay,
    clip: Annotated[float, option("Largest norm of the gradient.")] = DEFAULT.clip,
    seed: Annotated[int, option("Of weights, dropout and sample.")] = DEFAULT.seed,
    validate_every: Annotated[int | None, option("Steps between validations.")] = None,
    checkpoint_every: Annotated[int | None, option("Steps between checkpoints.")] = None,
    log_every: Annotated[int | None, option("Steps between rows of metrics.csv.")] = None,
    validation_chars: Annotated[
        int, option("Characters predicted per validation.")
    ] = DEFAULT.validation_chars,
    engine: Annotated[str, option("An engine of elman's, or auto.")] = DEFAULT.engine,
    precision: Annotated[str, option("32-true, bf16-mixed, 64-true, …")] = DEFAULT.precision,
    accelerator: Annotated[str, option("cpu, cuda or auto.")] = DEFAULT.accelerator,
    devices: Annotated[int, option("Processes, one per device.")] = DEFAULT.devices,
    threads: Annotated[int | None, option("CPU threads per process.")] = None,
    temperature: Annotated[float, option("Of the sample.")] = DEFAULT.temperature,
    tensorboard: Annotated[bool, option("Log for TensorBoard too.")] = DEFAULT.tensorboard,
    compare: Annotated[bool, option("Measure torch.nn beside it.")] = True,
) -> None:
    """Train a model on real data and write a run folder.

    Without arguments: a character model on the sources of Python's standard library, in about
    two minutes.
    """
    console = Console()
    if resume is not None:
        refuse_others(context)
        outcome = text_task.resume(resume, console, comparing=compare)
    else:
        names = {field.name for field in dataclasses.fields(Config)}
        config = Config(**{k: v for k, v in context.params.items() if k in names})
        outcome = text_task.start(config, out, console, comparing=compare)
    finish(outcome, console)


def refuse_others(context: typer.Context) -> None:
    """Raise if options beside --resume would change the run's own configuration."""
    sources = {name: context.get_parameter_source(name) for name in context.params}
    given = [
        "--" + name.replace("_", "-")
        for name, source in sources.items()
        if name not in FREE and source is not None and source.name != "DEFAULT"
    ]
    if given:
        details = [("given", " ".join(given))]
        hint = f"elman train --resume {context.params['resume']}"
        raise InputError(rows("a resumed run keeps its own configuration", details, hint))


def finish(outcome: Outcome, console: Console) -> None:
    """Write the report and say where everything lies; exit as the shell expects."""
    if not outcome.complete:
        raise typer.Exit(128 + (outcome.signal or 0))
    if outcome.first:
        report = report_run(outcome.folder)
        console.print(f"run folder: {outcome.folder.path}", soft_wrap=True, highlight=False)
        console.print(f"report:     {report}", soft_wrap=True, highlight=False)

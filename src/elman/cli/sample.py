"""Generate text from a trained language model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from elman.cli._options import LAST, RUN, CellOfRun, Trust
from elman.cli._terminal import plain
from elman.errors import InputError
from elman.train.run.loading import load
from elman.train.tasks.text.model import TrainedText

TEXT = "Text"
EXAMPLES = (
    'elman sample runs/20260101-120000-text --prompt "def "',
    "elman sample runs/20260101-120000-text --length 1000 --temperature 0.7",
)


def sample(
    run: Annotated[Path, typer.Argument(help="A run folder of a text model.")],
    length: Annotated[
        int | None,
        typer.Option(
            help="Tokens to write; 500 characters or 100 words by default.",
            min=0,
            rich_help_panel=TEXT,
        ),
    ] = None,
    prompt: Annotated[
        str,
        typer.Option(
            help="Text to continue; an empty line by default.",
            show_default=False,
            rich_help_panel=TEXT,
        ),
    ] = "\n",
    temperature: Annotated[
        float | None,
        typer.Option(help="Divisor of the logits; the run's by default.", rich_help_panel=TEXT),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(
            help="Seed of the random numbers; the run's by default.", rich_help_panel=TEXT
        ),
    ] = None,
    last: Annotated[bool, typer.Option("--last", help=LAST, rich_help_panel=RUN)] = False,
    cell: CellOfRun = None,
    trust: Trust = False,
) -> None:
    """Generate text from a trained language model."""
    trained = load(run, weights="last" if last else "best", cell=cell, trust=trust)
    if not isinstance(trained, TrainedText):
        title = "only models of the task text write"
        raise InputError(title, f'elman.load("{run}")', path=run, task=trained.config.TASK)
    text = trained.sample(length, prompt=prompt, temperature=temperature, seed=seed)
    visible = "" if prompt.isspace() else prompt
    between = " " if visible and trained.config.level == "word" else ""
    for line in f"{visible}{between}{text}".split("\n"):
        Console().print(plain(line), soft_wrap=True)

"""Continue a stopped run, bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from elman.cli._options import RUN, CellOfRun, Trust
from elman.cli.train import COMMON, finish
from elman.train.run import run

COMPARE = f"{COMMON['compare'][2]} By default as the run was started."
EXAMPLES = ("elman resume runs/20260101-120000-text",)


def resume(
    folder: Annotated[Path, typer.Argument(help="A run folder.")],
    compare: Annotated[bool | None, typer.Option(help=COMPARE, rich_help_panel=RUN)] = None,
    cell: CellOfRun = None,
    trust: Trust = False,
) -> None:
    """Continue a stopped run, bit for bit."""
    console = Console()
    outcome = run.resume(folder, console, comparing=compare, cell=cell, trust=trust)
    finish(outcome, console)

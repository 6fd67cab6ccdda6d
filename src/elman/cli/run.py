"""Run a program whose torch.nn.RNN, GRU and LSTM are elman's, without a changed line."""

from __future__ import annotations

from typing import Annotated

import typer

from elman_command import names_program, run_program

EXAMPLES = (
    "elman run train.py data.csv",
    "elman run -m package.train data.csv",
)


def run(
    program: Annotated[
        list[str] | None,
        typer.Argument(help="A file, and all that it takes.", metavar="PROGRAM [ARGUMENTS]..."),
    ] = None,
    module: Annotated[
        str | None, typer.Option("-m", help="A module instead of a file.", metavar="MODULE")
    ] = None,
) -> None:
    """Run a program whose torch.nn.RNN, GRU and LSTM are elman's, without a changed line.

    Everything else is as with `python`: arguments, exit status, exceptions. So is every class: the
    program's files, pickles and checkpoints are torch's. At the end three lines on stderr say which
    layers ran on which engines, what was left alone and why, and which functions were replaced.
    """
    words = [*(("-m", module) if module else ()), *(program or ())]
    if not names_program(words):
        raise typer.BadParameter("name a program", param_hint="PROGRAM")
    run_program(words)

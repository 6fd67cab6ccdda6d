"""Train a model on real data and write a run folder."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer
from rich.console import Console

from elman.cli._options import option, set_options
from elman.cli._reporting import report_run
from elman.cli._terminal import epilog, flowing, plain
from elman.errors import InputError
from elman.train.loop.task import Task
from elman.train.run import run
from elman.train.run.outcome import Outcome
from elman.train.run.record import read_record
from elman.train.tasks.registry import TASKS

COMMON = {  # options of every task that are not part of a run's configuration
    "out": (Path, Path("runs"), "Folder in which the run folder is created."),
    "compare": (bool, True, "Time the same model on torch.nn's layers for comparison."),
}
DATA = "Data and task"
PANELS = {  # of the help, by the names of options; all others are in DATA
    "Model": "cell layers hidden heads residual embedding tie uniform",
    "Regularisation": "dropout zoneout recurrent_dropout weight_dropout embedding_dropout noise",
    "Optimisation": "batch bptt epochs lr warmup schedule optimizer momentum nesterov "
    "weight_decay clip on_nonfinite",
    "Run": "seed minutes steps validate_every checkpoint_every log_every tensorboard out compare",
    "Hardware": "engine precision accelerator devices nodes shard average_every timeout threads",
}
PANEL_OF = {name: panel for panel, names in PANELS.items() for name in names.split()}
EXAMPLES = (
    "elman train",
    "elman train --data corpus.txt --cell lstm --hidden 512 --minutes 10",
    "elman train series Worms/ --patch 5",
)
EXAMPLES_OF_TASKS = {
    "text": (
        "elman train text --data corpus.txt --cell lstm --hidden 512 --minutes 10",
        "elman train text --preset small --data ptb/",
        "elman train text --level word --data notes/ --vocabulary 10000",
    ),
    "series": (
        "elman train series Worms/ --patch 5 --epochs 150",
        "elman train series recordings.npz --patch 16 --hidden 96 --noise 0.05",
    ),
    "images": ("elman train images mnist.npz --permute", "elman train images cifar10 --heads 8"),
    "regression": ("elman train regression flows.npz --steps 900 --lr 1e-2",),
}
ABOUT = """Train a model on real data and write a run folder.

Without a task, elman trains a character model on the sources of Python's standard library, in
about two minutes. `elman train series --help` lists the options of the task series.
"""


def parameters(task: Task) -> Iterator[inspect.Parameter]:
    """List a task's arguments and options: the fields of its configuration, and the common ones."""
    kind = inspect.Parameter.KEYWORD_ONLY
    yield inspect.Parameter("context", kind, annotation=typer.Context)
    hints = get_type_hints(task.config)
    described = [
        (f.name, hints[f.name], f.default, f.metadata["about"]) for f in fields(task.config)
    ]
    described += [(name, *details) for name, details in COMMON.items()]
    described.sort(key=lambda entry: entry[0] in PANEL_OF)  # the task's own options come first
    for name, hint, default, about in described:
        if name in task.positional:
            annotation = Annotated[hint, typer.Argument(help=about)]
        else:
            panel = PANEL_OF.get(name, DATA)
            annotation = Annotated[hint, typer.Option(help=about, rich_help_panel=panel)]
        yield inspect.Parameter(name, kind, default=default, annotation=annotation)


def command(task: Task, about: str) -> Callable[..., None]:
    """Make the command of a task."""

    def train(context: typer.Context, **values: Any) -> None:
        if context.invoked_subcommand is not None:
            refuse_early(context)
            return
        console, common = Console(), {name: values.pop(name) for name in COMMON}
        config = task.config.of({n: values[n] for n in set_options(context) if n in values})
        announce(console, "reading the data and building the model …")
        finish(run.start(config, common["out"], console, comparing=common["compare"]), console)

    options = list(parameters(task))
    train.__doc__ = flowing(about)
    train.__dict__["__signature__"] = inspect.Signature(options)
    train.__annotations__ = {parameter.name: parameter.annotation for parameter in options}
    return train


def announce(console: Console, text: str) -> None:
    """Print a line on a terminal, from the first process of a run, before what may take long."""
    if console.is_terminal and os.environ.get("RANK", "0") == "0":
        console.print(plain(text))


def refuse_early(context: typer.Context) -> None:
    """Raise if options stand before the task they are meant for."""
    if misplaced := set_options(context):
        words = " ".join(map(option, misplaced))
        hint = f"elman train {context.invoked_subcommand} {words} …"
        raise InputError("options stand behind the task", hint, given=words)


def finish(outcome: Outcome, console: Console) -> None:
    """Write the report and say where everything lies; exit as the shell expects."""
    if not outcome.complete:
        raise typer.Exit(128 + (outcome.signal or 0))
    if outcome.first:
        report, path = report_run(read_record(outcome.folder)), outcome.folder.path
        use = f"elman sample {path}" if "sample" in outcome.result else f'elman.load("{path}")'
        for name, text in (("run folder:", path), ("report:", report), ("use it:", use)):
            console.print(plain(f"{name:<11} {text}"), soft_wrap=True)


train = typer.Typer(invoke_without_command=True, no_args_is_help=False)
train.callback()(command(TASKS["text"], ABOUT))
for name, task in TASKS.items():
    train.command(name, epilog=epilog(EXAMPLES_OF_TASKS[name]))(command(task, task.about))

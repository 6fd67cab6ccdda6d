"""Finds the commands: one file each, whose first docstring line is the help.

Only the command that is asked for is imported, so that `elman doctor` works where a package
that `elman train` needs is missing, and help comes at once.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from elman.cli._terminal import SignalExit, epilog, exit_on_signals, flowing, print_all
from elman.errors import ElmanError, diagnostic, on_command_line
from elman.escaping import printable
from elman.extras import missing_package
from elman.version import __version__

ABOUT = "Train recurrent networks as fast as the hardware allows."
ROOM = Path(__file__).parent


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit: 0 for success, 1 for an error, 2 for a wrong call, 130 and
    143 where Ctrl-C or a SIGTERM ended it."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    words = [word for word in arguments if not word.startswith("-")]
    run(lambda: build_app(words[0] if words else ""), arguments, "elman")


def run(build: Callable[[], typer.Typer], arguments: Sequence[str], program: str) -> None:
    """Run an application and exit as :func:`main` does.

    Args:
        build: makes the application; what it imports may be missing.
        program: its name in messages.
    """
    print_all()
    try:
        app = build()
        with exit_on_signals(), on_command_line():
            app(list(arguments), prog_name=program)
    except SignalExit as ended:
        Console(stderr=True).print(ended.line, markup=False)
        raise
    except ElmanError as error:
        complain(str(error))
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] == "elman":
            raise
        words = [word for word in arguments if not word.startswith("-")]
        missing = missing_package(error, " ".join((program, *words[:1])))
        details = [("name", error.name)]
        complain(
            str(missing or diagnostic("this command needs a package", details, "elman doctor"))
        )
    except (MemoryError, RuntimeError) as error:
        if not of_memory(error):
            raise
        details = [("said", str(error).partition("\n")[0])]
        hint = "fewer samples at once, shorter sequences or a smaller model"
        complain(diagnostic("there is not enough memory", details, hint))


def run_command(command: Callable[..., Any], program: str) -> None:
    """Run one function as a program of its own, whose arguments are those of this process."""
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(command)
    run(lambda: app, sys.argv[1:], program)


def of_memory(error: Exception) -> bool:
    """Whether an error says that memory, the machine's or a GPU's, does not suffice."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    return "can't allocate memory" in str(error)


def complain(text: str) -> None:
    """Print an error and exit with 1."""
    Console(stderr=True).print(
        Text.assemble(("error:", "bold red"), " ", printable(text)), soft_wrap=True
    )
    raise SystemExit(1)


def build_app(command_name: str) -> typer.Typer:
    """Build the application with the wanted command in full and the others by name."""
    app = typer.Typer(
        help=ABOUT, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False
    )
    app.callback()(root)
    for name, help_line in commands().items():
        if name != command_name:
            app.command(name, help=help_line)(placeholder)
            continue
        command = load(name)
        if isinstance(command, typer.Typer):
            app.add_typer(command, name=name, epilog=examples(name))
        else:
            help_text = flowing(inspect.getdoc(command) or "")
            app.command(name, help=help_text, epilog=examples(name))(command)
    return app


def _print_version(asked: bool) -> None:
    if asked:
        Console().print(f"elman {__version__}", highlight=False)
        raise typer.Exit


def root(
    *,
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            callback=_print_version,
            is_eager=True,
            help="Print the version and exit.",
        ),
    ] = False,
) -> None:
    """Train recurrent networks as fast as the hardware allows."""


def placeholder() -> None:
    """Stand for a command that is not asked for."""


def commands() -> dict[str, str]:
    """List the commands with one line of help, without importing them."""
    files = sorted(path for path in ROOM.glob("[a-z]*.py") if path.stem != "app")
    return {path.stem: help_line(path) for path in files}


def help_line(path: Path) -> str:
    """Return the first line of a file's docstring."""
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return text.partition("\n")[0]


def examples(name: str) -> str:
    """Command lines to copy, from the file of a command."""
    return epilog(importlib.import_module(f"elman.cli.{name}").EXAMPLES)


def load(name: str) -> Callable[..., Any] | typer.Typer:
    """Import a command: the function, or group of functions, in its file that has its name."""
    return getattr(importlib.import_module(f"elman.cli.{name}"), name)

"""Options as a user gave them."""

from __future__ import annotations

import typer


def named(context: typer.Context) -> list[str]:
    """List the options that the user gave."""
    sources = {name: context.get_parameter_source(name) for name in context.params}
    return [n for n, source in sources.items() if source is not None and source.name != "DEFAULT"]


def option(name: str) -> str:
    """Write an option as a user types it."""
    return "--" + name.replace("_", "-")

"""The tasks there are; a new one is one row here and one folder."""

from __future__ import annotations

from typing import Any

from elman.errors import RunError, rows
from elman.train.config import Config
from elman.train.sequences.task import IMAGES, SERIES
from elman.train.task import Task
from elman.train.text.task import TEXT

TASKS = {task.name: task for task in (TEXT, SERIES, IMAGES)}


def task_of(config: Config) -> Task:
    """Find the task of a configuration."""
    return TASKS[config.TASK]


def read_config(stored: dict[str, Any], path: object = "") -> Config:
    """Read a stored configuration of any task.

    Raises:
        RunError: if the task is unknown, or a field is unknown or of the wrong kind.
    """
    name = stored.get("task")
    if not isinstance(name, str) or name not in TASKS:
        details = [("path", str(path)), ("task", repr(name)), ("known", ", ".join(TASKS))]
        raise RunError(rows("the stored configuration is of an unknown task", details))
    return TASKS[name].config.from_json(stored, path)

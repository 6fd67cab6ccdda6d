"""The tasks there are; a new one is one row here and one folder."""

from __future__ import annotations

import reprlib
from typing import Any

from elman.train.loop.config import Config
from elman.train.loop.task import Labels, Task
from elman.train.run.stored import DamageError
from elman.train.tasks.regression.task import REGRESSION
from elman.train.tasks.sequences.task import IMAGES, SERIES
from elman.train.tasks.text.task import TEXT

TASKS = {task.name: task for task in (TEXT, SERIES, IMAGES, REGRESSION)}


def task_of(config: Config) -> Task:
    """Find the task of a configuration."""
    return TASKS[config.TASK]


def labels_of(config: Config) -> Labels:
    """Return how the run of a configuration calls what it counts and measures."""
    return task_of(config).labels(config)


def read_config(stored: dict[str, Any]) -> Config:
    """Read a stored configuration of any task. Raises DamageError: the task is unknown, or a field
    is unknown or of the wrong kind."""
    name = stored.get("task")
    if not isinstance(name, str) or name not in TASKS:
        raise DamageError(f"an unknown task: {reprlib.repr(name)}, not one of {', '.join(TASKS)}")
    return TASKS[name].config.from_json(stored)

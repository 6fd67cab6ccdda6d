"""Progress of training: a bar on a terminal, else a plain line every few seconds."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.text import Text

from elman.escaping import printable
from elman.train.loop.task import Labels

PLAIN_EVERY_S = 10.0


@dataclass
class Display:
    """Displays the progress of a run.

    Attributes:
        console: where to; quiet in all processes but the first.
        labels: names and units of the task.
    """

    console: Console
    labels: Labels
    _bar: Progress | None = field(default=None, init=False)
    _task: TaskID | None = field(default=None, init=False)
    _began: tuple[float, int] = field(default=(0.0, 0), init=False)
    _spoke: float = field(default=0.0, init=False)

    def say(self, text: str) -> None:
        """Print a line (or several) beside the bar."""
        self.console.print(Text(printable(text)), soft_wrap=True)

    def start(self, step: int, total: int) -> None:
        """Begin to show steps `step` … `total`."""
        self._began, self._spoke = (time.monotonic(), step), time.monotonic()
        if not self.console.is_terminal:
            return
        self._bar = Progress(
            TextColumn("step {task.completed}/{task.total}"),
            BarColumn(),
            TextColumn("{task.description}"),
            TimeRemainingColumn(),
            TextColumn("left"),
            console=self.console,
        )
        self._task = self._bar.add_task("", total=total, completed=step)
        self._bar.start()

    def update(self, step: int, total: int, train_loss: float, items_per_s: float) -> None:
        """Show the state after a step."""
        labels = self.labels
        text = f"{train_loss:{labels.form}} {labels.brief}, {items_per_s:,.0f} {labels.items}/s"
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=step, description=text)
            return
        time_s = time.monotonic()
        if time_s - self._spoke < PLAIN_EVERY_S:
            return
        self._spoke = time_s
        began, first = self._began
        remaining_s = (time_s - began) / max(1, step - first) * (total - step)
        self.say(f"step {step}/{total}: {text}, {clock(remaining_s)} left")

    def stop(self) -> None:
        """Remove the bar."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


def clock(seconds: float) -> str:
    """Write a duration as hours, minutes and seconds."""
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes}:{seconds:02d}"

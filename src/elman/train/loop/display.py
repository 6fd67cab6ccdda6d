"""What a person sees while a model trains: a bar on a terminal, else a plain line now and then."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.text import Text

from elman.escaping import printable
from elman.train.loop.task import Words

PLAIN_EVERY_S = 10.0


@dataclass
class Display:
    """Shows how far a run is.

    Attributes:
        console: where to; quiet in all processes but the first.
        words: how the task calls what it counts.
    """

    console: Console
    words: Words
    _bar: Progress | None = field(default=None, init=False)
    _task: TaskID | None = field(default=None, init=False)
    _began: tuple[float, int] = field(default=(0.0, 0), init=False)
    _spoke: float = field(default=0.0, init=False)

    def say(self, text: str) -> None:
        """Print a line (or several) beside the bar."""
        self.console.print(Text(printable(text)), soft_wrap=True)

    def start(self, done: int, total: int) -> None:
        """Begin to show steps `done` … `total`."""
        self._began, self._spoke = (time.monotonic(), done), time.monotonic()
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
        self._task = self._bar.add_task("", total=total, completed=done)
        self._bar.start()

    def update(self, done: int, total: int, train_loss: float, items_per_s: float) -> None:
        """Show the state after a step."""
        words = self.words
        text = f"{train_loss:{words.form}} {words.brief}, {items_per_s:,.0f} {words.items}/s"
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=done, description=text)
            return
        now = time.monotonic()
        if now - self._spoke < PLAIN_EVERY_S:
            return
        self._spoke = now
        began, first = self._began
        left = (now - began) / max(1, done - first) * (total - done)
        self.say(f"step {done}/{total}: {text}, {clock(left)} left")

    def stop(self) -> None:
        """Take the bar away."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


def clock(seconds: float) -> str:
    """Write a duration as hours, minutes and seconds."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"

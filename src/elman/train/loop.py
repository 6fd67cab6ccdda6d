"""The training loop: steps, validations, checkpoints, and a clean end when asked to stop."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import elman.nn
from elman.errors import RunError, diagnostic
from elman.train import checkpoint, snapshot
from elman.train.checkpoint import Checkpoint
from elman.train.config import Config
from elman.train.display import Display
from elman.train.folder import RunFolder
from elman.train.interrupt import Wish
from elman.train.metrics import MetricsFile, Row
from elman.train.schedule import learning_rate
from elman.train.stepper import Stepper
from elman.train.task import Data, Words

CHECKPOINT_S = 60.0  # no more than this is lost, however long the run


@dataclass(frozen=True)
class Tally:
    """Sums of a run so far; part of every checkpoint.

    Attributes:
        step: training steps done.
        seconds: time in training steps, all of them (s).
        loss, norm, since_s: sums since the last row of metrics.csv; losses are scaled.
        count: steps since that row.
        valid_loss: of the last validation; None before the first.
        valid_accuracy, valid_r2: its score, by the task's measure.
        fallbacks: calls since that row that engine deer had to run step by step.
        all_fallbacks: the same since the beginning.
    """

    step: int = 0
    seconds: float = 0.0
    loss: float = 0.0
    norm: float = 0.0
    since_s: float = 0.0
    count: int = 0
    valid_loss: float | None = None
    valid_accuracy: float | None = None
    valid_r2: float | None = None
    fallbacks: int = 0
    all_fallbacks: int = 0

    def add(self, loss: float, norm: float, seconds: float, fallbacks: int) -> Tally:
        """Count one more step."""
        return replace(
            self,
            step=self.step + 1,
            seconds=self.seconds + seconds,
            loss=self.loss + loss,
            norm=self.norm + norm,
            since_s=self.since_s + seconds,
            count=self.count + 1,
            fallbacks=self.fallbacks + fallbacks,
            all_fallbacks=self.all_fallbacks + fallbacks,
        )


@dataclass
class Loop:
    """One run under way in this process; losses are in the unit of the task.

    Attributes:
        words: how the task calls what it counts.
        mine: the rows of each batch that this process trains on.
        observe: called with every row of the metrics (TensorBoard).
        saved: when the last checkpoint was taken (monotonic clock).
        recorded: the choices in it.
    """

    config: Config
    words: Words
    stepper: Stepper
    data: Data
    folder: RunFolder
    metrics: MetricsFile
    display: Display
    mine: slice
    observe: Callable[[Row], None]
    tally: Tally = field(default_factory=Tally)
    saved: float = field(default_factory=time.monotonic)
    recorded: dict[str, Any] = field(default_factory=dict)

    @property
    def steps(self) -> int:
        """Number of all steps, fixed at the start."""
        assert self.config.steps is not None
        return self.config.steps

    @property
    def first(self) -> bool:
        """Whether this process is the one that writes."""
        return self.stepper.fabric.global_rank == 0

    def run(self, wish: Wish) -> bool:
        """Train to the last step, or until somebody wishes to stop.

        Returns:
            Whether all steps are done.

        Raises:
            RunError: if the loss is no longer finite, or the last checkpoint cannot be written.
        """
        if self.tally.step == 0:
            self.save(must=True)
        else:
            self.recorded = self.choices()
        self.display.start(self.tally.step, self.steps)
        try:
            while self.tally.step < self.steps:
                self.step()
                if self.agreed(bool(wish)) and self.tally.step < self.steps:
                    self.save(must=True)
                    return False
        finally:
            self.display.stop()
        return True

    def step(self) -> None:
        """Do one training step and what is due after it."""
        config, before = self.config, self.tally.step
        lr = learning_rate(before, self.steps, config.lr, config.warmup, config.schedule)
        fell = self.fallbacks()
        began = time.perf_counter()
        loss, norm = self.stepper.train(self.data.batch(before, self.mine), lr)
        taken = time.perf_counter() - began
        loss *= self.words.scale
        if not (math.isfinite(loss) and math.isfinite(norm)):
            raise RunError(self.diverged(loss, norm))
        self.tally = self.tally.add(loss, norm, taken, self.fallbacks() - fell)
        told, speed = self.words.of_mean(loss), config.items_per_step / taken
        self.display.update(self.tally.step, self.steps, told, speed)
        last = self.tally.step == self.steps
        validated = last or self.due(config.validate_every)
        if validated:
            self.validate()
        if validated or self.due(config.log_every):
            self.log(lr, validated)
        late = time.monotonic() - self.saved > CHECKPOINT_S
        # What was measured once is used to the end of the run, even if this process is killed now.
        chose = self.choices() != self.recorded
        if last or self.due(config.checkpoint_every) or self.agreed(late or chose):
            self.save(must=last)

    def due(self, every: int | None) -> bool:
        """Whether something that is done every so many steps is due now."""
        return every is not None and self.tally.step % every == 0

    def agreed(self, wished: bool) -> bool:
        """Whether any process wishes something; all processes answer alike."""
        fabric = self.stepper.fabric
        if fabric.world_size == 1:
            return wished
        return fabric.strategy.reduce_boolean_decision(wished, all=False)

    def validate(self) -> None:
        """Measure loss and score on the validation data."""
        found, words = self.stepper.validate(self.data.held_out()), self.words
        loss = words.unit(found.loss)
        self.tally = replace(self.tally, valid_loss=loss, **{words.score.column: found.score})
        self.display.say(
            f"step {self.tally.step}/{self.steps}: validation {words.told(loss)}, "
            f"{words.score.told(found.score)}"
        )

    def log(self, lr: float, validated: bool) -> None:
        """Write a row of metrics and begin the next one."""
        tally, items = self.tally, self.config.items_per_step
        row = Row(
            step=tally.step,
            items=tally.step * items,
            train_loss=self.words.of_mean(tally.loss / tally.count),
            grad_norm=tally.norm / tally.count,
            lr=lr,
            valid_loss=tally.valid_loss if validated else None,
            valid_accuracy=tally.valid_accuracy if validated else None,
            valid_r2=tally.valid_r2 if validated else None,
            items_per_s=items * tally.count / tally.since_s,
            train_seconds=tally.seconds,
            fallbacks=tally.fallbacks,
        )
        self.tally = replace(tally, loss=0.0, norm=0.0, since_s=0.0, count=0, fallbacks=0)
        if not self.first:
            return
        self.observe(row)
        if error := self.metrics.append(row):
            self.display.say(f"metrics.csv not written: {error.strerror}; tried again later")

    def save(self, must: bool) -> None:
        """Write a checkpoint; one that fails on the way costs no run, the last one must succeed.

        Raises:
            RunError: if `must` and the disk does not take it.
        """
        self.saved, self.recorded = time.monotonic(), self.choices()
        tensors, facts = snapshot.capture(self.stepper)
        if not self.first:
            return
        facts |= {"tally": asdict(self.tally), "choices": self.recorded}
        point = Checkpoint(self.tally.step, tensors, facts, self.metrics.text)
        try:
            checkpoint.save(self.folder.checkpoints, point)
        except OSError as error:
            text = diagnostic(
                f"the checkpoint of step {self.tally.step} could not be written",
                [("path", str(self.folder.checkpoints)), ("error", str(error.strerror))],
                hint="make room on the disk; older checkpoints are as they were",
            )
            if must:
                raise RunError(text) from error
            self.display.say(text)

    def fallbacks(self) -> int:
        """Calls in this process that engine deer had to run step by step."""
        return elman.nn.counters(self.stepper.plain).get("fallbacks", 0)

    def choices(self) -> dict[str, Any]:
        """Return which engine and plan each recurrent module uses."""
        return elman.nn.choices(self.stepper.plain)

    def diverged(self, loss: float, norm: float) -> str:
        """Build the message for a loss that is not finite."""
        saved = checkpoint.listed(self.folder.checkpoints)
        return diagnostic(
            f"training diverged at step {self.tally.step + 1}",
            [
                ("loss", f"{self.words.of_mean(loss)} {self.words.loss}, gradient norm {norm}"),
                ("saved", saved[-1].name if saved else "no checkpoint"),
            ],
            hint="a smaller --lr or --clip",
        )

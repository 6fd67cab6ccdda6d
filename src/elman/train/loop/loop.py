"""The training loop: steps, validations, checkpoints, and a clean end when asked to stop.

Ctrl-C asks: finish the step, write a checkpoint, end. A second one ends at once.
"""

from __future__ import annotations

import errno
import math
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from types import FrameType
from typing import Any

import elman.nn
from elman.errors import RunError
from elman.train.distributed.launch import vote
from elman.train.loop.config import Config
from elman.train.loop.display import Display
from elman.train.loop.metrics import MetricsFile, Row, Tally
from elman.train.loop.objective import Score
from elman.train.loop.optimizer import learning_rate
from elman.train.loop.pace import LEAST_STEPS, VALIDATION_SHARE
from elman.train.loop.stepper import Stepper
from elman.train.loop.task import Data, Labels
from elman.train.run import checkpoint, snapshot
from elman.train.run.checkpoint import Best, Checkpoint, Failure, Writer
from elman.train.run.folder import RunFolder


class StopRequest:
    """A request to stop, and the signal that made it; false until there is one."""

    def __init__(self) -> None:
        self.signal: int | None = None

    def __bool__(self) -> bool:
        return self.signal is not None


@contextmanager
def defer_signals() -> Iterator[StopRequest]:
    """Turn SIGINT and SIGTERM into a request to stop during the block (in the main thread only)."""
    request = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield request
        return

    def note(number: int, frame: FrameType | None) -> None:
        earlier = before[signal.Signals(number)]
        if request and callable(earlier):
            earlier(number, frame)
        elif request:
            raise KeyboardInterrupt
        request.signal = number

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


CHECKPOINT_S = 60.0  # no more than this is lost, however long the run
NOISE = 0.1  # of a pace
MOST_SKIPPED = 20  # steps in a row; then the run has diverged
NOTHING = Score(math.inf, -math.inf)  # what any validation is better than


@dataclass
class Loop:
    """One run under way in this process; losses are in the unit of the task.

    Attributes:
        labels: names and units of the task.
        rows: the rows of each batch that this process trains on.
        observe: called with every row of the metrics (TensorBoard).
        saved: when the last checkpoint was taken (monotonic clock).
        recorded: the choices in it.
        checkpoint_due: whether a checkpoint waits until the copies of the model are averaged.
        fell: calls that engine deer had run step by step, in this process so far.
        best: best weights in validation; None before the first.
        unsaved: whether writing them failed.
        end: when the training of a run with a duration should be over (``perf_counter``).
        timed_from: step and seconds of training since which the pace of this process counts.
    """

    config: Config
    labels: Labels
    stepper: Stepper
    data: Data
    folder: RunFolder
    metrics: MetricsFile
    display: Display
    rows: slice
    observe: Callable[[Row], None]
    writer: Writer
    tally: Tally = field(default_factory=Tally)
    saved: float = field(default_factory=time.monotonic)
    recorded: dict[str, Any] = field(default_factory=dict)
    checkpoint_due: bool = False
    fell: int = 0
    best: Best | None = None
    unsaved: bool = False
    end: float = math.inf
    timed_from: tuple[int, float] | None = None

    @property
    def steps(self) -> int:
        """Number of all steps: fixed at the start, but for what :meth:`keep_time` leaves out."""
        assert self.config.steps is not None
        return self.tally.steps or self.config.steps

    @property
    def first(self) -> bool:
        """Whether this process is the one that writes."""
        return self.stepper.fabric.global_rank == 0

    def run(self, request: StopRequest) -> bool:
        """Train to the last step, or until a request to stop.

        Returns:
            Whether all steps are done.

        Raises:
            RunError: if the loss is no longer finite, or the last checkpoint cannot be written.
        """
        if self.tally.step == 0:
            self.save(must=True)
        else:
            self.recorded = self.choices()
        self.fell = self.fallbacks()
        self.display.start(self.tally.step, self.steps)
        try:
            while self.tally.step < self.steps:
                if self.step(request) and self.tally.step < self.steps:
                    self.save(must=True)
                    return False
        finally:
            self.display.stop()
            self.writer.close()
        return True

    def step(self, request: StopRequest) -> bool:
        """Do one training step, and validation, metrics and checkpoint that are due after it.

        Returns:
            Whether all processes stop, because one of them was asked to.
        """
        config, before = self.config, self.tally.step
        lr = learning_rate(before, self.steps, config.lr, config.warmup, config.schedule)
        alone = self.stepper.fabric.world_size == 1
        votes = tuple if alone else partial(self.votes, request)  # sent with the gradients
        began = time.perf_counter()
        loss, norm = self.stepper.train(self.data.batch(before, self.rows), lr, votes)
        step_s = time.perf_counter() - began
        loss *= self.labels.scale
        fell, self.fell = self.fell, self.fallbacks()
        tally = self.tally
        tally.add(step_s, self.fell - fell)
        if math.isfinite(loss) and math.isfinite(norm):
            tally.loss += loss
            tally.norm += norm
            tally.count += 1
            tally.skipped_in_a_row = 0
        else:
            self.skip(loss, norm)
        if averaged := self.due(config.average_every):
            self.stepper.average_copies()
        if self.due(config.log_every):
            self.keep_time()
        mean, speed = self.labels.of_mean(loss), config.items_per_step / step_s
        self.display.update(self.tally.step, self.steps, mean, speed)
        last = self.tally.step == self.steps
        validated = last or self.due(config.validate_every)
        if validated:
            self.validate()
        if self.tally.count and (validated or self.due(config.log_every)):
            self.log(lr, validated)
        chose, late, stop = self.stepper.votes
        if validated or alone:  # as of now, which may be a message
            chose, late, stop = vote(self.stepper.fabric, *self.votes(request))
        # What was measured once is used to the end of the run, even if this process is killed now.
        self.checkpoint_due |= chose or late or self.due(config.checkpoint_every)
        averaged |= validated  # a run is saved, and ends, with the weights of all processes
        if last or (self.checkpoint_due and averaged):
            self.save(must=last, wait=chose)
        return stop and averaged

    def keep_time(self) -> None:
        """Leave out steps that no longer fit into a run's duration, as the machine has other work
        than when a step was timed; take them in again if it is over. The learning rate falls in
        those that there are."""
        tally, planned = self.tally, self.config.steps
        if self.end == math.inf or planned is None or tally.step < LEAST_STEPS:
            return
        if self.timed_from is None:  # engines are chosen before
            self.timed_from = tally.step, tally.seconds
        steps, seconds = tally.step - self.timed_from[0], tally.seconds - self.timed_from[1]
        if steps < LEAST_STEPS:
            return
        left = (self.end - time.perf_counter()) * (1 - VALIDATION_SHARE)
        fits = min(planned, tally.step + max(1, round(left * steps / seconds)))
        if abs(fits - self.steps) > NOISE * self.steps:
            self.display.say(f"{fits} of {planned} steps fit into the time at the present pace")
            tally.steps = fits

    def votes(self, request: StopRequest) -> tuple[bool, bool, bool]:
        """This process's votes: new choices of kernels, a late checkpoint, a request to stop."""
        late = time.monotonic() - self.saved > CHECKPOINT_S
        return self.choices() != self.recorded, late, bool(request)

    def skip(self, loss: float, norm: float) -> None:
        """Go on after a step whose loss or gradient is not finite, if that is asked for. Raises
        RunError: not, or if too many came in a row."""
        tally = self.tally
        tally.skipped += 1
        tally.skipped_in_a_row += 1
        text = f"{self.labels.of_mean(loss)} {self.labels.loss}, gradient norm {norm}"
        if self.config.on_nonfinite == "skip" and tally.skipped_in_a_row <= MOST_SKIPPED:
            self.display.say(f"step {tally.step} skipped: loss {text}")
            return
        self.report(self.writer.wait())
        saved = checkpoint.list_checkpoints(self.folder.checkpoints)
        raise RunError(
            f"training diverged at step {tally.step}",
            "a smaller --lr or --clip, or --on-nonfinite skip",
            loss=text,
            saved=saved[-1].name if saved else "no checkpoint",
        )

    def due(self, interval: int | None) -> bool:
        """Whether an action with an interval in steps is due."""
        return interval is not None and self.tally.step % interval == 0

    def validate(self) -> None:
        """Measure loss and score on the validation data."""
        self.stepper.average_copies()
        score, labels = self.stepper.validate(self.data.held_out()), self.labels
        score = replace(score, loss=labels.unit(score.loss))
        self.tally.valid_loss, self.tally.valid_score = score.loss, score.score
        self.fell = self.fallbacks()
        text = f"step {self.tally.step}/{self.steps}: validation {labels.describe(score)}"
        self.display.say(text)
        self.keep_best(score)

    def keep_best(self, score: Score) -> None:
        """Keep the weights, in memory and on the disk, if they are the best so far."""
        better = self.labels.better(score, self.best.score if self.best else NOTHING)
        if vote(self.stepper.fabric, better)[0]:  # other machines may round otherwise
            weights = snapshot.capture_weights(self.stepper)
            self.best = Best(self.tally.step, score, weights)
            self.save_best()

    def save_best(self) -> None:
        """Write the best weights in the background."""
        if self.first and self.best is not None:
            self.unsaved = False
            self.report(self.writer.begin(self.best.checkpoint(self.metrics.text), best=True))

    def log(self, lr: float, validated: bool) -> None:
        """Write a row of metrics and begin the next one."""
        tally, items = self.tally, self.config.items_per_step
        row = Row(
            step=tally.step,
            items=tally.step * items,
            train_loss=self.labels.of_mean(tally.loss / tally.count),
            grad_norm=tally.norm / tally.count,
            lr=lr,
            valid_loss=tally.valid_loss if validated else None,
            valid_score=tally.valid_score if validated else None,
            items_per_s=items * tally.count / tally.since_s,
            train_seconds=tally.seconds,
            fallbacks=tally.fallbacks,
        )
        tally.start_row()
        if not self.first:
            return
        self.observe(row)
        if error := self.metrics.append(row):
            self.display.say(f"metrics.csv not written: {error.strerror}; tried again later")

    def save(self, must: bool, wait: bool = False) -> None:
        """Write a checkpoint beside the training; one that fails costs no run, the last must not.

        Args:
            must: whether training cannot go on (or end) without it.
            wait: whether it is on the disk before training goes on.

        Raises:
            RunError: if `must` and the disk does not take it.
        """
        self.saved, self.recorded = time.monotonic(), self.choices()
        self.checkpoint_due = False
        tensors, facts = snapshot.capture(self.stepper)
        if not self.first:
            return
        if self.unsaved:
            self.save_best()
        facts |= {"tally": asdict(self.tally), "choices": self.recorded}
        point = Checkpoint(self.tally.step, tensors, facts, self.metrics.text)
        self.report(self.writer.begin(point))
        if not (must or wait):
            return
        failure = self.writer.wait()
        if failure is not None and must:
            raise self.write_error(failure) from failure.error
        self.report(failure)

    def report(self, failure: Failure | None) -> None:
        """Report a checkpoint that could not be written."""
        if failure is not None:
            self.unsaved = self.unsaved or failure.best
            self.display.say(str(self.write_error(failure)))

    def write_error(self, failure: Failure) -> RunError:
        """Build the error for a checkpoint that could not be written."""
        full = failure.error.errno in (errno.ENOSPC, errno.EDQUOT)
        content = "best weights" if failure.best else "checkpoint"
        return RunError(
            f"the {content} of step {failure.step} could not be written",
            f"make {'room on the disk' if full else 'the folder writable'}; older checkpoints are "
            "as they were",
            path=self.folder.checkpoints,
            error=failure.error.strerror,
        )

    def fallbacks(self) -> int:
        """Calls in this process that engine deer had to run step by step."""
        return elman.nn.counters(self.stepper.plain).get("fallbacks", 0)

    def choices(self) -> dict[str, Any]:
        """Return which engine and plan each recurrent module uses."""
        return elman.nn.choices(self.stepper.plain)

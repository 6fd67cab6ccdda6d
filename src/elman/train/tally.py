"""What a run has come to so far, in numbers; part of every checkpoint."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

from elman.train.objective import Score
from elman.train.stored import Count, Range

Seconds = Annotated[float, Range(0, 1e18)]


@dataclass(frozen=True)
class Tally:
    """Sums of a run so far.

    Attributes:
        step: training steps done.
        seconds: time in training steps, all of them (s).
        loss, norm, since_s: sums since the last row of metrics.csv; losses are scaled.
        count: steps since that row, without those that were skipped.
        valid_loss: of the last validation; None before the first.
        valid_accuracy, valid_r2: its score, by the task's measure.
        fallbacks: calls since that row that engine deer had to run step by step.
        all_fallbacks: the same since the beginning.
        skipped: steps that changed nothing, because loss or gradient was not finite.
        skipped_in_a_row: the last of them, if no other came since.
    """

    step: Count = 0
    seconds: Seconds = 0.0
    loss: float = 0.0
    norm: float = 0.0
    since_s: Seconds = 0.0
    count: Count = 0
    valid_loss: float | None = None
    valid_accuracy: float | None = None
    valid_r2: float | None = None
    fallbacks: Count = 0
    all_fallbacks: Count = 0
    skipped: Count = 0
    skipped_in_a_row: Count = 0

    def add(self, seconds: float, fallbacks: int) -> Tally:
        """Count one more step."""
        return replace(
            self,
            step=self.step + 1,
            seconds=self.seconds + seconds,
            since_s=self.since_s + seconds,
            fallbacks=self.fallbacks + fallbacks,
            all_fallbacks=self.all_fallbacks + fallbacks,
        )

    def learned(self, loss: float, norm: float) -> Tally:
        """Count what the step came to."""
        return replace(
            self,
            loss=self.loss + loss,
            norm=self.norm + norm,
            count=self.count + 1,
            skipped_in_a_row=0,
        )

    def validated(self, found: Score, column: str) -> Tally:
        """Note what a validation found.

        Args:
            found: the loss in the unit of the task.
            column: of the score.
        """
        return replace(self, valid_loss=found.loss, **{column: found.score})

    def skip(self) -> Tally:
        """Count the step as one that changed nothing."""
        return replace(self, skipped=self.skipped + 1, skipped_in_a_row=self.skipped_in_a_row + 1)

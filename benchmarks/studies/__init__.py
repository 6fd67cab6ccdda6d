"""Studies: models trained by every engine, and convergence of engine deer's solvers."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import Any

from benchmarks.cases import Case, Effort, Way

CELLS = ("gru_before", "gru")  # the reset gate before and after the recurrent product
EQUAL_LAYERS = 10  # whose parameters stacks of other depths have, too
TARGET = 3.0  # bits per character: above a trigram's, far below the alphabet's
WINDOW, STEP_SIZE = 512.0, 0.5  # samples that momentum remembers; learning rate per sample
STEP_SIZES = tuple(2.0**n for n in range(-3, 3))  # of which the best is chosen


@dataclass(frozen=True)
class _Late:
    """A function of ``learning``, which is imported when it is called: no process that measures
    another case pays for the import of the trainer."""

    name: str

    def __call__(self, case: Case, effort: Effort) -> dict[str, Any]:
        learning = import_module("benchmarks.studies.learning")
        return getattr(learning, f"measure_{self.name}")(case, effort)


CHARACTERS, PERPLEXITIES, RESIDUAL, SAMPLES, LEARNING = (
    Way(name, _Late(name))
    for name in ("characters", "perplexities", "residual", "samples", "learning")
)

"""The weights that did best in validation: a folder beside the checkpoints, of the same files.

What lies there is what a run knows of its best, so that one that goes on after a kill knows no more
and no less than what can be loaded.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

from torch import Tensor

from elman.errors import RunError
from elman.train.atomic import remove_folder
from elman.train.checkpoint import Checkpoint, damaged, read, written
from elman.train.objective import Score
from elman.train.stored import DamageError, filled

NAME = "best"


@dataclass(frozen=True)
class Best:
    """What did best so far.

    Attributes:
        step: training steps that the weights have seen.
        found: in validation; the loss in the unit of the task.
        weights: of the model, whole, on the CPU, as in a checkpoint.
    """

    step: int
    found: Score
    weights: dict[str, Tensor]

    def checkpoint(self, metrics: str) -> Checkpoint:
        """As it is stored.

        Args:
            metrics: the text of metrics.csv.
        """
        return Checkpoint(self.step, self.weights, asdict(self.found), metrics)


def save_best(folder: Path, checkpoint: Checkpoint) -> Path:
    """Write what did best below `folder`, and then remove what did before.

    Raises:
        OSError: if it cannot be written, as on a full disk; the one before stays.
    """
    path = written(folder, NAME, checkpoint)
    for old in _listed(folder):
        if old != path:
            remove_folder(old)
    return path


def read_best(folder: Path) -> Checkpoint | None:
    """Read what did best; None if there has been no validation, or an older elman trained. Another
    process may be writing a better one.

    Raises:
        RunError: it is damaged.
    """
    while found := _listed(folder):
        try:
            return read(found[-1])
        except RunError:
            if found[-1].exists():
                raise
    return None


def best_of(folder: Path) -> Best | None:
    """Read what a run knows of its best.

    Raises:
        RunError: it is damaged.
    """
    point = read_best(folder)
    if point is None:
        return None
    try:
        return Best(point.step, filled(Score, point.facts), point.tensors)
    except DamageError as error:
        raise damaged(_listed(folder)[-1], "facts", str(error)) from error


def _listed(folder: Path) -> list[Path]:
    """A killed process may have left two; the later did better."""
    return sorted(path for path in folder.glob(f"{NAME}-*") if path.is_dir())

"""Objectives: the loss that training minimises, and the score of a validation."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

CONSTANT = 1e-12  # share of the mean square below which targets do not vary


@dataclass(frozen=True)
class Measure:
    """A score of predictions; more is better.

    Attributes:
        title: for people, before its value ("accuracy").
        axis: label of a plot's axis.
        form: how its values are written.
        limits: ends of its axis in a plot; None lets the values decide.
    """

    title: str
    axis: str
    form: str
    limits: tuple[float, float] | None = None

    def text(self, value: float | None) -> str:
        """Write a value behind the score's name; where there is none, say so."""
        return f"{self.title} " + ("unknown" if value is None else format(value, self.form))


@dataclass(frozen=True)
class Objective:
    """Loss and score of a task; targets are of any dtype and shape.

    Attributes:
        loss: mean over all targets of a batch that are no NaN, [], from the model's outputs and
            the targets.
        sums: sufficient statistics of the score, float64; added over batches.
        score: from these sums; None where it is not defined.
        inside: whether the model computes the loss itself when it is given the targets: the
            read-out and the loss can be one operation then.
    """

    loss: Callable[[Tensor, Tensor], Tensor]
    sums: Callable[[Tensor, Tensor], Tensor]
    score: Callable[[Tensor], float | None]
    inside: bool = False


@dataclass(frozen=True)
class Score:
    """Result of a validation: the objective's loss, and its score where that is defined."""

    loss: float
    score: float | None


def evaluate(objective: Objective, pairs: Iterable[tuple[Tensor, Tensor]]) -> Score:
    """Return mean loss and score over pairs of a model's outputs and targets."""
    total, count, sums = 0.0, 0, torch.zeros((), dtype=torch.float64)
    for outputs, targets in pairs:
        known = targets.numel() - int(targets.isnan().sum())
        total += objective.loss(outputs, targets).item() * known
        sums = sums + objective.sums(outputs, targets).cpu()
        count += known
    return Score(total / max(1, count), objective.score(sums))


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the mean of -ln P(target), [] from logits [..., C] and targets [...]."""
    return functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), targets.flatten())


def hits(logits: Tensor, targets: Tensor) -> Tensor:
    """Count [2] right predictions, and all: of logits [..., C] and targets [...]."""
    right = (logits.argmax(-1) == targets).sum()
    return torch.stack((right, right.new_tensor(targets.numel()))).double()


def share(sums: Tensor) -> float:
    """Return the accuracy from what `hits` counted."""
    right, count = sums.tolist()
    return right / count


def squared_error(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the mean of (output - target)², [] from two tensors [..., O]; targets that are NaN are
    missing, and a mean of none is 0."""
    missing = targets.isnan()
    squares = (outputs - targets).masked_fill(missing, 0.0).square()
    return squares.sum() / (~missing).sum().clamp(min=1)


def moments(outputs: Tensor, targets: Tensor) -> Tensor:
    """Sum [4, O] over two tensors [..., O]: ones, squared errors, targets, squared targets; what is
    missing (NaN) counts nowhere."""
    right = targets.double().reshape(-1, targets.shape[-1])
    missing = right.isnan()
    errors = (outputs.double().reshape(right.shape) - right).masked_fill(missing, 0.0)
    right, counts = right.masked_fill(missing, 0.0), (~missing).sum(0).double()
    return torch.stack((counts, errors.square().sum(0), right.sum(0), right.square().sum(0)))


def r_squared(sums: Tensor) -> float | None:
    """Return R² = 1 - Σ (output - target)² / Σ (target - its mean)², all outputs together.

    Args:
        sums: of `moments`.

    Returns:
        None if the targets do not vary.
    """
    count, errors, total, squares = sums
    around = (squares - total.square() / count.clamp(min=1)).clamp(min=0)
    if float(around.sum()) <= CONSTANT * float(squares.sum()):
        return None
    return 1 - float(errors.sum() / around.sum())


ACCURACY = Measure("accuracy", "share predicted right", ".1%", (0, 1))
R2 = Measure("R²", "R²", ".3f")
CLASSES = Objective(cross_entropy, hits, share)
SQUARES = Objective(squared_error, moments, r_squared)

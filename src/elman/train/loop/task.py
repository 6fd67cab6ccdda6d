"""Interface of a task to the trainer: names and units, data in batches, a model, results."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, Self

from torch import Tensor, nn

from elman.errors import InputError
from elman.train.loop.config import Config
from elman.train.loop.objective import Measure, Objective, Score


@dataclass(frozen=True)
class Trained:
    """A trained model with its configuration and specification.

    Attributes:
        path: the run folder.
        config: of the run.
        step: training steps that the weights have seen.
        model: in evaluation mode, on the CPU: ``outputs, state = model(inputs, state)``.
        spec: properties of the data that the model is built from, of its task.
    """

    path: Path
    config: Any
    step: int
    model: nn.Module
    spec: Any

    @property
    def layers(self) -> nn.Module:
        """The recurrent layers: ``out, state = layers(x, state)``."""
        model: Any = self.model
        return model.layers

    @property
    def weight(self) -> Tensor:
        """A parameter, for the model's device and dtype."""
        return next(self.model.parameters())

    def as_module(self) -> WholeModel:
        """Return the whole model, for exports.

        Raises:
            InputError: it reads what no export takes.
        """
        raise InputError(f"a run of {self.config.TASK} exports its layers alone")


class WholeModel(nn.Module, ABC):
    """A trained model as a program takes it: samples first, values in the unit of the data.

    Args:
        run: whose model it is.
    """

    def __init__(self, run: Trained) -> None:
        super().__init__()
        self.model: Any = run.model

    @abstractmethod
    def example(self, inputs: Any) -> Tensor:
        """The input that is the same as the model's own input."""

    @abstractmethod
    def random(self) -> Tensor:
        """Some input: of export, where only its shape counts."""


@dataclass(frozen=True)
class Pairs:
    """Held-out values beside their predictions, as a report plots them.

    Attributes:
        name: which they are.
        true, predicted: as many of each; None is missing.
        over_time: whether they are the steps of one sequence.
    """

    name: str
    true: list[float | None]
    predicted: list[float | None]
    over_time: bool

    def __post_init__(self) -> None:
        if len(self.true) != len(self.predicted) or not self.true:
            raise ValueError(f"{len(self.predicted)} predictions of {len(self.true)} targets")


@dataclass(frozen=True)
class Labels:
    """Names and units of the items, the loss and the score of a task.

    Attributes:
        items: consumed by a step ("characters").
        loss: the unit of the loss ("bits per character"); `brief` on a narrow line.
        scale: from the objective's loss to that unit.
        headline: which is shown first, "loss" or "score".
        score: of a validation.
        form: how a loss is written.
        of_mean: from a mean of scaled losses to the displayed value, if not proportional.
    """

    items: str
    loss: str
    brief: str
    scale: float
    headline: str
    score: Measure
    form: str = ".3f"
    of_mean: Callable[[float], float] = float

    def unit(self, loss: float) -> float:
        """Convert the objective's mean loss into the unit that is shown."""
        return self.of_mean(self.scale * loss)

    def with_unit(self, loss: float) -> str:
        """Write a loss with its unit."""
        return f"{loss:{self.form}} {self.loss}"

    def describe(self, score: Score) -> str:
        """Format a score; its loss is in the unit of the task."""
        return f"{self.with_unit(score.loss)}, {self.score.text(score.score)}"

    def better(self, score: Score, reference: Score | Baseline) -> bool:
        """Whether a model is better than another: by the headline, or by the loss where a score is
        not known. A loss that is not a number is never better."""
        if self.headline == "score" and score.score is not None and reference.score is not None:
            return math.isfinite(score.loss) and score.score > reference.score
        return score.loss < reference.loss


@dataclass(frozen=True)
class Batch:
    """A batch.

    Attributes:
        inputs: the model's first argument, a tensor or a tuple of tensors.
        targets: for the objective: of classifiers the right classes,
            int64, shaped as the logits without their last axis.
        resets_state: whether the state carried over from the batch before is dropped.
    """

    inputs: Any
    targets: Tensor
    resets_state: bool


def predictions(model: nn.Module, batches: Iterable[Batch]) -> Iterator[tuple[Tensor, Tensor]]:
    """Walk through batches with the state carried on; outputs and targets of each, where the model
    is."""
    weight, state = next(model.parameters()), None
    for batch in batches:
        inputs = move_inputs(batch.inputs, weight)
        outputs, state = model(inputs, None if batch.resets_state else state)
        yield outputs, batch.targets.to(weight.device)


def move_inputs(inputs: Any, weight: Tensor) -> Any:
    """Put a model's inputs where a weight of it is; numbers that are not counts get its dtype."""
    if isinstance(inputs, tuple):
        return tuple(move_inputs(part, weight) for part in inputs)
    return inputs.to(weight.device, weight.dtype if inputs.is_floating_point() else None)


@dataclass(frozen=True)
class Baseline:
    """Loss and score of a predictor without a network, which a model has to beat.

    Attributes:
        name: of the predictor.
        loss: in the task's unit.
        score: by the task's measure, if known.
    """

    name: str
    loss: float
    score: float | None = None


class Data(Protocol):
    """A data set, laid out for one configuration."""

    @property
    def digest(self) -> str:
        """Hash of all that is trained and validated on."""
        ...

    @property
    def size(self) -> str:
        """Size of the data as text."""
        ...

    def about(self) -> str:
        """Describe the data in one line."""
        ...

    def facts(self) -> dict[str, Any]:
        """Facts for the report, JSON-able."""
        ...

    @property
    def spec(self) -> Any:
        """Properties of the data that a model is built from: `Task.spec`."""
        ...

    def baseline(self) -> Baseline:
        """Evaluate a predictor without a network on the held-out data."""
        ...

    def steps(self) -> int | None:
        """Steps that the configuration asks for in other words (epochs); None if it does not."""
        ...

    def validating(self, config: Any) -> Self:
        """Return the data with the validation part of another configuration."""
        ...

    def batch(self, step: int, rows: slice) -> Batch:
        """The given rows of the batch of a step: a function of its number, so a resume is exact."""
        ...

    def held_out(self) -> Iterator[Batch]:
        """Walk through the validation part."""
        ...


@dataclass(frozen=True)
class Task:
    """One kind of training.

    Attributes:
        about: one line for the help.
        labels: of a configuration: how it calls what it counts and measures.
        objective: what training minimises, and what is scored.
        config: the class of its configurations; its TASK is the task's name.
        positional: options that are given without a name on the command line.
        prepare: reads the data of a configuration.
        build: the model, of a configuration and a spec; with `baseline=True` the same on torch.nn's
            recurrent layers. Called as ``outputs, state = model(inputs, state)``;
            with targets behind the state where the objective is ``inside``.
        conclude: looks at a trained model (evaluation mode, no gradients): what else belongs
            into result.json. "sample" is a text, "table" a table for people, "shown" a list
            of `Pairs`; "valid_loss" and "valid_score" take the place
            of the last validation's.
        spec: a dataclass that JSON can hold, which a run folder keeps so that its model can be
            built without the data.
        trained: type of the result of `elman.load`.
    """

    about: str
    labels: Callable[[Any], Labels]
    objective: Objective
    config: type[Config]
    prepare: Callable[[Any], Data]
    build: Callable[..., nn.Module]
    conclude: Callable[[nn.Module, Any, Any], dict[str, Any]]
    spec: type[Any]
    trained: type[Trained] = Trained
    positional: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Name on the command line."""
        return self.config.TASK

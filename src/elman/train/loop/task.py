"""What a task is to the trainer: words, data in batches, a model, and what a run shows."""

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Protocol, Self

from torch import Tensor, nn

from elman.train.loop.config import Config
from elman.train.loop.objective import Measure, Objective, Score
from elman.train.run.stored import Range, Share


@dataclass(frozen=True)
class Trained:
    """A trained model with what one needs to use it.

    Attributes:
        path: the run folder.
        config: of the run.
        step: training steps that the weights have seen.
        model: in evaluation mode, on the CPU: ``outputs, state = model(inputs, state)``.
        spec: what the model is built from besides the configuration; of its task.
    """

    path: Path
    config: Any
    step: int
    model: nn.Module
    spec: Any

    @property
    def layers(self) -> nn.Module:
        """The recurrent layers: ``out, state = layers(x, state)``."""
        found: Any = self.model
        return found.layers

    @property
    def weight(self) -> Tensor:
        """A parameter, for the model's device and dtype."""
        return next(self.model.parameters())


@dataclass(frozen=True)
class Sizes:
    """What a model without a vocabulary, classes or units is built from.

    Attributes:
        inputs: I, values per step.
        outputs: O, values per target.
        per_step: whether there is a target per step.
    """

    inputs: int
    outputs: int
    per_step: bool


Size = Annotated[int, Range(1, 1 << 16)]


@dataclass(frozen=True)
class Traces:
    """One output of a held-out sequence over its steps.

    Attributes:
        name: which output of which sequence.
        true_steps, predicted_steps: a value per step.
    """

    name: str
    true_steps: list[float]
    predicted_steps: list[float]

    def __post_init__(self) -> None:
        of_one_length(self.true_steps, self.predicted_steps)


@dataclass(frozen=True)
class Points:
    """One output of several held-out sequences.

    Attributes:
        name: which output.
        true, predicted: a value per sequence.
    """

    name: str
    true: list[float]
    predicted: list[float]

    def __post_init__(self) -> None:
        of_one_length(self.true, self.predicted)


@dataclass(frozen=True)
class Frames:
    """Images over the steps of a held-out sequence.

    Attributes:
        name: which sequence.
        height, width: of each image.
        true_pixels, predicted_pixels: grey values, a byte each, of all images; base64.
    """

    name: str
    height: Size
    width: Size
    true_pixels: str
    predicted_pixels: str

    def __post_init__(self) -> None:
        sizes = [len(unpacked(text)) for text in (self.true_pixels, self.predicted_pixels)]
        if sizes[0] != sizes[1] or not sizes[0] or sizes[0] % (self.height * self.width):
            raise ValueError(f"{sizes} pixels are not images of {self.height} x {self.width}")


def of_one_length(true: list[float], predicted: list[float]) -> None:
    """Raise ValueError unless there are as many predictions as targets, one or more."""
    if len(true) != len(predicted) or not true:
        raise ValueError(f"{len(predicted)} predictions of {len(true)} targets")


def packed(pixels: bytes) -> str:
    """Write bytes as JSON can hold them."""
    return base64.b64encode(pixels).decode("ascii")


def unpacked(text: str) -> bytes:
    """Read what `packed` wrote. Raises ValueError: it is something else."""
    return base64.b64decode(text, validate=True)


@dataclass(frozen=True)
class Words:
    """How a task calls what it counts and measures.

    Attributes:
        items: what a step consumes ("characters").
        loss: the unit of the loss ("bits per character"); `brief` on a narrow line.
        scale: from the objective's loss to that unit.
        headline: which is shown first, "loss" or "score".
        score: what is scored in validation.
        form: how a loss is written.
        of_mean: from a mean of scaled losses to what is shown, where that is not a multiple of it.
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

    def in_words(self, found: Score) -> str:
        """Write what a validation found; its loss is in the unit that is told."""
        return f"{self.with_unit(found.loss)}, {self.score.text(found.score)}"

    def better(self, found: Score, other: Score) -> bool:
        """Whether a model is better than another: by the headline, or by the loss where a score is
        not known. A loss that is not a number is never better."""
        if self.headline == "score" and found.score is not None and other.score is not None:
            return math.isfinite(found.loss) and found.score > other.score
        return found.loss < other.loss


@dataclass(frozen=True)
class Batch:
    """What a model reads at once.

    Attributes:
        inputs: the model's first argument, a tensor or a tuple of tensors.
        targets: what the objective compares the outputs with: of classifiers the right classes,
            int64, shaped as the logits without their last axis.
        begins: whether the state carried over from the batch before is dropped.
    """

    inputs: Any
    targets: Tensor
    begins: bool


@dataclass(frozen=True)
class Baseline:
    """What a model has to beat.

    Attributes:
        name: what it does.
        loss: in the task's unit.
        accuracy, r2: its score by the task's measure, if known.
    """

    name: str
    loss: float
    accuracy: Share | None = None
    r2: float | None = None

    def score(self, measure: Measure) -> float | None:
        """Return its score by a measure, None if that is not known."""
        return getattr(self, measure.name)

    def found(self, measure: Measure) -> Score:
        """Return what a validation of it would find."""
        return Score(self.loss, self.score(measure))


class Data(Protocol):
    """A data set, laid out for one configuration."""

    @property
    def digest(self) -> str:
        """Hash of all that is trained and validated on."""
        ...

    @property
    def size(self) -> str:
        """How much there is, in words."""
        ...

    def about(self) -> str:
        """Say in one line what the data are."""
        ...

    def facts(self) -> dict[str, Any]:
        """What a report tells, JSON-able."""
        ...

    def spec(self) -> Any:
        """What a model of these data is built from besides the configuration: `Task.spec`."""
        ...

    def baseline(self) -> Baseline:
        """What predicts held-out data without a network."""
        ...

    def steps(self) -> int | None:
        """Steps that the configuration asks for in other words (epochs); None if it does not."""
        ...

    def validating(self, config: Any) -> Self:
        """The same data with the validation part of another configuration."""
        ...

    def batch(self, step: int, mine: slice) -> Batch:
        """Rows `mine` of the batch of a step: a function of its number, so a resume is exact."""
        ...

    def held_out(self) -> Iterator[Batch]:
        """Walk through the validation part."""
        ...


@dataclass(frozen=True)
class Task:
    """One kind of training.

    Attributes:
        about: one line for the help.
        words: of a configuration: how it calls what it counts and measures.
        objective: what training minimises, and what is scored.
        config: the class of its configurations; its TASK is the task's name.
        positional: options that are given without a name on the command line.
        prepare: reads the data of a configuration.
        build: the model, of a configuration and data or their spec; with `baseline=True` the same
            on torch.nn's recurrent layers. Called as ``outputs, state = model(inputs, state)``;
            with targets behind the state where the objective is ``inside``.
        conclude: looks at a trained model (evaluation mode, no gradients): what else belongs
            into result.json. "sample" is a text, "table" a table for people, "shown" predictions
            beside their targets (`shown.py`); "valid_loss" and the score's column take the place
            of the last validation's.
        spec: a dataclass that JSON can hold, which a run folder keeps so that its model can be
            built without the data.
        trained: what `elman.load` makes of a run of it.
    """

    about: str
    words: Callable[[Any], Words]
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
        """What a user types."""
        return self.config.TASK

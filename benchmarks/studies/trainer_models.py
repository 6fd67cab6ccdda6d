"""Models of the trainer under way beside each other, one step at a time."""

from __future__ import annotations

import math
import os
import time
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from lightning_fabric import Fabric
from torch import Tensor, nn

from benchmarks.cases import NoDataError, TrainedCase
from benchmarks.contestants import BUILT_IN, MODULES
from benchmarks.peers.loops import looped
from benchmarks.peers.published import STEPS
from elman.train.distributed.launch import launch, rows_of
from elman.train.loop.config import Config
from elman.train.loop.optimizer import learning_rate
from elman.train.loop.stepper import Stepper, make_stepper
from elman.train.loop.task import Data, Task
from elman.train.tasks.registry import task_of, words_of
from elman.train.tasks.sequences.config import ImagesConfig, SequenceConfig, SeriesConfig


@dataclass(frozen=True)
class Study:
    """What is learned, and how.

    Attributes:
        config: the class of its configurations.
        variable: of the environment; it names the file of the data.
        content: what that file holds.
        options: of the configuration, beside the sizes that a case gives.
    """

    config: type[SequenceConfig]
    variable: str
    content: str
    options: dict[str, Any]


STUDIES = {
    "pixels": Study(
        ImagesConfig,
        "ELMAN_BENCH_IMAGES",
        "an .npz with x_train, y_train, x_test, y_test: images uint8 [N, H, W, C], as of CIFAR-10",
        {"lr": 4e-3, "validation_sequences": 500},
    ),
    "speech": Study(
        SeriesConfig,
        "ELMAN_BENCH_AUDIO",
        "an .npz with audio_train, length_train, digit_train, speaker_train, and the same of test",
        {"lr": 1e-2, "by": "group"},
    ),
}


def config_of(case: TrainedCase) -> SequenceConfig:
    """The run of a case of the trainer's.

    Raises:
        NoDataError: nobody has named the file of its data.
    """
    study = STUDIES[case.kind]
    named = os.environ.get(study.variable)
    if not named:
        raise NoDataError(f"no data: set {study.variable} to {study.content}")
    joined = {"join": case.T} if study.config is SeriesConfig else {}
    return study.config(
        data=named,
        cell=case.cell,
        layers=case.layers,
        hidden=case.H,
        heads=case.heads,
        batch=case.B,
        steps=case.steps,
        residual=True,
        dropout=0.0,
        engine="c",
        threads=case.threads,
        accelerator="cpu",
        **joined,
        **study.options,
    )


@dataclass
class Learner:
    """A model that is trained with random numbers of its own, whoever is trained in between.

    Attributes:
        losses: of the steps done, each before its update; in the task's unit.
        seconds: that each of them took (s).
        scores: of the validations: step, loss, score.
    """

    config: Config
    task: Task
    data: Data
    stepper: Stepper
    random: Tensor
    losses: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    scores: list[tuple[int, float, float | None]] = field(default_factory=list)

    def step(self) -> None:
        """Do one training step."""
        config, index = self.config, len(self.losses)
        assert config.steps is not None, "a study has a number of steps"
        lr = learning_rate(index, config.steps, config.peak_lr, config.warmup, config.schedule)
        batch = self.data.batch(index, rows_of(self.stepper.fabric, config.batch))
        with torch.random.fork_rng(devices=[]):
            torch.set_rng_state(self.random)
            began = time.perf_counter()
            loss, _ = self.stepper.train(batch, lr)
            self.seconds.append(time.perf_counter() - began)
            self.random = torch.get_rng_state()
        self.losses.append(words_of(config).unit(loss))

    def learn(self, every: int) -> None:
        """Do all steps that are left, validating after every so many of them and the last."""
        assert self.config.steps is not None, "a study has a number of steps"
        while len(self.losses) < self.config.steps:
            self.step()
            if len(self.losses) % every == 0:
                self.validate()
        if not self.scores or self.scores[-1][0] < self.config.steps:
            self.validate()

    def validate(self) -> None:
        """Judge the model on the held-out data."""
        result = self.stepper.validate(self.data.held_out())
        self.scores.append(
            (len(self.losses), words_of(self.config).unit(result.loss), result.score)
        )


def learner(
    config: Config, data: Data, model: nn.Module, fabric: Fabric, *, inside: bool = True
) -> Learner:
    """Make a model ready for its first step; its loss is computed inside of it where it can be,
    unless that is not wanted."""
    task = task_of(config)
    objective = replace(task.objective, inside=inside and task.objective.inside)
    stepper = make_stepper(fabric, model, config, objective)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed + 1)  # as the trainer does
        random = torch.get_rng_state()
    return Learner(config, task, data, stepper, random)


def begin(config: Config, *, baseline: bool = False) -> Learner:
    """A model of a configuration's task and data, at its first step."""
    fabric, task = launch(config), task_of(config)
    data = task.prepare(config)
    return learner(config, data, task.build(config, data.spec, baseline=baseline), fabric)


def curve_of(config: Config, every: int, *, baseline: bool = False) -> list[tuple[int, float]]:
    """Steps and validation loss (in the task's unit) of a whole run.

    Args:
        every: steps between validations.
        baseline: on torch's recurrent layers.

    Raises:
        RunError: the data cannot be used.
    """
    run = begin(config, baseline=baseline)
    run.learn(every)
    return [(step, loss) for step, loss, _ in run.scores]


def losses_until(config: Config, target: float, count: int) -> list[float]:
    """Losses (in the task's unit) of the steps of a run, to the one at which the mean of the last
    so many is at a target; all of them if it never is, or a loss is not finite."""
    run = begin(config)
    assert config.steps is not None, "a study has a number of steps"
    while len(run.losses) < config.steps:
        run.step()
        last = run.losses[-count:]
        if not math.isfinite(last[-1]):
            return run.losses + [math.inf] * (config.steps - len(run.losses))
        if len(last) == count and sum(last) / count <= target:
            break
    return run.losses


class Looped(nn.Module):
    """A recurrent layer of elman's, of one layer and direction, run as a loop over torch ops."""

    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> tuple[Tensor, Any]:
        """Return outputs [T, B, H] of x [T, B, I], and the last states."""
        cell = self.layer.cell
        weights = {name.removesuffix("_l0"): w for name, w in self.layer.named_parameters()}
        dims = cell.bind(self.layer.input_size, self.layer.hidden_size)
        return looped(cell, dims, x, weights)


def model_of(
    name: str, config: SequenceConfig, data: Data, weights: dict[str, Tensor]
) -> nn.Module | str:
    """The model of a contestant, or why there is none.

    Args:
        name: ``torch``, ``loop``, or one of elman's.
        weights: that all models begin with whose layers have heads alike.
    """
    task = task_of(config)
    if name == "torch":
        if config.cell not in BUILT_IN:
            return f"torch.nn has no {config.cell}"
        twin = task.build(replace(config, heads=1), data.spec, baseline=True)
        if config.heads == 1:
            twin.load_state_dict(weights)
        return twin
    if name == "loop" and config.cell not in STEPS:
        return f"no loop is written for {config.cell}"
    engine = "c" if name == "loop" else MODULES[name].get("engine", "auto")
    model = task.build(replace(config, engine=engine), data.spec)
    model.load_state_dict(weights)
    if name == "loop":
        layers: Any = model.layers
        layers.layers = nn.ModuleList(map(Looped, layers.layers))
    return model

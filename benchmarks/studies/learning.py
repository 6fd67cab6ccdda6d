"""Do models learn alike? Models of the trainer, beside each other and one step at a time: studies.

``measure_learning`` trains one model by every engine; the others train language models of equal
steps from the same seeds. Of a case, T are the steps, characters or words of a sequence, B the
rows. A language model reads the text that :data:`TEXT` names, else the one that the trainer finds.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from statistics import mean, median
from typing import Any

import torch
from lightning_fabric import Fabric
from torch import Tensor, nn

from benchmarks.cases import OURS, Case, Effort, NoDataError, TrainedCase
from benchmarks.contestants import BUILT_IN, MODULES
from benchmarks.peers.loops import looped
from benchmarks.peers.published import STEPS as PUBLISHED
from benchmarks.rows import Row, curve, study
from benchmarks.studies import CELLS, EQUAL_LAYERS, STEP_SIZE, STEP_SIZES, TARGET, WINDOW
from elman.errors import EngineError, InputError, VerifyError
from elman.train.distributed.launch import launch, rows_of
from elman.train.loop.config import Config
from elman.train.loop.optimizer import learning_rate
from elman.train.loop.stepper import Stepper, make_stepper
from elman.train.loop.task import Data, Task
from elman.train.tasks.registry import labels_of, task_of
from elman.train.tasks.sequences.config import ImagesConfig, SequenceConfig, SeriesConfig
from elman.train.tasks.text.config import TextConfig
from elman.tuning.timing import quartiles

SEEDS = (0, 1, 2)
STEPS, WORD_STEPS = 8000, 100
TEXT = "ELMAN_BENCH_TEXT"
_MEAN = 8  # steps at least whose mean loss is held against the target: of a window of samples
_VALIDATIONS = 10
_TOKENS, _FEW = 32768, 4096  # predicted per validation; where a model is deep
_WORDS = 10_000  # that are known, and predicted per validation
_TIMED = 10  # steps of each engine, at most
# Relative difference of a loss from the float64 run's. The first step's is rounding; an update by
# Adam divides by the gradient's own size, so that later ones grow with every step.
_FIRST, _LATER = 1e-5, 1e-2

Curve = list[tuple[int, float]]


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

    @property
    def steps(self) -> int:
        """Training steps of the whole run."""
        assert self.config.steps is not None, "a study has a number of steps"
        return self.config.steps

    def step(self) -> None:
        """Do one training step."""
        config, index = self.config, len(self.losses)
        lr = learning_rate(index, self.steps, config.lr, config.warmup, config.schedule)
        batch = self.data.batch(index, rows_of(self.stepper.fabric, config.batch))
        with torch.random.fork_rng(devices=[]):
            torch.set_rng_state(self.random)
            start = time.perf_counter()
            loss, _ = self.stepper.train(batch, lr)
            self.seconds.append(time.perf_counter() - start)
            self.random = torch.get_rng_state()
        self.losses.append(labels_of(config).unit(loss))

    def learn(self, interval: int) -> None:
        """Do all steps that are left, validating after every so many of them and the last."""
        while len(self.losses) < self.steps:
            self.step()
            if len(self.losses) % interval == 0:
                self.validate()
        if not self.scores or self.scores[-1][0] < self.steps:
            self.validate()

    def validate(self) -> None:
        """Judge the model on the held-out data."""
        result = self.stepper.validate(self.data.held_out())
        loss = labels_of(self.config).unit(result.loss)
        self.scores.append((len(self.losses), loss, result.score))


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
    """A model of a configuration's task and data, at its first step; on torch's recurrent layers
    if it is the baseline. Raises RunError: the data cannot be used."""
    fabric, task = launch(config), task_of(config)
    data = task.prepare(config)
    return learner(config, data, task.build(config, data.spec, baseline=baseline), fabric)


# Language models.


def _options(case: Case, **options: Any) -> dict[str, Any]:
    """Options of a training run of a case on the text."""
    model = {"layers": case.layers, "hidden": case.H, "batch": case.B, "bptt": case.T}
    run = {"steps": STEPS, "validation_chars": _TOKENS, "accelerator": "cpu"}
    return {**model, **run, "data": os.environ.get(TEXT) or None, **options}


def learned(options: Mapping[str, Any], *, baseline: bool = False) -> Curve:
    """Steps and validation loss, in the unit of the text's level, of one model."""
    return _curve(run_of(options, baseline=baseline))


def run_of(options: Mapping[str, Any], *, baseline: bool = False) -> Learner:
    """A model that has learned."""
    run = begin(TextConfig.of(options), baseline=baseline)
    run.learn(max(1, run.steps // _VALIDATIONS))
    return run


def _curve(run: Learner) -> Curve:
    return [(step, loss) for step, loss, _ in run.scores]


def _row(
    model: str, unit: str, steps: int, texts: list[str], lines: Mapping[str, Curve], log: str = ""
) -> Row:
    """Row of a study of validation over steps."""
    plot = curve(f"Validation of {model}", "training steps", unit, log, lines)
    return study(f"{unit} after {steps} steps: {', '.join(texts)}", plots=[plot])


def measure_characters(case: Case, effort: Effort) -> Row:
    """Train each cell from each seed; validation loss over steps, the best of each. Seeds begin at
    different places of the text, too."""
    del effort
    common = {"engine": "c", "random_start": True}
    lines = {
        (cell, seed): learned(_options(case, cell=cell, seed=seed, **common))
        for cell in CELLS
        for seed in SEEDS
    }
    bits = {cell: [min(loss for _, loss in lines[cell, seed]) for seed in SEEDS] for cell in CELLS}
    texts = [
        f"{name} {mean(values):.3f} ({min(values):.3f} to {max(values):.3f})"
        for name, values in bits.items()
    ]
    title, named = f"a character model, {case.H} units", lines.items()
    curves = {f"{cell}, seed {seed}": line for (cell, seed), line in named}
    return _row(title, "bits per character", STEPS, texts, curves) | {"bits": bits}


def measure_perplexities(case: Case, effort: Effort) -> Row:
    """Train a word model on elman's layers and one on torch's from one seed; perplexity over
    steps. The text may be a folder of its parts."""
    del effort
    words = {"level": "word", "validation_chars": _WORDS, "vocabulary": _WORDS, "steps": WORD_STEPS}
    options = _options(case, cell=case.cell, embedding=case.H, **words)
    lines = {OURS: learned(options), "torch": learned(options, baseline=True)}
    texts = [f"{name} {line[-1][1]:.2f}" for name, line in lines.items()]
    title = f"a word model, {case.layers} x {case.H} units"
    values = {name: [value for _, value in line] for name, line in lines.items()}
    row = _row(title, "perplexity", WORD_STEPS, texts, lines, log="y")
    return row | {"perplexities": values}


def measure_residual(case: TrainedCase, effort: Effort) -> Row:
    """Train a stack as it is, one with residual layers, one of residual blocks with norms, and such
    blocks of as many parameters as :data:`EQUAL_LAYERS` layers have; validation loss over steps,
    and the time of a step, of each seed."""
    seeds = SEEDS[: effort.starts]
    options = _options(case, cell=case.cell, engine="c", steps=case.steps, validation_chars=_FEW)
    units = max(4, round(case.H * math.sqrt(EQUAL_LAYERS / case.layers)))
    kinds = {
        "plain": {},
        "residual": {"residual": True},
        "norms": {"norm": True},
        "equal": {"norm": True, "hidden": units},
    }
    bits: dict[str, list[float]] = {}
    curves: dict[str, list[Curve]] = {}
    step_s: dict[str, list[float]] = {}
    for name, kind in kinds.items():
        hidden = kind.get("hidden", case.H)  # the first layer's input is as wide as the others'
        settings = {**options, **kind, "embedding": hidden, "random_start": True}
        runs = [run_of({**settings, "seed": seed}) for seed in seeds]
        curves[name] = [_curve(run) for run in runs]
        bits[name] = [line[-1][1] for line in curves[name]]
        step_s[name] = [median(run.seconds) for run in runs]
    texts = [f"{name} {mean(values):.3f}" for name, values in bits.items()]
    lines = {name: of_seeds[0] for name, of_seeds in curves.items()}
    title = f"a character model of {case.layers} layers, {units} units in the equal one"
    row = _row(title, "bits per character", case.steps, texts, lines)
    return row | {"bits": bits, "curves": curves, "step_s": step_s, "units": units}


def measure_samples(case: TrainedCase, effort: Effort) -> Row:
    """Samples (segments of a row) that a character model reads until its training loss is at
    :data:`TARGET`, by SGD whose momentum and learning rate follow the minibatch: of each step size
    and seed, None for one that does not come to it; the same behind a warm-up of the first tenth
    of the steps. A seed draws the weights and where in the text its rows begin.

    Args:
        case: at most so many training steps.
        effort: as many seeds as starts, all of :data:`SEEDS` at most; with one seed one step size.
    """
    seeds = SEEDS[: effort.starts]
    sizes = STEP_SIZES if len(seeds) > 1 else (STEP_SIZE,)
    cold, warm = (
        {f"{size:g}": _samples_to(_following(case, size, warmup), seeds) for size in sizes}
        for warmup in (0.0, 0.1)
    )
    texts = "; ".join(f"{size}: {', '.join(map(str, counts))}" for size, counts in cold.items())
    return study(
        f"samples to {TARGET} bits per character (of {case.steps * case.B} at most), by step size "
        f"and seed: {texts}",
        cold=cold,
        warm=warm,
    )


def _following(case: TrainedCase, step_size: float, warmup: float) -> Config:
    """SGD that follows the minibatch."""
    rule = {"optimizer": "sgd", "window": WINDOW, "step_size": step_size, "random_start": True}
    rule |= {"schedule": "constant", "weight_decay": 0.0, "warmup": warmup, "engine": "c"}
    return TextConfig.of(_options(case, cell=case.cell, steps=case.steps, **rule))


def _samples_to(config: Config, seeds: Sequence[int]) -> list[int | None]:
    """Samples of each seed to the target, None for those that do not come to it."""
    steps = (steps_to(TARGET, replace(config, seed=seed)) for seed in seeds)
    return [None if count is None else count * config.batch for count in steps]


def steps_to(target: float, config: Config) -> int | None:
    """Steps of a run to the one at which the mean of the last losses is at a target (in the task's
    unit); None if it never is, or a loss is not finite. Fewer samples than a window would tell how
    easy a passage of the text is, from whatever seed."""
    run, count = begin(config), max(_MEAN, int(WINDOW) // config.batch)
    while len(run.losses) < run.steps:
        run.step()
        last = run.losses[-count:]
        if not math.isfinite(last[-1]):
            return None
        if len(last) == count and mean(last) <= target:
            return len(run.losses)
    return None


# One model by every engine.


@dataclass(frozen=True)
class Sequences:
    """A data set of sequences and how a model is trained on it.

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


KINDS = {
    "pixels": Sequences(
        ImagesConfig,
        "ELMAN_BENCH_IMAGES",
        "an .npz with x_train, y_train, x_test, y_test: images uint8 [N, H, W, C], as of CIFAR-10",
        {"lr": 4e-3, "validation_sequences": 500},
    ),
    "speech": Sequences(
        SeriesConfig,
        "ELMAN_BENCH_AUDIO",
        "an .npz with audio_train, length_train, label_train, and the same of test, as "
        "benchmarks.scripts.speakers writes it",
        {"lr": 1e-2},
    ),
}


def config_of(case: TrainedCase) -> SequenceConfig:
    """The run of a case. Raises NoDataError: nobody has named the file of its data."""
    kind = KINDS[case.kind]
    path = os.environ.get(kind.variable)
    if not path:
        raise NoDataError(f"no data: set {kind.variable} to {kind.content}")
    sizes: dict[str, Any] = {"layers": case.layers, "hidden": case.H, "heads": case.heads}
    run: dict[str, Any] = {"batch": case.B, "steps": case.steps, "threads": case.threads}
    return kind.config(
        data=path,
        cell=case.cell,
        residual=True,
        dropout=0.0,
        engine="c",
        accelerator="cpu",
        **sizes | run | kind.options,
    )


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
) -> nn.Module:
    """The model of a contestant.

    Args:
        name: ``torch``, ``loop``, or one of elman's.
        weights: that all models begin with whose layers have heads alike.

    Raises:
        EngineError: there is none.
    """
    task = task_of(config)
    if name == "torch":
        if config.cell not in BUILT_IN:
            raise EngineError(f"torch.nn has no {config.cell}")
        twin = task.build(replace(config, heads=1), data.spec, baseline=True)
        if config.heads == 1:
            twin.load_state_dict(weights)
        return twin
    if name == "loop" and config.cell not in PUBLISHED:
        raise EngineError(f"no loop is written for {config.cell}")
    engine = "c" if name == "loop" else MODULES[name].get("engine", "auto")
    model = task.build(replace(config, engine=engine), data.spec)
    model.load_state_dict(weights)
    if name == "loop":
        layers: Any = model.layers
        layers.layers = nn.ModuleList(map(Looped, layers.layers))
    return model


def measure_learning(case: TrainedCase, effort: Effort) -> Row:
    """Train by all contestants a few interleaved steps from the same weights on the same batches,
    by elman all: as all losses are the same, what the others would need for the same accuracy
    follows from the time of their steps.

    Args:
        case: a kind of :data:`KINDS`; T steps per sequence, B sequences, H units in heads.
        effort: how long each contestant is timed (s); one step at least, after one untimed.

    Raises:
        NoDataError: there are no data.
        InputError: they are of another length.
        VerifyError: a contestant learns something else.
        EngineError: the baseline cannot run the case.
    """
    config = config_of(case)
    data = task_of(config).prepare(config)
    longest = data.facts()["steps"]
    if longest != [case.T, case.T]:
        raise InputError(f"{case.name}: the sequences of {config.data} have {longest} steps")
    fabric, weights = launch(config), task_of(config).build(config, data.spec).state_dict()
    present: dict[str, Learner] = {}
    absent: dict[str, str] = {}
    for name in case.contestants:
        try:
            run = learner(config, data, model_of(name, config, data, weights), fabric)
            run.step()
        except EngineError as refused:
            absent[name] = str(refused)
        else:
            present[name] = run
    if case.baseline not in present:
        raise EngineError(absent[case.baseline])
    for step in range(min(_TIMED, case.steps - 1)):
        for run in present.values():  # one each, then those of which another one is affordable
            cheap = sum(run.seconds[1:]) + run.seconds[-1] <= effort.seconds
            if not step or (len(run.losses) == step + 1 and cheap):
                run.step()
    off = _compare(case, present, config, data)
    present[OURS].learn(max(1, case.steps // _VALIDATIONS))
    chance = data.baseline().score or 0.0
    return _learning_row(case, present, off, chance) | {"absent": absent}


def _compare(
    case: TrainedCase, present: dict[str, Learner], config: SequenceConfig, data: Data
) -> dict[str, float]:
    """The largest relative difference of each contestant's losses from the baseline's in float64;
    not of torch's layers of equal size where there are heads, which they lack.

    Raises:
        VerifyError: it is not a rounding error.
    """
    double = replace(config, precision="64-true")
    weights = task_of(config).build(config, data.spec).state_dict()
    oracle = learner(double, data, model_of(case.baseline, double, data, weights), launch(double))
    alike = {name: run for name, run in present.items() if case.heads == 1 or name != "torch"}
    for _ in range(max(len(run.losses) for run in alike.values())):
        oracle.step()
    errors = {}
    for name, run in alike.items():
        pairs = zip(run.losses, oracle.losses)
        off = [abs(loss - want) / max(abs(want), 1e-12) for loss, want in pairs]
        if not (off[0] <= _FIRST and max(off) <= _LATER):
            texts = ", ".join(f"{value:.1e}" for value in off)
            raise VerifyError(
                f"{case.name}: {name} learns other than {case.baseline} in float64: losses differ "
                f"by {texts}"
            )
        errors[name] = max(off)
    return errors


def _learning_row(
    case: TrainedCase, present: dict[str, Learner], off: dict[str, float], chance: float
) -> Row:
    scores = present[OURS].scores
    seconds = {name: quartiles(run.seconds[1:]) for name, run in present.items()}
    accuracy = scores[-1][2]
    took = ", ".join(f"{name} {time.median:.3g} s" for name, time in seconds.items())
    lines = {
        name: [(step * seconds[name].median, score) for step, _, score in scores] for name in off
    }
    title = f"{case.name}: accuracy by time of training"
    return study(
        f"accuracy {accuracy:.1%} after {case.steps} steps ({chance:.1%} by chance); "
        f"losses within {max(off.values()):.1e}; a step: {took}",
        seconds={name: asdict(time) for name, time in seconds.items()},
        first={name: run.seconds[0] for name, run in present.items()},
        losses={name: run.losses[: _TIMED + 1] for name, run in present.items()},
        off=off,
        scores=[list(score) for score in scores],
        accuracy=accuracy,
        chance=chance,
        plots=[curve(title, "seconds of training steps", "accuracy", "x", lines)],
    )

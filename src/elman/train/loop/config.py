"""Configuration of a run: every setting that its result depends on, stored as JSON in its
folder."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self

from elman.errors import InputError
from elman.train.loop.optimizer import OPTIMIZERS, SCHEDULES, STAIRS, find_schedule
from elman.train.run.stored import DamageError, decode

RANDOM_OPTIONS = ("zoneout", "recurrent_dropout", "weight_dropout")  # options of recurrent layers


class Rule(NamedTuple):
    """A rule for values other than None: a predicate, and its text for messages."""

    holds: Callable[[Any], bool]
    text: str


def at_least(least: int) -> Rule:
    """Rule for values no less than a number."""
    return Rule(lambda value: value >= least, f"must be at least {least}")


def choice(names: Iterable[str], words: str = "must be one of {}", sign: str = ", ") -> Rule:
    """Rule for values among some names."""
    names = tuple(names)
    return Rule(lambda value: value in names, words.format(sign.join(names)))


POSITIVE = Rule(lambda value: value > 0, "must be positive")
NOT_NEGATIVE = Rule(lambda value: value >= 0, "must not be negative")
COUNT = at_least(1)
SHARE = Rule(lambda value: 0 <= value < 1, "must be in [0, 1)")
SCHEDULE = Rule(
    lambda value: find_schedule(value) is not None,
    f"must be one of {', '.join(SCHEDULES)}, or as in {STAIRS}",
)
NONFINITE = ("stop", "skip")


def setting(default: Any, about: str, rule: Rule | None = None) -> Any:
    """Describe a field: its default, the help text of its command-line option, and its rule."""
    return field(default=default, metadata={"about": about, "rule": rule})


def override(name: str, default: Any) -> Any:
    """Describe a field of `Config` with another default for some task."""
    return field(default=default, metadata=Config.__dataclass_fields__[name].metadata)


@dataclass(frozen=True)
class Config:
    """Settings common to all tasks; `None` means: determined at the start, then stored.

    A task adds its own fields. Each field is an option of `elman train` too, described here once.
    """

    TASK: ClassVar[str] = ""
    VALIDATED: ClassVar[str] = ""  # the field that says how much is predicted per validation
    LEAST_VALIDATED: ClassVar[int] = 1
    TAKES_STATIC: ClassVar[bool] = False  # whether the cell may have a static input
    PRESETS: ClassVar[Mapping[str, Mapping[str, Any]]] = {}  # defaults of the field `preset`

    data: str | None = setting(None, "A file or folder.")
    cell: str = setting("gru", "gru, lstm, rnn, another of elman.cells, or file.py:cell.")
    layers: int = setting(2, "Recurrent layers.", POSITIVE)
    hidden: int = setting(256, "Units per layer.", POSITIVE)
    dropout: float = setting(0.0, "Share of values dropped after each layer.", SHARE)
    zoneout: float = setting(0.0, "Share of units that keep their state in a step.", SHARE)
    recurrent_dropout: float = setting(
        0.0, "Share of a state's units dropped in recurrent products, the same in all steps.", SHARE
    )
    weight_dropout: float = setting(
        0.0, "Share of recurrent weights dropped in a step of training.", SHARE
    )
    batch: int = setting(32, "Sequences of a minibatch.", POSITIVE)
    lr: float = setting(4e-3, "Peak learning rate.", POSITIVE)
    warmup: float = setting(
        0.05, "Share of the steps over which the learning rate rises to its peak.", SHARE
    )
    schedule: str = setting(
        "cosine",
        f"Learning rate after the warm-up: {', '.join(SCHEDULES)}, or as in {STAIRS}.",
        SCHEDULE,
    )
    optimizer: str = setting("adamw", f"{' or '.join(OPTIMIZERS)}.", choice(OPTIMIZERS))
    momentum: float = setting(0.0, "Momentum of sgd.", SHARE)
    nesterov: bool = setting(False, "Use Nesterov's momentum.")
    window: float | None = setting(
        None, "Samples that sgd's momentum remembers: it is 1 - BATCH / WINDOW.", POSITIVE
    )
    step_size: float | None = setting(
        None, "Learning rate of a sample: LR is STEP_SIZE * (1 - MOMENTUM) * BATCH.", POSITIVE
    )
    weight_decay: float = setting(
        0.01, "Weight decay of all matrices; with sgd it is added to the gradient.", NOT_NEGATIVE
    )
    clip: float = setting(1.0, "Largest norm of the gradient.", POSITIVE)
    seed: int = setting(0, "Seed of weights, dropout, order and sampled text.")
    minutes: float = setting(2.0, "Duration of the whole run, in minutes.", POSITIVE)
    steps: int | None = setting(None, "Training steps, instead of --minutes.", COUNT)
    validate_every: int | None = setting(None, "Steps between validations.", COUNT)
    checkpoint_every: int | None = setting(None, "Steps between checkpoints.", COUNT)
    log_every: int | None = setting(None, "Steps between rows of metrics.csv.", COUNT)
    engine: str = setting("auto", "auto, or the name of an engine.")
    precision: str = setting("32-true", "32-true, bf16-mixed, 64-true, …")
    accelerator: str = setting("auto", "cpu, cuda or auto.")
    devices: int = setting(1, "Processes on this machine, one per device.", POSITIVE)
    nodes: int = setting(1, "Machines; each starts the same command, or torchrun does.", POSITIVE)
    shard: bool = setting(
        False, "Divide weights, gradients and moments among the processes instead of copying them."
    )
    average_every: int = setting(
        1,
        "Steps between averages of the processes' weights, each of which follows its own gradient "
        "in between; 1: gradients are averaged in each step.",
        POSITIVE,
    )
    timeout: float = setting(300.0, "Seconds to wait for another process.", POSITIVE)
    on_nonfinite: str = setting(
        "stop",
        f"What a loss or gradient that is not finite does: {' or '.join(NONFINITE)}.",
        choice(NONFINITE, "must be {}", " or "),
    )
    threads: int | None = setting(None, "CPU threads per process.", COUNT)
    tensorboard: bool = setting(False, "Log for TensorBoard too.")

    def __post_init__(self) -> None:
        for entry in fields(self):
            value, rule = getattr(self, entry.name), entry.metadata["rule"]
            if rule is not None and value is not None and not rule.holds(value):  # NaN breaks all
                raise InputError(f"{entry.name} {rule.text}, not {value}")
            if isinstance(value, float) and not math.isfinite(value):
                raise InputError(f"{entry.name} must be finite, not {value}")
        self._follow_minibatch()
        if self.nesterov and not self.momentum:
            raise InputError("nesterov needs a momentum above 0, as in --momentum 0.9 --nesterov")
        if self.momentum and self.optimizer != "sgd":
            hint = "leave --momentum out, or --optimizer sgd"
            raise InputError(f"{self.optimizer} has no momentum to set: {hint}")
        if self.batch % self.workers:
            nodes = f" on {self.nodes} nodes" if self.nodes > 1 else ""
            text = f"batch {self.batch} does not divide among {self.devices} devices{nodes}"
            raise InputError(text)

    def _follow_minibatch(self) -> None:
        """Set momentum and learning rate by the minibatch, so that a sample moves the weights by
        as much in every minibatch (G. Diamos, "Persistent RNNs: 30 times faster RNN layers at small
        minibatch sizes", Baidu SVAIL, 2016, on momentum and learning rate).

        Raises:
            InputError: the options need one another, or say two things.
        """
        if self.window is not None:
            if self.optimizer != "sgd":
                text = f"{self.optimizer} has no momentum that follows a window: --optimizer sgd"
                raise InputError(text)
            if self.batch > self.window:
                raise InputError(f"window {self.window:g} is shorter than batch {self.batch}")
            self._derive("momentum", 1 - self.batch / self.window, "window")
        if self.step_size is not None:
            if self.window is None:
                raise InputError("step_size needs a window, as in --window 512 --step-size 0.06")
            self._derive("lr", self.step_size * (1 - self.momentum) * self.batch, "step_size")

    def _derive(self, name: str, value: float, source: str) -> None:
        current = getattr(self, name)
        default = next(entry.default for entry in fields(self) if entry.name == name)
        if current not in (default, value):
            raise InputError(f"{source} sets {name} to {value:g}, which was given as {current:g}")
        object.__setattr__(self, name, value)

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> Self:
        """Make a configuration from some settings; a preset among them has other defaults.

        A given length (steps, minutes) takes the place of the preset's epochs.
        """
        preset = dict(cls.PRESETS.get(settings.get("preset", ""), {}))
        if {"steps", "minutes"} & set(settings):
            preset.pop("epochs", None)
        return cls(**preset | dict(settings))

    @property
    def workers(self) -> int:
        """Processes of all nodes."""
        return self.devices * self.nodes

    @property
    def adds_inputs(self) -> bool:
        """Whether layers of the recurrent stack have their input added to their output."""
        return False

    @property
    def runs_blocks(self) -> bool:
        """Whether the recurrent layers are residual blocks with norms."""
        return False

    @property
    def items_per_step(self) -> int:
        """Items (of the task) in one training step, over all devices."""
        return self.batch

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON can hold them."""
        return {"task": self.TASK} | asdict(self)

    @classmethod
    def from_json(cls, stored: dict[str, Any]) -> Self:
        """The inverse of `to_json`. Raises DamageError: a field is unknown or of the wrong kind."""
        stored = {name: value for name, value in stored.items() if name != "task"}
        unknown = sorted(set(stored) - {field.name for field in fields(cls)})
        if unknown:
            raise DamageError(f"unknown fields: {', '.join(unknown)}")
        return decode(cls, stored)

    def absolute(self) -> Self:
        """Spell the paths in full, so that a run can be resumed from any folder."""
        data, cell = self.data, self.cell
        if data is not None and Path(data).expanduser().exists():
            data = str(Path(data).expanduser().resolve())
        file, colon, name = cell.rpartition(":")
        if colon:
            cell = f"{Path(file).expanduser().resolve()}:{name}"
        return replace(self, data=data, cell=cell)

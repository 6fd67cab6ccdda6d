"""What a run is: every choice that its result depends on, stored as JSON in the run folder."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, ClassVar, Self

from elman.errors import InputError
from elman.train.loop.optimizer import OPTIMIZERS, SCHEDULES, STAIRS, find_schedule
from elman.train.run.stored import DamageError, filled

POSITIVE = (
    *("layers", "hidden", "batch", "lr", "minutes", "clip", "devices", "nodes", "sync_every"),
    *("timeout", "window", "step_size"),
)
COUNTS = ("steps", "threads", "validate_every", "checkpoint_every", "log_every")
ON_NONFINITE = ("stop", "skip")
DRAWN = ("zoneout", "recurrent_dropout", "weight_dropout")  # options of recurrent layers


def setting(default: Any, about: str) -> Any:
    """Describe a field: its default, and the words of its command-line option."""
    return field(default=default, metadata={"about": about})


def other(name: str, default: Any) -> Any:
    """Describe a field of `Config` whose default is another one for some task."""
    return field(default=default, metadata=Config.__dataclass_fields__[name].metadata)


@dataclass(frozen=True)
class Config:
    """What every run has; `None` means: found at the start, then stored.

    A task adds its own fields. Each field is an option of `elman train` too, described here once.
    """

    TASK: ClassVar[str] = ""
    VALIDATED: ClassVar[str] = ""  # the field that says how much is predicted per validation
    LEAST_VALIDATED: ClassVar[int] = 1
    PRESETS: ClassVar[Mapping[str, Mapping[str, Any]]] = {}  # defaults of the field `preset`

    data: str | None = setting(None, "A file or folder.")
    cell: str = setting("gru", "gru, lstm, rnn, another of elman.cells, or file.py:cell.")
    layers: int = setting(2, "Recurrent layers.")
    hidden: int = setting(256, "Units per layer.")
    dropout: float = setting(0.0, "Share of values dropped after each layer.")
    zoneout: float = setting(0.0, "Share of units that keep their state in a step.")
    recurrent_dropout: float = setting(
        0.0, "Share of a state's units dropped in recurrent products, the same in all steps."
    )
    weight_dropout: float = setting(
        0.0, "Share of recurrent weights dropped in a step of training."
    )
    batch: int = setting(32, "Sequences of a minibatch.")
    lr: float = setting(4e-3, "Peak learning rate.")
    warmup: float = setting(
        0.05, "Share of the steps over which the learning rate rises to its peak."
    )
    schedule: str = setting(
        "cosine", f"Learning rate after the warm-up: {', '.join(SCHEDULES)}, or as in {STAIRS}."
    )
    optimizer: str = setting("adamw", f"{' or '.join(OPTIMIZERS)}.")
    momentum: float = setting(0.0, "Momentum of sgd.")
    nesterov: bool = setting(False, "Use Nesterov's momentum.")
    window: float | None = setting(
        None, "Samples that the momentum of sgd averages over: momentum = 1 - minibatch / window."
    )
    step_size: float | None = setting(
        None, "With sgd: lr = step_size * (1 - momentum) * minibatch, instead of --lr."
    )
    weight_decay: float = setting(
        0.01, "Weight decay of all matrices; with sgd it is added to the gradient."
    )
    clip: float = setting(1.0, "Largest norm of the gradient.")
    seed: int = setting(0, "Seed of weights, dropout, order and sampled text.")
    minutes: float = setting(2.0, "Duration of the whole run, in minutes.")
    steps: int | None = setting(None, "Training steps, instead of --minutes.")
    validate_every: int | None = setting(None, "Steps between validations.")
    checkpoint_every: int | None = setting(None, "Steps between checkpoints.")
    log_every: int | None = setting(None, "Steps between rows of metrics.csv.")
    engine: str = setting("auto", "auto, or the name of an engine.")
    precision: str = setting("32-true", "32-true, bf16-mixed, 64-true, …")
    accelerator: str = setting("auto", "cpu, cuda or auto.")
    devices: int = setting(1, "Processes on this machine, one per device.")
    nodes: int = setting(1, "Machines; each starts the same command, or torchrun does.")
    sync_every: int = setting(
        1,
        "Steps between averages of the processes' models; 1: gradients are averaged in each step.",
    )
    shard: bool = setting(
        False, "Divide weights, gradients and moments among the processes instead of copying them."
    )
    timeout: float = setting(300.0, "Seconds to wait for another process.")
    on_nonfinite: str = setting(
        "stop", f"What a loss or gradient that is not finite does: {' or '.join(ON_NONFINITE)}."
    )
    threads: int | None = setting(None, "CPU threads per process.")
    tensorboard: bool = setting(False, "Log for TensorBoard too.")

    def __post_init__(self) -> None:
        for name in POSITIVE:
            value = getattr(self, name)
            self.check(name, value is None or value > 0, "must be positive")
        for name in COUNTS:
            value = getattr(self, name)
            self.check(name, value is None or value >= 1, "must be at least 1")
        for name in ("dropout", *DRAWN, "warmup", "momentum"):
            self.check(name, 0 <= getattr(self, name) < 1, "must be in [0, 1)")
        self.check("weight_decay", self.weight_decay >= 0, "must not be negative")
        known = f"must be one of {', '.join(OPTIMIZERS)}"
        self.check("optimizer", self.optimizer in OPTIMIZERS, known)
        known = f"must be one of {', '.join(SCHEDULES)}, or as in {STAIRS}"
        self.check("schedule", find_schedule(self.schedule) is not None, known)
        self.check("on_nonfinite", self.on_nonfinite in ON_NONFINITE, "must be stop or skip")
        self.check_momentum()
        for name, value in vars(self).items():
            finite = not isinstance(value, float) or math.isfinite(value)
            self.check(name, finite, "must be finite")
        if self.shard and self.sync_every > 1:
            raise InputError("shard divides one model, sync_every averages many: give one of them")
        if self.batch % self.workers:
            nodes = f" on {self.nodes} nodes" if self.nodes > 1 else ""
            text = f"batch {self.batch} does not divide among {self.devices} devices{nodes}"
            raise InputError(text)

    def check_momentum(self) -> None:
        """Raise InputError if what is said of the momentum makes no sense."""
        if self.momentum and self.window is not None:
            raise InputError("momentum and window set the same thing: give one of them")
        if self.window is not None and self.window < self.minibatch:
            raise InputError(f"window {self.window:g} is less than a minibatch, {self.minibatch}")
        if self.nesterov and not self.used_momentum:
            raise InputError("nesterov needs a momentum above 0, as in --momentum 0.9 --nesterov")
        for name in ("momentum", "window", "step_size"):
            if getattr(self, name) and self.optimizer != "sgd":
                said = name.replace("_", "-")
                hint = f"leave --{said} out, or --optimizer sgd"
                raise InputError(f"{self.optimizer} has no {name.replace('_', ' ')} to set: {hint}")

    def check(self, name: str, holds: bool, rule: str) -> None:
        """Raise InputError if a field breaks a rule (NaN breaks every one)."""
        if not holds:
            raise InputError(f"{name} {rule}, not {getattr(self, name)}")

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Self:
        """Make a configuration from what is given; a preset among it has other defaults.

        A given length (steps, minutes) takes the place of the preset's epochs.
        """
        preset = dict(cls.PRESETS.get(given.get("preset", ""), {}))
        if {"steps", "minutes"} & set(given):
            preset.pop("epochs", None)
        return cls(**preset | dict(given))

    @property
    def workers(self) -> int:
        """Processes of all nodes."""
        return self.devices * self.nodes

    @property
    def minibatch(self) -> int:
        """Samples behind one update of the weights: those of all processes, or where models are
        averaged now and then, of each."""
        return self.batch if self.sync_every == 1 else self.batch // self.workers

    @property
    def used_momentum(self) -> float:
        """As given, or by the window (G. Diamos, "Persistent RNNs", 2016, slides: 1 - minibatch /
        window)."""
        return self.momentum if self.window is None else 1 - self.minibatch / self.window

    @property
    def peak_lr(self) -> float:
        """As given, or by the step size (same source: step size * (1 - momentum) * minibatch)."""
        if self.step_size is None:
            return self.lr
        return self.step_size * (1 - self.used_momentum) * self.minibatch

    @property
    def adds_inputs(self) -> bool:
        """Whether layers of the recurrent stack have their input added to their output."""
        return False

    @property
    def items_per_step(self) -> int:
        """How many of what the task counts are in one training step, over all devices."""
        return self.batch

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON can hold them."""
        return {"task": self.TASK} | asdict(self)

    @classmethod
    def from_json(cls, stored: dict[str, Any]) -> Self:
        """Read what `to_json` gave.

        Raises:
            DamageError: if a field is unknown or of the wrong kind.
        """
        stored = {name: value for name, value in stored.items() if name != "task"}
        unknown = sorted(set(stored) - {field.name for field in fields(cls)})
        if unknown:
            raise DamageError(f"unknown fields: {', '.join(unknown)}")
        return filled(cls, stored)

    def absolute(self) -> Self:
        """Spell the paths in full, so that a run can be resumed from any folder."""
        data, cell = self.data, self.cell
        if data is not None and Path(data).expanduser().exists():
            data = str(Path(data).expanduser().resolve())
        file, colon, name = cell.rpartition(":")
        if colon:
            cell = f"{Path(file).expanduser().resolve()}:{name}"
        return replace(self, data=data, cell=cell)

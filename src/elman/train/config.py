"""What a run is: every choice that its result depends on, stored as JSON in the run folder."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from elman.errors import InputError, RunError, rows

POSITIVE = ("layers", "hidden", "embedding", "batch", "bptt", "lr", "minutes", "clip", "devices")
COUNTS = ("steps", "threads", "validate_every", "checkpoint_every", "log_every")


@dataclass(frozen=True)
class Config:
    """The configuration of one run; `None` means: found at the start, then stored.

    Attributes:
        data: path of a file or folder; None for the standard library's sources.
        cell: gru, lstm, rnn, the name of a cell in elman.cells, or file.py:cell.
        embedding: size of a character's vector, the first layer's input.
        batch, bptt: B rows of text, T characters per step.
        lr: highest learning rate, reached after `warmup` (a share of all steps).
        clip: largest norm of the gradient.
        minutes: time for the whole run; the number of steps is measured from it.
        steps: number of training steps.
        validate_every, checkpoint_every, log_every: in steps.
        validation_chars: how many characters are predicted in each validation.
        engine: an engine's name, or auto.
        precision, accelerator, devices: as Lightning Fabric has them.
        threads: torch's threads per process.
        temperature: of the generated sample.
    """

    data: str | None = None
    cell: str = "gru"
    layers: int = 2
    hidden: int = 256
    embedding: int = 64
    dropout: float = 0.0
    batch: int = 32
    bptt: int = 64
    lr: float = 4e-3
    warmup: float = 0.05
    weight_decay: float = 0.01
    clip: float = 1.0
    seed: int = 0
    minutes: float = 2.0
    steps: int | None = None
    validate_every: int | None = None
    checkpoint_every: int | None = None
    log_every: int | None = None
    validation_chars: int = 131072
    engine: str = "auto"
    precision: str = "32-true"
    accelerator: str = "auto"
    devices: int = 1
    threads: int | None = None
    temperature: float = 0.7
    tensorboard: bool = False

    def __post_init__(self) -> None:
        for name in POSITIVE:
            if not getattr(self, name) > 0:
                raise InputError(f"{name} must be positive, not {getattr(self, name)}")
        for name in COUNTS:
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InputError(f"{name} must be at least 1, not {value}")
        for name in ("dropout", "warmup"):
            if not 0 <= getattr(self, name) < 1:
                raise InputError(f"{name} must be in [0, 1), not {getattr(self, name)}")
        if self.temperature < 0 or self.weight_decay < 0 or self.validation_chars < 2:
            raise InputError(
                "temperature and weight_decay must not be negative, validation_chars at least 2"
            )
        if self.batch % self.devices:
            raise InputError(f"batch {self.batch} does not divide among {self.devices} devices")

    @property
    def chars_per_step(self) -> int:
        """Characters in one training step, over all devices."""
        return self.batch * self.bptt

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON can hold them."""
        return asdict(self)

    @classmethod
    def from_json(cls, stored: dict[str, Any], path: object = "") -> Config:
        """Read what `to_json` gave.

        Raises:
            RunError: if a field is unknown or of the wrong kind.
        """
        unknown = sorted(set(stored) - {field.name for field in fields(cls)})
        if unknown:
            details = [("path", str(path)), ("field", ", ".join(unknown))]
            raise RunError(rows("the stored configuration has unknown fields", details))
        try:
            return cls(**stored)
        except (TypeError, InputError) as error:
            details = [("path", str(path)), ("error", str(error))]
            raise RunError(rows("the stored configuration is damaged", details)) from error

    def absolute(self) -> Config:
        """Spell the paths in full, so that a run can be resumed from any folder."""
        data, cell = self.data, self.cell
        if data is not None:
            data = str(Path(data).expanduser().resolve())
        file, colon, name = cell.rpartition(":")
        if colon:
            cell = f"{Path(file).expanduser().resolve()}:{name}"
        return replace(self, data=data, cell=cell)

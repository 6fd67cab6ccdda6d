"""A trained classifier of sequences, which reads values as they stand in its data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from elman.errors import InputError
from elman.train.sequences.source import Values
from elman.train.trained import Trained

KINDS = ("values", "wave", "pixels")
PERMUTATION_SEED = 0  # one order of the pixels for all runs: results can be compared


@dataclass(frozen=True)
class ClassifierSpec:
    """What a classifier is built from besides its configuration, and how its input is scaled.

    Attributes:
        inputs: I, values per step.
        classes: C names.
        kind: "values", "wave" (raw audio) or "pixels".
        mean, scale: of each channel of the kind "values", and 1 / standard deviation.
    """

    inputs: int
    classes: list[str]
    kind: str
    mean: list[float]
    scale: list[float]

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"the kind must be one of {', '.join(KINDS)}, not {self.kind!r}")

    def scaled(self, values: Values) -> tuple[Values, int]:
        """Scale all but pixels, which stay bytes until they are used.

        Returns:
            values: waves by the loudness of each (root mean square), others by channel.
            missing: number of NaN, which became 0.
        """
        if self.kind == "pixels":
            return values, 0
        mean, scale = np.array(self.mean, np.float32), np.array(self.scale, np.float32)
        pieces, missing = [], 0
        for piece in values:
            piece = piece.astype(np.float32)
            gone = np.isnan(piece)
            missing += int(gone.sum())
            if self.kind == "wave":
                piece = piece / max(1e-6, float(np.sqrt(np.nanmean(piece**2))))
            else:
                piece = (piece - mean) * scale
            pieces.append(np.where(gone, np.float32(0), piece))
        return pieces, missing


@dataclass(frozen=True)
class TrainedClassifier(Trained):
    """A trained classifier; ``model((x, lengths))`` gives logits [B, C] of scaled x [T, B, I]."""

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes, in the order of the logits."""
        return tuple(self.spec.classes)

    @torch.no_grad()
    def predict(self, values: Sequence[Any] | np.ndarray) -> Tensor:
        """Predict the chances of each class.

        Args:
            values: N sequences [T, channels] of any lengths, or one array [N, T, channels], as in
                the data that was trained on; NaN is missing.

        Returns:
            [N, C].

        Raises:
            InputError: values are of another shape.
        """
        spec, patch = self.spec, self.config.patch
        pieces = [np.asarray(piece) for piece in values]
        channels = spec.inputs // patch
        for k, piece in enumerate(pieces):
            if piece.ndim != 2 or piece.shape[1] != channels or not len(piece):
                raise InputError(f"sequence {k} must be [T, {channels}], not {[*piece.shape]}")
        if getattr(self.config, "permute", False):
            pieces = [*permuted(np.stack(pieces))]
        x, lengths = padded(spec.scaled(pieces)[0], patch)
        x = as_floats(x).transpose(0, 1).contiguous()
        logits, _ = self.model((x.to(self.weight), lengths.to(self.weight.device)))
        return logits.softmax(-1)


def permuted(values: Values) -> np.ndarray:
    """Put the steps of equally long sequences into one fixed random order."""
    whole = np.asarray(values)
    return whole[:, np.random.default_rng(PERMUTATION_SEED).permutation(whole.shape[1])]


def padded(values: Values, patch: int) -> tuple[Tensor, Tensor]:
    """Join the values of `patch` steps to one and pad all sequences to the longest.

    Returns:
        x [N, T, I], and the steps of each sequence [N].
    """
    channels = values[0].shape[1]
    steps = -(-np.array([len(piece) for piece in values]) // patch)
    if isinstance(values, np.ndarray) and values.shape[1] % patch == 0:
        x = torch.from_numpy(np.ascontiguousarray(values))
    else:
        dtype = torch.from_numpy(values[0][:0]).dtype
        x = torch.zeros(len(values), int(steps.max()) * patch, channels, dtype=dtype)
        for row, piece in zip(x, values):
            row[: len(piece)] = torch.from_numpy(np.ascontiguousarray(piece))
    return x.reshape(len(values), -1, patch * channels), torch.from_numpy(steps)


def as_floats(x: Tensor) -> Tensor:
    """Pixels as numbers in [0, 1]; others as they are."""
    return x.float() / 255 if x.dtype == torch.uint8 else x

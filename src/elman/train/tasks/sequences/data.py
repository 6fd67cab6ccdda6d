"""Sequences laid out as tensors, and cut into batches."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from elman.errors import RunError
from elman.train.loop.task import Baseline, Batch
from elman.train.tasks.sequences.config import ImagesConfig, SequenceConfig, SeriesConfig
from elman.train.tasks.sequences.finding import find_images, find_series
from elman.train.tasks.sequences.model import ClassifierSpec, as_floats, padded, permuted
from elman.train.tasks.sequences.source import Half, Source, Values, by_group, holding_out, joined
from elman.train.tasks.walks import Walked


@dataclass(frozen=True)
class Laid:
    """One half as tensors.

    Attributes:
        x [N, T, I]: uint8 pixels, or scaled float32 with zeros behind each sequence's end.
        lengths [N]: steps of each.
        y [N]: classes.
        groups: N names, or empty.
    """

    x: Tensor
    lengths: Tensor
    y: Tensor
    groups: Sequence[str]

    def __len__(self) -> int:
        return len(self.y)


@dataclass(frozen=True)
class SequenceData(Walked):
    """A data set ready to train on.

    Attributes:
        known: what a classifier is built from.
        rows [M]: which held-out sequences are validated on.
        missing: share of values that are missing (they count as their channel's mean).
    """

    config: SequenceConfig
    name: str
    digest: str
    known: ClassifierSpec
    fit: Laid
    held: Laid
    rows: Tensor
    missing: float

    @property
    def size(self) -> str:
        """How many sequences there are."""
        return f"{len(self.fit)} + {len(self.held)} sequences"

    @property
    def inputs(self) -> int:
        """I, values per step."""
        return self.known.inputs

    @property
    def classes(self) -> tuple[str, ...]:
        """C names."""
        return tuple(self.known.classes)

    def about(self) -> str:
        """Say in one line what the data are."""
        shortest, longest = int(self.fit.lengths.min()), int(self.fit.lengths.max())
        steps = f"{longest}" if shortest == longest else f"{shortest} to {longest}"
        text = (
            f"data: {self.name}: {len(self.fit):,} sequences to learn from, {len(self.held):,} "
            f"held out; {steps} steps of {self.inputs}; {len(self.classes)} classes"
        )
        return f"{text}; {self.missing:.1%} of the values are missing" if self.missing else text

    def facts(self) -> dict[str, Any]:
        """Return what a report says about the data."""
        return {
            "source": self.name,
            "train_sequences": len(self.fit),
            "held_out_sequences": len(self.held),
            "validated": len(self.rows),
            "steps": [int(self.fit.lengths.min()), int(self.fit.lengths.max())],
            "values_per_step": self.inputs,
            "classes": list(self.classes),
            "missing_share": self.missing,
        }

    def spec(self) -> ClassifierSpec:
        """What a classifier of these sequences is built from."""
        return self.known

    def baseline(self) -> Baseline:
        """Predict the frequencies of the training half's classes (one added to each count)."""
        counts = torch.bincount(self.fit.y, minlength=len(self.classes)).double() + 1
        loss = -(counts / counts.sum()).log()[self.held.y].mean()
        right = (self.held.y == counts.argmax()).double().mean()
        return Baseline("largest class", float(loss), float(right))

    def _cut(self, half: Laid, chosen: Tensor) -> Batch:
        """Take some sequences, [T, B, I], cut to the longest."""
        lengths = half.lengths[chosen]
        x = as_floats(half.x[chosen, : int(lengths.max())])
        return Batch((x.transpose(0, 1).contiguous(), lengths), half.y[chosen], begins=True)


def prepare_series(config: SeriesConfig) -> SequenceData:
    """Read and lay out time series or raw audio. Raises InputError, RunError: there is nothing
    readable."""
    source = find_series(config.data)
    if config.unseen is not None:
        source = holding_out(source, config.unseen)
    if config.by == "group":
        source = by_group(source)
    if config.join is not None:
        source = joined(source, config.join)
    return lay_out(source, config)


def prepare_images(config: ImagesConfig) -> SequenceData:
    """Read and lay out images, pixel by pixel. Raises InputError, RunError: there is nothing
    readable."""
    source = find_images(config.data)
    if config.permute:
        halves = [
            replace(half, values=permuted(half.values)) for half in (source.train, source.test)
        ]
        source = Source(f"{source.name}, permuted", source.kind, *halves)
    return lay_out(source, config)


def lay_out(source: Source, config: SequenceConfig) -> SequenceData:
    """Scale the values, join those of one step, and number the classes. Raises RunError: the
    held-out half has classes, or channels, that the other does not."""
    classes = tuple(sorted(set(source.train.labels), key=by_number))
    if strange := sorted(set(source.test.labels) - set(classes)):
        raise RunError(
            "the held-out half has classes that the training half lacks",
            path=source.name,
            classes=", ".join(strange),
        )
    channels = [half.values[0].shape[1] for half in (source.train, source.test)]
    if channels[0] != channels[1]:
        raise RunError(
            "the two halves differ in their channels",
            path=source.name,
            channels=" and ".join(map(str, channels)),
        )
    spec = spec_of(source, classes, config.patch)
    halves, missing, count = [], 0, 0
    for half in (source.train, source.test):
        values, gone = spec.scaled(half.values)
        missing, count = missing + gone, count + sum(piece.size for piece in half.values)
        halves.append(laid(half, values, classes, config.patch))
    data = SequenceData(
        config=config,
        name=source.name,
        digest=source.digest,
        known=spec,
        fit=halves[0],
        held=halves[1],
        rows=torch.empty(0, dtype=torch.long),
        missing=missing / count,
    )
    return data.validating(config)


def by_number(label: str) -> tuple[float, str]:
    """Sort classes as numbers where they are some."""
    try:
        return (float(label), label)
    except ValueError:
        return (math.inf, label)


def spec_of(source: Source, classes: tuple[str, ...], patch: int) -> ClassifierSpec:
    """What a classifier is built from, with the scales of the training half's channels."""
    values = source.train.values
    scales = statistics(values) if source.kind == "values" else ([], [])
    return ClassifierSpec(values[0].shape[1] * patch, list(classes), source.kind, *scales)


def statistics(values: Values) -> tuple[list[float], list[float]]:
    """Return mean and 1 / standard deviation of each channel, rounded to float32."""
    whole = (
        values.reshape(-1, values.shape[2])
        if isinstance(values, np.ndarray)
        else np.concatenate(values)
    )
    mean = np.nan_to_num(np.nanmean(whole, 0, dtype=np.float64))
    spread = np.nan_to_num(np.nanstd(whole, 0, dtype=np.float64))
    scale = 1 / np.where(spread > 0, spread, 1)
    return np.asarray(mean, np.float32).tolist(), np.asarray(scale, np.float32).tolist()


def laid(half: Half, values: Values, classes: tuple[str, ...], patch: int) -> Laid:
    """Lay a half out as tensors, its values scaled."""
    numbers = {label: k for k, label in enumerate(classes)}
    y = torch.tensor([numbers[label] for label in half.labels])
    return Laid(*padded(values, patch), y, half.groups)


def by_name(right: Sequence[bool], names: Sequence[str], order: Sequence[str]) -> dict[str, str]:
    """Count what was predicted right, name by name."""
    counts, good = Counter(names), Counter(n for n, hit in zip(names, right) if hit)
    return {
        name: f"{good[name]} of {counts[name]} ({good[name] / counts[name]:.0%})"
        for name in order
        if counts[name]
    }

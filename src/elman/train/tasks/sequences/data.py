"""Sequences laid out as tensors, and cut into batches."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from elman.errors import RunError
from elman.train.loop.task import Baseline, Batch
from elman.train.tasks.arrays import Scaling
from elman.train.tasks.epochs import SequenceSet, split_by_class
from elman.train.tasks.sequences.config import ImagesConfig, SequenceConfig, SeriesConfig
from elman.train.tasks.sequences.model import ClassifierSpec, as_floats, pad, permute
from elman.train.tasks.sequences.source import Source, find_images, find_series


@dataclass(frozen=True)
class Tensors:
    """One half as tensors.

    Attributes:
        x [N, T, I]: uint8 pixels, or scaled float32 with zeros behind each sequence's end.
        lengths [N]: steps of each.
        y [N]: classes.
    """

    x: Tensor
    lengths: Tensor
    y: Tensor

    def __len__(self) -> int:
        return len(self.y)


class SequenceData(SequenceSet):
    """Sequences with a class each; the spec is a :class:`ClassifierSpec`."""

    def shape(self) -> tuple[str, dict[str, Any]]:
        """Steps and classes, in words and as facts by name."""
        shortest, longest = int(self.fit.lengths.min()), int(self.fit.lengths.max())
        steps = f"{longest}" if shortest == longest else f"{shortest} to {longest}"
        classes = self.spec.classes
        text = f"{steps} steps of {self.spec.inputs}; {len(classes)} classes"
        return text, {"steps": [shortest, longest], "classes": classes}

    def baseline(self) -> Baseline:
        """Predict the frequencies of the training half's classes (one added to each count)."""
        counts = torch.bincount(self.fit.y, minlength=len(self.spec.classes)).double() + 1
        loss = -(counts / counts.sum()).log()[self.validation_half.y].mean()
        right = (self.validation_half.y == counts.argmax()).double().mean()
        return Baseline("largest class", float(loss), float(right))

    def cut(self, half: Tensors, rows: Tensor) -> Batch:
        """Take some sequences, [T, B, I], cut to the longest."""
        lengths = half.lengths[rows]
        x = as_floats(half.x[rows, : int(lengths.max())])
        return Batch((x.transpose(0, 1).contiguous(), lengths), half.y[rows], resets_state=True)


def prepare_series(config: SeriesConfig) -> SequenceData:
    """Read and lay out time series or raw audio. Raises InputError, RunError: there is nothing
    readable."""
    return lay_out(find_series(config.data), config)


def prepare_images(config: ImagesConfig) -> SequenceData:
    """Read and lay out images, pixel by pixel. Raises InputError, RunError: there is nothing
    readable."""
    source = find_images(config.data)
    if config.permute:
        halves = [
            replace(half, values=permute(half.values)) for half in (source.train, source.test)
        ]
        source = Source(f"{source.name}, permuted", source.kind, *halves)
    return lay_out(source, config)


def lay_out(source: Source, config: SequenceConfig) -> SequenceData:
    """Scale the values, join those of one step, and number the classes. Raises RunError: the
    held-out half has classes, or channels, that the other does not."""
    classes = sorted(set(source.train.labels), key=by_number)
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
    parts = [source.train, source.test]
    if config.validation_share:
        learned, validated = split_by_class(source.train.labels, config.validation_share)
        parts = [source.train.take(learned), source.test, source.train.take(validated)]
    values, kind = parts[0].values, source.kind
    scaling = Scaling.of(np.concatenate(values)) if kind == "values" else Scaling([], [])
    spec = ClassifierSpec(channels[0] * config.patch, classes, kind, scaling)
    numbers = {label: k for k, label in enumerate(classes)}
    halves, missing, count = [], 0, 0
    for half in parts:
        missing += sum(int(np.isnan(piece).sum()) for piece in half.values)
        count += sum(piece.size for piece in half.values)
        y = torch.tensor([numbers[label] for label in half.labels])
        x, lengths = pad(spec.scale(half.values), config.patch)
        halves.append(Tensors(x, lengths, y))
    share = missing / count
    return SequenceData(config, source.name, source.digest, spec, *halves, missing=share)


def by_number(label: str) -> tuple[float, str]:
    """Sort classes as numbers where they are some."""
    try:
        return (float(label), label)
    except ValueError:
        return (math.inf, label)

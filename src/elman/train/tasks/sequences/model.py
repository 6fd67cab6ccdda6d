"""A classifier of sequences: recurrent layers, the mean and the last of their outputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from elman.errors import InputError
from elman.layers.parts import check_adds, first_output
from elman.train.loop.layers import output_size, recurrent
from elman.train.loop.task import Trained, WholeModel
from elman.train.tasks.arrays import Scaling
from elman.train.tasks.sequences.config import SequenceConfig
from elman.train.tasks.sequences.source import Values

KINDS = ("values", "wave", "pixels")
PERMUTATION_SEED = 0  # one order of the pixels for all runs: results can be compared


@dataclass(frozen=True)
class ClassifierSpec:
    """Sizes and classes that a classifier is built from, and the scaling of its input.

    Attributes:
        inputs: I, values per step.
        classes: C names.
        kind: "values", "wave" (raw audio) or "pixels".
        scaling: of each channel of the kind "values"; else empty.
    """

    inputs: int
    classes: list[str]
    kind: str
    scaling: Scaling

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"the kind must be one of {', '.join(KINDS)}, not {self.kind!r}")

    def scale(self, values: Values) -> Values:
        """Scale all but pixels, which stay bytes until they are used: waves by the loudness of each
        (root mean square), others by channel. NaN becomes 0."""
        if self.kind == "pixels":
            return values
        if self.kind == "values":
            return [self.scaling.to(piece) for piece in values]
        pieces = [piece.astype(np.float32) for piece in values]
        loudness = [max(1e-6, float(np.sqrt(np.nanmean(piece**2)))) for piece in pieces]
        return [np.nan_to_num(piece / rms, nan=0.0) for piece, rms in zip(pieces, loudness)]


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
            pieces = [*permute(np.stack(pieces))]
        x, lengths = pad(spec.scale(pieces), patch)
        x = as_floats(x).transpose(0, 1).contiguous()
        logits, _ = self.model((x.to(self.weight), lengths.to(self.weight.device)))
        return logits.softmax(-1)

    def as_module(self) -> WholeModel:
        """Return the whole model, from x [B, T, I] to logits [B, C]: values in the unit of the data
        (of waves divided by each one's root mean square, of pixels from 0 to 1), those of ``patch``
        steps one after another.

        Raises:
            InputError: the model reads the steps in another order.
        """
        if self.config.bidirectional:
            raise InputError("a bidirectional model reads each sequence from its end, too")
        if getattr(self.config, "permute", False):
            raise InputError("a model of permuted steps reads the last one first", "no --permute")
        return _Whole(self)


class _Whole(WholeModel):
    mean: Tensor
    spread: Tensor

    def __init__(self, run: TrainedClassifier) -> None:
        super().__init__(run)
        scaling, self.inputs = run.spec.scaling, run.spec.inputs
        steps = run.config.patch if scaling.mean else 0
        mean = torch.tensor(scaling.mean * steps or [0.0]).to(run.weight)
        self.register_buffer("mean", mean)
        self.register_buffer("spread", torch.tensor(scaling.spread * steps or [1.0]).to(mean))

    def forward(self, x: Tensor) -> Tensor:
        h = self.model.outputs(((x - self.mean) / self.spread).transpose(0, 1), None)
        return self.model.classify(h.mean(0), h[-1])

    def example(self, inputs: Any) -> Tensor:
        x, lengths = inputs
        return x[: int(lengths.min())].transpose(0, 1) * self.spread + self.mean

    def random(self) -> Tensor:
        return torch.randn(2, 16, self.inputs) * self.spread + self.mean


def permute(values: Values) -> np.ndarray:
    """Put the steps of equally long sequences into one fixed random order."""
    array = np.asarray(values)
    return array[:, np.random.default_rng(PERMUTATION_SEED).permutation(array.shape[1])]


def pad(values: Values, patch: int) -> tuple[Tensor, Tensor]:
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


def outputs_of(layers: nn.Module, x: Tensor, lengths: Tensor | None) -> Tensor:
    """The (first) outputs [T, B, H] of recurrent layers; with lengths [B] each sequence ends there,
    and zeros are behind it."""
    if lengths is None:
        return first_output(layers(x)[0])
    packed = pack_padded_sequence(x, lengths.cpu(), enforce_sorted=False)
    return pad_packed_sequence(first_output(layers(packed)[0]), total_length=len(x))[0]


class Residual(nn.Module):
    """Layers as of the DEER paper's long-sequence models (Lim et al. 2023, arXiv:2309.12252v3,
    sections 4.3 and 4.4): each normalises its input and adds its output to it.

    Args:
        inputs: I, size of a step.
        hidden: H, size of everything else.
        layers: recurrent modules from H to H.
        dropout: share of each layer's output dropped.
    """

    def __init__(self, inputs: int, hidden: int, layers: list[nn.Module], dropout: float) -> None:
        super().__init__()
        self.encoder = nn.Linear(inputs, hidden)
        self.norms = nn.ModuleList(nn.LayerNorm(hidden) for _ in layers)
        self.layers = nn.ModuleList(layers)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, lengths: Tensor | None) -> Tensor:
        """Outputs [T, B, H] of x [T, B, I]; for lengths see :func:`outputs_of`."""
        h = self.encoder(x)
        for norm, layer in zip(self.norms, self.layers):
            h = h + self.dropout(outputs_of(layer, norm(h), lengths))
        return h


class Classifier(nn.Module):
    """Predicts the class of whole sequences.

    Args:
        hidden: H, size of the layers' output.
        classes: C.
        layers: recurrent, with outputs [T, B, H], or residual blocks of such.
        noise: standard deviation of what is added to x in training.
        dropout: share of values dropped before the read-out.
        bidirectional: whether the second half of the outputs is read from the end.
    """

    def __init__(
        self,
        hidden: int,
        classes: int,
        layers: nn.Module,
        noise: float,
        dropout: float,
        bidirectional: bool = False,
    ) -> None:
        super().__init__()
        self.layers, self.bidirectional = layers, bidirectional
        self.noise = noise
        self.norm = nn.LayerNorm(2 * hidden)
        self.dropout = nn.Dropout(dropout)
        self.readout = nn.Linear(2 * hidden, classes)

    def forward(self, inputs: tuple[Tensor, Tensor], state: Any = None) -> tuple[Tensor, None]:
        """Predict.

        Args:
            inputs: x [T, B, I] and the steps of each sequence, [B].
            state: unused; a sequence is read at once.

        Returns:
            logits [B, C], and no state.
        """
        x, lengths = inputs
        if self.training and self.noise:
            x = x + self.noise * torch.randn_like(x)
        h = self.outputs(x, lengths if self.bidirectional else None)
        inside = torch.arange(len(x), device=x.device)[:, None] < lengths
        mean = (h * inside.unsqueeze(-1)).sum(0) / lengths.unsqueeze(-1)
        last = h[lengths - 1, torch.arange(h.shape[1], device=x.device)]
        if self.bidirectional:  # what has been read last from the end is the beginning
            half = h.shape[-1] // 2
            last = torch.cat((last[:, :half], h[0, :, half:]), -1)
        return self.classify(mean, last), None

    def outputs(self, x: Tensor, lengths: Tensor | None) -> Tensor:
        """Outputs [T, B, H] of x [T, B, I]; for lengths see :func:`outputs_of`."""
        if isinstance(self.layers, Residual):
            return self.layers(x, lengths)
        return outputs_of(self.layers, x, lengths)

    def classify(self, mean: Tensor, last: Tensor) -> Tensor:
        """Logits [B, C] of the mean and the last of the outputs, [B, H] each."""
        return self.readout(self.dropout(self.norm(torch.cat((mean, last), -1))))


def build_model(
    config: SequenceConfig, spec: ClassifierSpec, *, baseline: bool = False
) -> Classifier:
    """Build the model of a run; with `baseline` the same on torch.nn's recurrent layers."""
    torch.manual_seed(config.seed)
    if config.residual:
        stack = [
            recurrent(config, config.hidden, 1, baseline=baseline) for _ in range(config.layers)
        ]
        for layer in stack:
            check_adds(config.cell.rpartition(":")[2], config.hidden, output_size(config, layer))
        layers: nn.Module = Residual(spec.inputs, config.hidden, stack, config.dropout)
    else:
        layers = recurrent(config, spec.inputs, config.layers, baseline=baseline)
    return Classifier(
        *(output_size(config, layers), len(spec.classes), layers, config.noise, config.dropout),
        bidirectional=config.bidirectional,
    )

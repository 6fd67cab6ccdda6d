"""A forward over all steps and its gradients as functions that own no tensors, and their vmap: one
batch, or one call per slice."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from elman.engines.base import Kernel
from elman.engines.call import Call, Form, Result
from elman.engines.packed import for_layout
from elman.engines.packed_rows import Packed
from elman.nn.autograd.derived import DerivedStep
from elman.torch_internals import is_view

Some = Sequence[Tensor | None]


@dataclass(frozen=True, eq=False)
class Pass:
    """A forward over all steps that supports every transform, without its tensors.

    Attributes:
        of: the step.
        packed: layout of packed sequences.
        wants: for each argument, whether it gets a gradient.
        sampled: whether gradients of the weights may be wanted per sample, in a vmap.
        by_sample: whether they are.
        slices: indices of this call in vmaps whose slices are separate calls.
        cache: kernel and saved tensors, by arguments. torch's functions can save only arguments and
            outputs, and these tensors are neither.
    """

    of: DerivedStep
    packed: Packed | None
    wants: tuple[bool, ...]
    sampled: bool = False
    by_sample: bool = False
    slices: tuple[int, ...] = ()
    cache: dict[Any, tuple[Kernel, tuple[Tensor, ...]]] = field(default_factory=dict)

    def part(self, index: int) -> Pass:
        """Return the pass of one slice of a vmap."""
        return replace(self, by_sample=False, slices=(*self.slices, index))

    def call(self, tensors: Sequence[Tensor]) -> Call:
        """The call of tensors in the order of arguments."""
        return Form(*self.of.counts, self.packed).call(tensors)

    def forward(self, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Run all steps on plain tensors; the output and the last states."""
        kernel, (output, last, saved) = self._forward(tensors)
        if any(self.wants):
            self.cache[self._place(tensors)] = kernel, saved
        # the cached tensors share memory with the output, to which the caller may write
        return (output.clone() if is_view(output) else output, *last)

    def recall(self, tensors: Sequence[Tensor]) -> tuple[Kernel, tuple[Tensor, ...]]:
        """A kernel for the backward of plain tensors, and its forward's saved tensors."""
        entry = self.cache.get(self._place(tensors))
        if entry is not None:
            return entry
        kernel, result = self._forward(tensors)
        return kernel, result.saved

    def _forward(self, tensors: Sequence[Tensor]) -> tuple[Kernel, Result]:
        if self.by_sample:
            kernel: Kernel = self.of.per_sample(tensors[0], self.wants)
        else:
            kernel = for_layout(self.of.kernel(tensors[0], self.wants), self.packed)
        return kernel, kernel.forward(self.call(tensors))

    def _place(self, tensors: Sequence[Tensor]) -> tuple[Any, ...]:
        shapes = tuple(tensor.shape for tensor in tensors)
        return self.slices, self.wants, self.by_sample, shapes


@dataclass(frozen=True, eq=False)
class Pullback:
    """The gradients of a forward as a function, without its tensors.

    Its arguments are those of the forward, then the cotangents that are not None: of the output, of
    each last state. Its results are the wanted gradients, in order.

    Attributes:
        primal: the forward, which has the wants.
        present: for each result of the forward, whether it has a cotangent.
    """

    primal: Pass
    present: tuple[bool, ...]

    @property
    def targets(self) -> list[int]:
        """Indices of the arguments that get a gradient."""
        return [k for k, flag in enumerate(self.primal.wants) if flag]

    def part(self, index: int) -> Pullback:
        """Return the pullback of one slice of a vmap."""
        return replace(self, primal=self.primal.part(index))

    def cut(self, flat: Sequence[Tensor]) -> tuple[Sequence[Tensor], list[Tensor | None]]:
        """The forward's arguments, and a cotangent or None for each of its results."""
        count = len(self.primal.wants)
        cotangents = iter(flat[count:])
        return flat[:count], [next(cotangents) if flag else None for flag in self.present]

    def axes(self) -> list[int | None]:
        """The batch axis of each argument; the weights have none."""
        first, second = self.primal.of.counts
        results = [1, *(0 for _ in range(second))]
        return [
            *(1 for _ in range(first)),
            *(0 for _ in range(second)),
            *(None for _ in range(len(self.primal.wants) - first - second)),
            *(axis for axis, flag in zip(results, self.present, strict=True) if flag),
        ]

    def separate(self, dims: Sequence[int | None]) -> bool:
        """Whether the slices of a vmap are separate calls: they are packed, or have different
        weights.

        Args:
            dims: the axis of slices of each argument.
        """
        pairs = zip(self.axes(), dims, strict=True)
        separate_weights = any(axis is None and dim is not None for axis, dim in pairs)
        return separate_weights or self.primal.packed is not None

    def fill(
        self, tensors: Sequence[Tensor], gradients: Some, samples: int = 0
    ) -> tuple[Tensor, ...]:
        """The wanted gradients, with zeros for None.

        Args:
            tensors: the forward's arguments.
            gradients: a gradient or None for each of them.
            samples: length of the leading axis of the weights' gradients; 0: they have none.
        """
        axes = self.axes()
        values: list[Tensor] = []
        for k in self.targets:
            value, like = gradients[k], tensors[k]
            if value is None:
                lead = (samples,) if samples and axes[k] is None else ()
                value = like.new_zeros(*lead, *like.shape)
            values.append(value)
        return tuple(values)

    def unfold(
        self, results: Sequence[Tensor], batch: tuple[int, int], weights: tuple[int, int] | None
    ) -> Any:
        """Split the slices from the batch; return the results and the axes of slices.

        Args:
            results: the results.
            batch: number of slices, and of samples of each.
            weights: the same numbers for the weights' gradients; None if they have no axis of
                samples.
        """
        axes = [self.axes()[k] for k in self.targets]
        values = [
            value.unflatten(axis, batch)
            if axis is not None
            else value
            if weights is None
            else value.unflatten(0, weights)
            for value, axis in zip(results, axes, strict=True)
        ]
        return tuple(values), tuple(axis or 0 for axis in axes)


def map_slices(
    apply: Callable[..., tuple[Tensor, ...]],
    of: Pass | Pullback,
    tensors: Sequence[Tensor],
    dims: Sequence[int | None],
    count: int,
) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
    """Call a function for each slice of a vmap; return the stacked results, and their axes."""
    slices = [
        apply(of.part(k), *(t if d is None else t.select(d, k) for t, d in zip(tensors, dims)))
        for k in range(count)
    ]
    results = tuple(torch.stack(values) for values in zip(*slices, strict=True))
    return results, (0,) * len(results)


def fold(
    tensors: Sequence[Tensor],
    dims: Sequence[int | None],
    axes: Sequence[int | None],
    count: int,
) -> list[Tensor]:
    """Fold the axis of slices into the batch."""
    slices: list[Tensor] = []
    for tensor, dim, axis in zip(tensors, dims, axes, strict=True):
        if axis is not None:
            if dim is None:
                shape = tensor.shape
                tensor = tensor.unsqueeze(axis).expand(*shape[:axis], count, *shape[axis:])
            else:
                tensor = tensor.movedim(dim, axis)
            tensor = tensor.flatten(axis, axis + 1)
        slices.append(tensor)
    return slices

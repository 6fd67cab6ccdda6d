"""The gradients of a forward as a function: which arguments it has, and which results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from elman.nn.autograd.derived import Pass

Some = Sequence[Tensor | None]


@dataclass(frozen=True, eq=False)
class Pullback:
    """The gradients of a forward as a function, without its tensors.

    Its arguments are those of the forward, then the cotangents that are not None: of the output, of
    each last state. Its results are the gradients of what the forward wants, in order.

    Attributes:
        primal: the forward, with what is wanted.
        given: for each result of the forward, whether it has a cotangent.
    """

    primal: Pass
    given: tuple[bool, ...]

    @property
    def wanted(self) -> list[int]:
        """Indices of the arguments that get a gradient."""
        return [k for k, flag in enumerate(self.primal.wants) if flag]

    def part(self, index: int) -> Pullback:
        """The same for one slice of the arguments."""
        return replace(self, primal=self.primal.part(index))

    def cut(self, flat: Sequence[Tensor]) -> tuple[Sequence[Tensor], list[Tensor | None]]:
        """The forward's arguments, and a cotangent or None for each of its results."""
        count = len(self.primal.wants)
        rest = iter(flat[count:])
        return flat[:count], [next(rest) if flag else None for flag in self.given]

    def axes(self) -> list[int | None]:
        """The batch axis of each argument; the weights have none."""
        first, second = self.primal.of.counts
        results = [1, *(0 for _ in range(second))]
        return [
            *(1 for _ in range(first)),
            *(0 for _ in range(second)),
            *(None for _ in range(len(self.primal.wants) - first - second)),
            *(axis for axis, flag in zip(results, self.given, strict=True) if flag),
        ]

    def separate(self, dims: Sequence[int | None]) -> bool:
        """Whether the slices of a vmap are separate calls: packed rows, or weights of their own.

        Args:
            dims: the axis of slices of each argument.
        """
        pairs = zip(self.axes(), dims, strict=True)
        separate_weights = any(axis is None and dim is not None for axis, dim in pairs)
        return separate_weights or self.primal.packed is not None

    def filled(
        self, tensors: Sequence[Tensor], gradients: Some, samples: int = 0
    ) -> tuple[Tensor, ...]:
        """The gradients that are wanted; zeros where none flows.

        Args:
            tensors: the forward's arguments.
            gradients: a gradient or None for each of them.
            samples: length of the leading axis of the weights' gradients; 0: they have none.
        """
        axes = self.axes()
        values: list[Tensor] = []
        for k in self.wanted:
            value, like = gradients[k], tensors[k]
            if value is None:
                lead = (samples,) if samples and axes[k] is None else ()
                value = like.new_zeros(*lead, *like.shape)
            values.append(value)
        return tuple(values)

    def unfolded(
        self, made: Sequence[Tensor], batch: tuple[int, int], weights: tuple[int, int] | None
    ) -> Any:
        """Results whose batch holds all slices, with an axis of slices, and which axis that is.

        Args:
            made: the results.
            batch: slices, and samples of each.
            weights: the same of the weights' gradients, where they have an axis of samples.
        """
        axes = [self.axes()[k] for k in self.wanted]
        values = [
            value.unflatten(axis, batch)
            if axis is not None
            else value
            if weights is None
            else value.unflatten(0, weights)
            for value, axis in zip(made, axes, strict=True)
        ]
        return tuple(values), tuple(axis or 0 for axis in axes)

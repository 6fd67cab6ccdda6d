"""Arrays of one sample as values of a formula: scalars, vectors, matrices, and slices of these.

torch's tensors have any number of axes; a formula has scalars, vectors and matrices. An
:class:`Array` has the shape that torch sees, with the axis of samples as one of size 1 (or of as
many rows as each sample has in it), and a value along the axes that it holds: those longer than
one along which it is not merely repeated. The value has one of four forms:

- *uniform*: a number or a scalar; no axis is held;
- *flat*: a vector, its units in the order of rows;
- *matrix*: along two axes;
- *slices*: an array for each place along the first axis that is held.

Axes that are not held cost nothing: they are inserted, left out and repeated in ``shape`` alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from elman.errors import StepError
from elman.frontend.trace import is_number, lift
from elman.ir.graph import Rate
from elman.ir.types import is_matrix

Shape = tuple[int, ...]
MOST_SLICES = 64


class MatrixError(StepError):
    """An operation needs a matrix where leaves were read as vectors: they are read again.

    Attributes:
        leaves: their names.
    """

    def __init__(self, leaves: frozenset[str]) -> None:
        super().__init__(f"{', '.join(sorted(leaves))} as a matrix of each sample")
        self.leaves = leaves


def refuse(reason: str, hint: str = "") -> StepError:
    """The error of an operation that no formula has; where it stands is added by the reader."""
    return StepError(reason, hint)


def limited(count: int) -> int:
    """A number of slices. Raises StepError: a formula has fewer."""
    if count > MOST_SLICES:
        raise refuse(
            f"an axis of {count} is cut into its slices, of which a formula has {MOST_SLICES}"
        )
    return count


def long_axes(shape: Shape) -> list[int]:
    """The axes longer than one."""
    return [axis for axis, size in enumerate(shape) if size != 1]


def put(shape: Shape, axis: int, *sizes: int) -> Shape:
    """A shape with other sizes, or none, in place of an axis."""
    return (*shape[:axis], *sizes, *shape[axis + 1 :])


def broadcast(*shapes: Shape) -> Shape:
    """The shape of an elementwise operation."""
    rank = max(map(len, shapes), default=0)
    padded = [(1,) * (rank - len(shape)) + shape for shape in shapes]
    result: list[int] = []
    for sizes in zip(*padded, strict=True):
        larger = {size for size in sizes if size != 1}
        if len(larger) > 1:
            raise refuse(f"shapes {[*map(list, shapes)]} do not meet")
        result.append(larger.pop() if larger else 1)
    return tuple(result)


@dataclass(frozen=True, eq=False)
class Array:
    """A value of one sample.

    Attributes:
        value: a number or tracer; of slices, an array of the other held axes at each place.
        base: the shape that is held; an axis that is only repeated has size 1.
        shape: as torch has it.
        batch: which axis is that of samples; None: there is none.
        leaves: of two axes, read as vectors, that it was made of.
    """

    value: Any
    base: Shape
    shape: Shape
    batch: int | None = None
    leaves: frozenset[str] = frozenset()

    @property
    def axes(self) -> list[int]:
        """The axes that are held."""
        return long_axes(self.base)

    @property
    def slices(self) -> bool:
        """Whether its value is a list of arrays."""
        return isinstance(self.value, list)

    @property
    def uniform(self) -> bool:
        """Whether it has one value, the same at each place."""
        return not self.slices and prod(self.base) == 1

    @property
    def matrix(self) -> bool:
        """Whether its value is a matrix, of weights or of a sample."""
        if self.slices or self.uniform:
            return False
        shape = lift(self.value).shape
        return len(shape) == 2 or is_matrix(self.value.node)

    @property
    def flat(self) -> bool:
        """Whether its value is a vector."""
        return not (self.slices or self.uniform or self.matrix)

    @property
    def of_weights(self) -> bool:
        """Whether it depends on weights alone."""
        if self.slices:
            return all(part.of_weights for part in self.value)
        return is_number(self.value) or lift(self.value).rate == Rate.WEIGHT

    @property
    def number(self) -> float | None:
        """Its value, if it is one number; else None."""
        return self.value if is_number(self.value) else None

    def like(self, value: Any, base: Shape | None = None) -> Array:
        """Another value in the same shape."""
        return replace(self, value=value, base=self.base if base is None else base)


def number(value: float, shape: Shape = (), batch: int | None = None) -> Array:
    """A number at each place."""
    return Array(value, (1,) * len(shape), shape, batch)


def drop_axis(array: Array, axis: int) -> Array:
    """Without an axis that is not held: it is of one place."""
    batch = array.batch
    if batch is not None:
        batch = None if axis == batch else batch - (axis < batch)
    return replace(array, base=put(array.base, axis), shape=put(array.shape, axis), batch=batch)


def add_axis(array: Array, axis: int) -> Array:
    """With a further axis of size 1."""
    batch = array.batch
    if batch is not None:
        batch += axis <= batch
    base, shape = ((*s[:axis], 1, *s[axis:]) for s in (array.base, array.shape))
    return replace(array, base=base, shape=shape, batch=batch)


def padded(array: Array, rank: int) -> Array:
    """With so many axes: further ones come first."""
    while len(array.shape) < rank:
        array = add_axis(array, 0)
    return array


def expand(array: Array, shape: Shape, batch: int | None) -> Array:
    """An array repeated to a shape."""
    array = padded(array, len(shape))
    return replace(array, shape=broadcast(array.shape, shape), batch=batch)


def whole_of(arrays: Sequence[Array], base: Shape, shape: Shape) -> Array:
    """What arrays make together, still without a value."""
    from_right = {len(array.shape) - array.batch for array in arrays if array.batch is not None}
    if len(from_right) > 1:
        raise refuse("it joins different samples")
    batch = len(shape) - from_right.pop() if from_right else None
    leaves = frozenset[str]().union(*[array.leaves for array in arrays])
    return Array(0.0, base, shape, batch, leaves)

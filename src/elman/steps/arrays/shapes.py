"""Shapes of arrays, and errors about them."""

from __future__ import annotations

from elman.errors import StepError

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

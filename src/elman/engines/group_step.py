"""The step of a group of dependent states, from which Newton kernels are generated, and how far
their iterations are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from elman.ir.graph import Node

if TYPE_CHECKING:
    from torch import Tensor


class GroupStep(NamedTuple):
    """The step of one group of states, and its adjoint.

    Attributes:
        states: leaves, in the order of the trajectory.
        after: their next values.
        seeds: cotangents of the next values.
        rows: cotangents of the states (None: zero).
    """

    states: Sequence[Node]
    after: Sequence[Node]
    seeds: Sequence[Node]
    rows: Sequence[Node | None]


class Progress(NamedTuple):
    """Where kernels note how far an iteration is from the end, without the host.

    Attributes:
        off: a row for each iteration [rows, 2]: the largest residual of the iterate that it begins
            with, NaN counting as infinity, and the largest value. Zeros before.
        k: row of this iteration. An iteration after one that was near enough changes nothing, and
            notes what that noted.
        demanded: what is near enough: a residual, as a share of the largest value (at least 1).
    """

    off: Tensor
    k: int = 0
    demanded: float = 0.0

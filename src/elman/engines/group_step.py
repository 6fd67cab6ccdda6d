"""The step of a group of dependent states, from which Newton kernels are generated, and the
convergence of their iterations."""

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
    """Memory in which kernels record the convergence of an iteration, without the host.

    Attributes:
        off: a row for each iteration [rows, 2]: the largest residual of the iterate that it begins
            with, NaN counting as infinity, and the largest value. Initially zero.
        k: row of this iteration. After a converged iteration, further ones change nothing and
            repeat its row.
        demanded: tolerance: a residual, as a share of the largest value (at least 1).
    """

    off: Tensor
    k: int = 0
    demanded: float = 0.0

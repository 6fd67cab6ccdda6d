"""The step of a group of dependent states, from which Newton kernels are generated."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from elman.ir.graph import Node


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

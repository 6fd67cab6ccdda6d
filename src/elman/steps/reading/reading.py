"""What a step that was read consists of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from elman.frontend.cell import Cell
from elman.frontend.signature import Declared
from elman.steps.recording.tape import Place, Ref, Tape

KINDS = ("input", "static", "state", "weight")  # of arguments, in their order


class Leaf(NamedTuple):
    """An argument of the cell.

    Attributes:
        kind: one of ``KINDS``.
        ref: whose value it is; None: of a constant.
        at: which slice of it along its leading axes longer than one.
        declared: its name and shape.
        constant: the value, of a constant.
    """

    kind: str
    ref: Ref | None
    at: tuple[int, ...]
    declared: Declared
    constant: Tensor | None = None


class Result(NamedTuple):
    """A leaf of what the step returns.

    Attributes:
        kind: ``plain`` (no tensor), ``outside`` (of torch, before or after the loop), ``static``
            (handed on as it is), ``cell``.
        value: what it is; a reference.
        parts: of a result of the cell: which of its values, nested by slices.
        place: of the result.
        base: the shape of one sample that the cell hands out.
        dtype: of the result.
    """

    kind: str
    value: Any
    parts: Any
    place: Place
    base: tuple[int, ...]
    dtype: torch.dtype


@dataclass
class Reading:
    """A step as a formula.

    Attributes:
        tape: that was read.
        cell: the formula.
        leaves: its arguments.
        before: numbers of entries that torch computes before the loop: of weights alone; of inputs.
        after: numbers of entries that torch computes after it.
        carries: next states, ys: other results, in the order in which the step returns them.
        exported: references of the tape that the entries after the loop read, and how they leave.
        states: for each leaf of the carry, the names of the cell's states that hold it.
    """

    tape: Tape
    cell: Cell
    leaves: list[Leaf]
    before: tuple[list[int], list[int]]
    after: list[int]
    carries: list[Result]
    ys: list[Result]
    exported: dict[Ref, Result]
    states: list[list[Leaf]]

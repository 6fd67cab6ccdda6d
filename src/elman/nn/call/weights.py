"""Weights of a call: dropped or rounded copies of a module's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

Weights = Sequence[Sequence[Tensor]]
_LEAST = -40  # exponent; smaller numbers are rounded to 0
_FINER = 6  # by how many powers of two rows of one matrix may differ: their sums are aligned in C


class Grid(NamedTuple):
    """How a matrix is rounded.

    Attributes:
        bits: of its whole numbers, the sign included.
        by_row: whether each row has a power of two of its own.
    """

    bits: int
    by_row: bool


def drop_weights(
    weights: Weights, recurrent: Sequence[Sequence[bool]], share: float
) -> list[list[Tensor]]:
    """The weights of a call, of those that multiply what depends on a state some dropped
    (Wan et al. 2013; Merity, Keskar & Socher 2018, arXiv:1708.02182v1, sec. 2)."""
    return [
        [torch.dropout(value, share, True) if drops else value for value, drops in zip(*layer)]
        for layer in zip(weights, recurrent, strict=True)
    ]


def round_weights(weights: Weights, grids: Sequence[Sequence[Grid | None]]) -> list[list[Tensor]]:
    """The weights of a call, matrices rounded to whole numbers times powers of two; gradients pass
    as if they were not."""
    return [
        [value if grid is None else round_matrix(value, grid) for value, grid in zip(*layer)]
        for layer in zip(weights, grids, strict=True)
    ]


def round_matrix(value: Tensor, grid: Grid) -> Tensor:
    """A matrix on its grid."""
    exact = value.detach()
    unit = torch.exp2(exponents(exact, grid).to(exact.dtype))
    if grid.by_row:
        unit = unit.unsqueeze(-1)
    most = 2 ** (grid.bits - 1) - 1
    rounded = (exact / unit).round().clamp(-most, most) * unit
    return rounded + (value - exact)  # the difference is 0, and has the gradient


def exponents(value: Tensor, grid: Grid) -> Tensor:
    """The exponents of the powers of two: [rows], or [] of the whole matrix."""
    if not value.numel():
        return value.new_zeros(value.shape[:1] if grid.by_row else (), dtype=torch.int64)
    largest = value.abs().amax(-1) if grid.by_row else value.abs().amax()
    most = 2 ** (grid.bits - 1) - 1
    # frexp's exponent e has |value| / most <= 2^e
    fraction, exponent = torch.frexp(largest.double() / most)
    exponent = torch.where(fraction == 0.5, exponent - 1, exponent)
    exponent = torch.where(largest > 0, exponent, _LEAST).clamp_min(_LEAST)
    return torch.maximum(exponent, exponent.amax() - _FINER).long()

"""Gradients of weight rate: sums over the rows of all steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from elman.engines.triton.launch import Arrays
from elman.engines.triton.rows import joined, multiplied
from elman.engines.triton.sweeping import Sweeping
from elman.engines.weights import Values
from elman.ir.graph import Node
from elman.ir.pair import Sum


def totals(sweep: Sweeping, sums: Sequence[Sum], arrays: Arrays, dtype: torch.dtype) -> Values:
    """Σ over all rows, one product for all that multiply with the same rows.

    Args:
        sweep: backward.
        sums: what is summed.
        arrays: [.., rows, n] each; the dots are heads, if there are any.
        dtype: of the results.
    """
    layout, rows = sweep.layout, arrays["tape"].shape[-2]

    def rows_of(value: Node) -> Tensor:
        base, offset = sweep.place(sweep.sweep.summed(value))
        return arrays[base].narrow(-2, 0, rows).narrow(-1, offset, layout.width(value))

    found: Values = {}

    def add(target: Node, part: Tensor) -> None:
        found[target] = part if target not in found else found[target] + part

    by_right: dict[Node, list[Any]] = {}
    alone: dict[Node, Tensor] = {}
    for term in sums:
        if term.right is not None:
            by_right.setdefault(term.right, []).append(term)
            continue
        if term.left not in alone:
            total = rows_of(term.left).sum(-2, dtype=torch.float32).to(dtype)
            alone[term.left] = total if term.left.shape else total[..., 0]
        add(term.target, alone[term.left])
    for right, terms in by_right.items():
        lefts = list(dict.fromkeys(term.left for term in terms))
        whole = joined([rows_of(left).mT for left in lefts])
        widths = [layout.width(left) for left in lefts]
        made = multiplied(whole, rows_of(right).to(dtype)).to(dtype).split(widths, -2)
        split = dict(zip(lefts, made, strict=True))
        for term in terms:
            add(term.target, split[term.left])
    return found

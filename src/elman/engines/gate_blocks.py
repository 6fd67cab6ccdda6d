"""Views of gate blocks and weight blocks in the arguments of a cell."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from elman.ir.graph import Node
from elman.ir.types import gate_block_size


class GateBlockViews:
    """Splits arguments into the leaves of a canonical step, and joins them again.

    Args:
        declared: leaves of the step as written.
        leaves: leaves of the canonical step.
        sizes: sizes of the named dims.
    """

    def __init__(
        self, declared: Iterable[Node], leaves: Iterable[Node], sizes: Mapping[str, int]
    ) -> None:
        names = {leaf.name: leaf for leaf in declared}
        self._cuts = {leaf: _cut(names[leaf.name].shape, leaf, sizes) for leaf in leaves}

    def gate_blocks(
        self, leaves: Sequence[Node], arguments: Mapping[str, Tensor]
    ) -> dict[Node, Tensor]:
        """The gate blocks of arguments, by their leaves; leading axes (T, B) are kept."""
        return {leaf: arguments[leaf.name][self._cuts[leaf]] for leaf in leaves}

    def joined(self, leaves: Sequence[Node], blocks: Sequence[Tensor], like: Tensor) -> Tensor:
        """Join blocks into an argument's array; the reverse of :meth:`gate_blocks`."""
        array = torch.empty_like(like, memory_format=torch.contiguous_format)
        for leaf, block in zip(leaves, blocks, strict=True):
            array[self._cuts[leaf]] = block
        return array


def _cut(declared: Any, leaf: Node, sizes: Mapping[str, int]) -> Any:
    """Index of a gate block or weight block in its argument."""
    if not declared:
        return ...
    places = [leaf.row] if len(declared) == 1 else [leaf.row, leaf.column]
    cuts: list[slice] = []
    for dim, place in zip(declared, places, strict=True):
        edges = [gate_block_size(gate_block, sizes) for gate_block in dim]
        start = sum(edges[:place])
        cuts.append(slice(start, start + edges[place]))
    return (..., *cuts)

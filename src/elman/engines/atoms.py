"""Where atoms and blocks lie in the arguments of a cell."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from elman.ir.graph import Node
from elman.ir.types import atom_size


class Places:
    """Cuts arguments into the leaves of a canonical step, and puts them together again.

    Args:
        declared: leaves of the step as written.
        leaves: those of the canonical step.
        sizes: of the named dims.
    """

    def __init__(
        self, declared: Iterable[Node], leaves: Iterable[Node], sizes: Mapping[str, int]
    ) -> None:
        names = {leaf.name: leaf for leaf in declared}
        self._cuts = {leaf: _cut(names[leaf.name].shape, leaf, sizes) for leaf in leaves}

    def atoms(self, leaves: Sequence[Node], given: Mapping[str, Tensor]) -> dict[Node, Tensor]:
        """The atoms of arguments, by their leaves; leading axes (T, B) are kept."""
        return {leaf: given[leaf.name][self._cuts[leaf]] for leaf in leaves}

    def joined(self, leaves: Sequence[Node], parts: Sequence[Tensor], like: Tensor) -> Tensor:
        """An argument's array from those of its atoms or blocks; the reverse of :meth:`atoms`."""
        made = torch.empty_like(like, memory_format=torch.contiguous_format)
        for leaf, part in zip(leaves, parts, strict=True):
            made[self._cuts[leaf]] = part
        return made


def _cut(declared: Any, leaf: Node, sizes: Mapping[str, int]) -> Any:
    """Where an atom or block lies in its argument."""
    if not declared:
        return ...
    places = [leaf.row] if len(declared) == 1 else [leaf.row, leaf.column]
    cuts: list[slice] = []
    for dim, place in zip(declared, places, strict=True):
        edges = [atom_size(atom, sizes) for atom in dim]
        start = sum(edges[:place])
        cuts.append(slice(start, start + edges[place]))
    return (..., *cuts)

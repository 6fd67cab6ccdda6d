"""For what a kernel is made: sizes, dtype, device, and which gradients are asked for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Tape = Literal["save", "auto", "recompute"]


@dataclass(frozen=True)
class Spec:
    """What is fixed when a kernel is compiled; T and B never are.

    Attributes:
        dims: (name, size) of every named dim of the cell, sorted.
        dtype: torch's name of it: ``"float32"``, ``"float64"``, ``"bfloat16"``, ``"float16"``. An
            engine refuses what it has no kernels for; ``reference`` runs any floating dtype.
        device: torch's device type, ``"cpu"`` or ``"cuda"``.
        wants: names of the inputs and weights that need a gradient (initial states always get one).
        training: whether a backward can follow; without it nothing is taped.
        tape: how much the forward keeps for the backward.
    """

    dims: tuple[tuple[str, int], ...]
    dtype: str = "float32"
    device: str = "cpu"
    wants: frozenset[str] = frozenset()
    training: bool = True
    tape: Tape = "auto"

    @property
    def sizes(self) -> Mapping[str, int]:
        """The binding of dims as a mapping."""
        return dict(self.dims)

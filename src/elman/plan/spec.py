"""Specification of a kernel: sizes, dtype, device, gradients, options."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, Self, get_args

from elman.checks import check_names, shown
from elman.errors import InputError, diagnostic

Tape = Literal["save", "auto", "recompute"]
# What `without=` can leave out, to measure what it gains: name -> what it does.
OPTIMIZATIONS: Mapping[str, str] = {
    "merging": "products of one value, and products that are added up, run as one product",
    "fusion": "all operations on a unit between two products run in one pass, sums of products too",
    "hoisting": "what inputs alone decide is computed for all steps at once, before the loop",
    "tiling": "products are cut into blocks that stay in registers and caches, of packed weights",
    "simd": "an instruction computes a vector of units",
    "threads": "several threads share a call",
    "specialization": "exp, tanh and what is made of them are the kernel's own code, without calls",
}


@dataclass(frozen=True)
class PlanOptions:
    """Options of compilation; results depend on them only by rounding.

    Attributes:
        tape: how much the forward keeps for the backward.
        without: optimizations that are left out, of :data:`OPTIMIZATIONS`.

    Raises:
        InputError: an unknown tape mode or optimization.
    """

    tape: Tape = "auto"
    without: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        tape: Any = self.tape
        if not isinstance(tape, str) or tape not in get_args(Tape):
            raise InputError(f'tape must be "save", "auto" or "recompute", got {shown(tape)}')
        if unknown := self.without - {*OPTIMIZATIONS}:
            raise InputError(
                diagnostic(
                    f"there is no optimization {min(unknown)!r} to leave out",
                    [(name, effect) for name, effect in OPTIMIZATIONS.items()],
                )
            )

    @classmethod
    def of(cls, tape: Tape, without: Collection[str]) -> Self:
        """Options as modules and ``explain`` take them; ``without`` may be one name. Raises
        InputError: an unknown tape mode or optimization."""
        return cls(tape, check_names("without", without, 'without=["fusion", "simd"]'))

    def to_json(self) -> dict[str, Any]:
        """All fields, JSON-able."""
        return {**asdict(self), "without": sorted(self.without)}

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Self:
        """The options that :meth:`to_json` wrote."""
        values: dict[str, Any] = {**fields, "without": frozenset(fields["without"])}
        return cls(**values)


USUAL = PlanOptions()


@dataclass(frozen=True)
class Spec:
    """Everything fixed at compile time; T and B never are.

    Attributes:
        dims: (name, size) of every named dim of the cell, sorted.
        dtype: torch's name of it: ``"float32"``, ``"float64"``, ``"bfloat16"``, ``"float16"``. An
            engine refuses what it has no kernels for; ``reference`` runs any floating dtype.
        device: torch's device type, ``"cpu"`` or ``"cuda"``.
        wants: names of the inputs and weights that need a gradient (initial states always get one).
        training: whether a backward can follow; without it nothing is taped.
        options: what a user has decided.
    """

    dims: tuple[tuple[str, int], ...]
    dtype: str = "float32"
    device: str = "cpu"
    wants: frozenset[str] = frozenset()
    training: bool = True
    options: PlanOptions = USUAL

    @property
    def sizes(self) -> Mapping[str, int]:
        """The binding of dims as a mapping."""
        return dict(self.dims)

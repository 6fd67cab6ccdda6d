"""Specification of a kernel: sizes, dtype, device, gradients, options."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from elman.checks import check_choice, check_names, shown
from elman.errors import InputError, diagnostic
from elman.plan.checkpoint import Steps, checked

Tape = Literal["save", "auto", "recompute"]
Precision = Literal["ieee", "bf16"]
# Optimizations that `without=` leaves out, to measure their gain: name -> effect.
OPTIMIZATIONS: Mapping[str, str] = {
    "merging": "products of one value, and products that are added up, run as one product",
    "fusion": "all operations on a unit between two products run in one pass, sums of products too",
    "hoisting": "what inputs alone decide is computed for all steps at once, before the loop",
    "tiling": "products are cut into blocks that stay in registers and caches, of packed weights",
    "simd": "an instruction computes a vector of units",
    "threads": "several threads share a call",
    "specialization": "exp, tanh and what is made of them are the kernel's own code, without calls",
}


def check_precision(precision: Any) -> Precision | None:
    """Check ``precision=``. Raises InputError."""
    if precision is not None:
        check_choice("precision", precision, get_args(Precision))
    return precision


@dataclass(frozen=True, init=False, repr=False)
class PlanOptions:
    """How a cell is compiled and what the forward saves; it changes results only by rounding.

    Pass it to any module, ``elman.GRU(64, 128, plan=elman.PlanOptions(checkpoint=300))``, or with
    a cell to ``elman.explain`` and ``elman.draw``.

    Args:
        tape: which activations the forward saves: ``"save"`` all that the backward reads,
            ``"recompute"`` as few as possible, ``"auto"`` the cheapest set.
        without: optimizations to turn off, to measure their gain: a name, or several, of
            ``elman.plan.spec.OPTIMIZATIONS``.
        checkpoint: K saves the states of every K-th step and no tape, which the backward then
            recomputes. This costs about one more forward, if K steps of all samples have more rows
            than a weight. ``"auto"`` uses the fewest spans that fit into the budget, or none if the
            whole tape fits.
        memory_budget: memory for states and tapes of all layers in a training step, in bytes or as
            ``"2GiB"``, without inputs, outputs and gradients; for ``checkpoint="auto"``.
        precision: precision of products; ``precision=`` of a module overrides it.

    Raises:
        InputError: a field has no such value, or budget and checkpoint exclude each other.

    Example:
        >>> elman.PlanOptions(without="merging", checkpoint="auto", memory_budget="2KiB")
        PlanOptions(without=['merging'], checkpoint='auto', memory_budget=2048)
    """

    tape: Tape
    without: frozenset[str]
    checkpoint: Steps
    memory_budget: int | None
    precision: Precision | None

    def __init__(
        self,
        tape: Tape = "auto",
        without: str | Collection[str] = (),
        checkpoint: Steps = None,
        memory_budget: int | str | None = None,
        precision: Precision | None = None,
    ) -> None:
        mode: Any = tape
        if not isinstance(mode, str) or mode not in get_args(Tape):
            raise InputError(f'tape must be "save", "auto" or "recompute", got {shown(mode)}')
        names = check_names("without", without, 'without=["fusion", "simd"]')
        if unknown := names - {*OPTIMIZATIONS}:
            raise InputError(
                diagnostic(
                    f"there is no optimization {min(unknown)!r} to leave out",
                    [(name, effect) for name, effect in OPTIMIZATIONS.items()],
                )
            )
        steps, budget = checked(checkpoint, memory_budget)
        fields: dict[str, Any] = {"tape": mode, "without": names, "checkpoint": steps}
        fields |= {"memory_budget": budget, "precision": check_precision(precision)}
        for name, value in fields.items():
            object.__setattr__(self, name, value)

    def __reduce__(self) -> Any:
        """By its arguments, which ``torch.load(weights_only=True)`` reads."""
        plan = (self.tape, sorted(self.without), self.checkpoint, self.memory_budget)
        return PlanOptions, plan if self.precision is None else (*plan, self.precision)

    def __repr__(self) -> str:
        """The fields that are not the default."""
        usual: dict[str, Any] = {"tape": "auto", "without": []}
        fields = [f"{k}={v!r}" for k, v in self.to_json().items() if usual.get(k) != v]
        return f"PlanOptions({', '.join(fields)})"

    @property
    def compiled(self) -> PlanOptions:
        """The options that a layer depends on; ``checkpoint`` divides calls, not layers."""
        return PlanOptions(self.tape, self.without, precision=self.precision)

    @property
    def planned(self) -> PlanOptions:
        """The options that a program depends on; ``Spec.precision`` has the kernel's precision."""
        return PlanOptions(self.tape, self.without)

    def with_precision(self, precision: Precision) -> PlanOptions:
        """The same options, another precision."""
        return PlanOptions(self.tape, self.without, self.checkpoint, self.memory_budget, precision)

    def to_json(self) -> dict[str, Any]:
        """The arguments, JSON-able; checkpoint, budget and precision only if they are set."""
        fields: dict[str, Any] = {"tape": self.tape, "without": sorted(self.without)}
        kept = {"checkpoint": self.checkpoint, "memory_budget": self.memory_budget}
        kept["precision"] = self.precision
        return fields | {name: value for name, value in kept.items() if value is not None}


USUAL = PlanOptions()


def check_plan(plan: Any) -> PlanOptions:
    """Check ``plan=``. Raises InputError."""
    if not isinstance(plan, PlanOptions):
        message = f"plan must be an elman.PlanOptions, got {shown(plan)}"
        raise InputError(message, "plan=elman.PlanOptions(checkpoint=100)")
    return plan


@dataclass(frozen=True)
class Spec:
    """Everything fixed at compile time; T and B never are.

    Attributes:
        dims: (name, size) of every named dim of the cell, sorted.
        dtype: torch's name: ``"float32"``, ``"float64"``, ``"bfloat16"``, ``"float16"``. An engine
            refuses dtypes that it has no kernels for; ``reference`` runs any floating dtype.
        device: torch's device type, ``"cpu"`` or ``"cuda"``.
        wants: names of the inputs and weights that need a gradient (initial states always get one).
        training: whether a backward can follow; without it nothing is taped.
        options: the user's options, see :attr:`PlanOptions.planned`.
        precision: of products: ``"ieee"``, or ``"bf16"``, which rounds operands to bfloat16.
        steps: number of steps merged into one (``passes/merge``): outputs, and the gradients of
            inputs, lie in memory step by step.
    """

    dims: tuple[tuple[str, int], ...]
    dtype: str = "float32"
    device: str = "cpu"
    wants: frozenset[str] = frozenset()
    training: bool = True
    options: PlanOptions = USUAL
    precision: str = "ieee"
    steps: int = 1

    @property
    def sizes(self) -> Mapping[str, int]:
        """The binding of dims as a mapping."""
        return dict(self.dims)

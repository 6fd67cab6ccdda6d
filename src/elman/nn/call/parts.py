"""What follows from a module's cell, sizes and options, and the arguments of one of its calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from torch import Tensor

from elman.engines.packed import Packed
from elman.nn.call.layout import Layout
from elman.nn.call.matrix_shapes import MatrixShapes
from elman.nn.call.packing import Rows
from elman.nn.call.signature import Signature
from elman.nn.options.base import StepValues
from elman.plan.spec import USUAL, PlanOptions

if TYPE_CHECKING:
    from elman.nn.call.cache import CallCache
    from elman.nn.execute.layer import Runner
    from elman.nn.execute.stack import Stack

PARTS = "_parts"  # the attribute that no copy and no pickle has


class Parts(NamedTuple):
    """What follows from a module's cell, sizes and options.

    Attributes:
        runners: one per layer and direction, by the suffix of its weights' names: ``l0``,
            ``l0_reverse`` …
        stack: of them.
        stack_key: of the stack, for torch's compiler.
        names: of the parameters of each.
        signature: what the module takes.
        draws: how often cells draw random numbers anew: per ``step``, per ``sequence``.
        cuts: where the weights of each lie among all.
        plans: of calls that came before.
        recurrent: of each weight of each, whether it is a matrix that multiplies what depends on a
            state.
        options: of each layer, of the module when this was made.
        begins: whether a sequence that is given no state may begin with something else than zeros:
            with what is learned, or with what cells say (``init=``).
        matrices: per sample, as a caller gives and gets them; None without any.
    """

    runners: dict[str, Runner]
    stack: Stack
    stack_key: str
    names: list[list[str]]
    signature: Signature
    cuts: list[slice]
    plans: CallCache
    recurrent: list[list[bool]]
    draws: tuple[str, ...] = ()
    begins: bool = False
    options: PlanOptions = USUAL
    matrices: MatrixShapes | None = None

    @property
    def dims_of_input(self) -> int:
        """Dims of the first input of one sample: 0 for a scalar, 2 for a matrix."""
        matrix = self.matrices is not None and self.matrices.inputs[0][1] is not None
        return 2 if matrix else len(self.signature.inputs[0][1])

    @property
    def dims_of_state(self) -> int:
        """The same of the first state."""
        matrix = self.matrices is not None and any(axes for _, axes in self.matrices.states[:1])
        return 2 if matrix else len(self.signature.states[0][1])

    @property
    def state_sizes(self) -> list[tuple[int, ...]]:
        """Size of each state of one sample, as a caller gives and gets it."""
        sizes = [tuple(size) for _, size in self.signature.states]
        if self.matrices is None or not self.matrices.states:
            return sizes
        return [axes or size for size, (_, axes) in zip(sizes, self.matrices.states, strict=True)]


@dataclass
class BoundCall:
    """The arguments of one call in the inner layout; options change it as they enter.

    Attributes:
        parts: of the module.
        training: whether the module trains.
        directions: 1 or 2.
        layout: how the arguments lay.
        options: as given, by name.
        inputs: [T, B, n] each (packed [N, n]); then static ones [B, n].
        states: as of :class:`elman.nn.call.layout.StateForm`.
        weights: of each layer and direction, in declared order.
        initial: default initial states [lead, 1, n], as ``states``; None: zeros.
        state_given: whether the call was given a state.
        rows: how packed sequences lie; None: every sequence has T steps.
        lengths: of a padded batch that is packed only inside a compiled program.
        steps: the values of options in use.
    """

    parts: Parts
    training: bool
    directions: int
    layout: Layout
    options: Mapping[str, Any]
    inputs: tuple[Tensor, ...]
    states: tuple[Tensor, ...]
    weights: Sequence[Sequence[Tensor]]
    initial: tuple[Tensor, ...] | None = None
    state_given: bool = False
    rows: Rows | None = None
    lengths: Tensor | None = None
    steps: list[StepValues] = field(default_factory=list)

    @property
    def packed(self) -> Packed | None:
        """How packed sequences lie."""
        return None if self.rows is None else self.rows.packed

"""One direction of a program: the batched phases before and after the steps, and the steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from triton import knobs

from elman.engines.precision import precision
from elman.engines.triton.device import limits
from elman.engines.triton.device.launch import Arrays, arguments, fresh, numbered, processors
from elman.engines.triton.device.schedule import TritonSchedule
from elman.engines.triton.device.source import function
from elman.engines.triton.loops.batched_phase import BatchedPhase
from elman.engines.triton.loops.grid import Grid
from elman.engines.triton.loops.loop import Loop
from elman.engines.triton.loops.matrix_loop import MatrixLoop
from elman.engines.triton.loops.matrix_schedules import Cut, cut_of
from elman.engines.triton.text.layout import ColumnRange, TritonLayout
from elman.errors import EngineError
from elman.ir.graph import Node
from elman.plan.program import Sweep


class Sweeping:
    """One direction: the phases before, in and after the steps.

    Args:
        layout, sweep, schedule: the direction, its layout and its schedule.
        kept_states: which states are stored at every step.
        packed: whether rows are packed, each sample with its own number of steps.
        heads: whether several heads run side by side, with arrays and weights of their own.

    Attributes:
        lowering, step: the lowered direction, and its lowered step.
        matrices: matrices of its products.
        steps: runner of single steps, if they are launched one by one; ``loop`` is then None.
        wide: whether states go from step to step in float32, in addition to the kept sequences.
    """

    def __init__(
        self,
        layout: TritonLayout,
        sweep: Sweep,
        schedule: TritonSchedule,
        kept_states: tuple[bool, ...],
        *,
        packed: bool = False,
        heads: bool = False,
    ) -> None:
        self.layout, self.schedule, self.packed = layout, schedule, packed
        self.lowering = lowering = layout.lowering(sweep)
        before, self.step, after = lowering.lowered_phases()
        self.forward = lowering.name == "forward"
        self.before = BatchedPhase(layout, before, heads=heads)
        self.after = BatchedPhase(layout, after, heads=heads)
        self.steps: BatchedPhase | None = None
        self.wide = False
        self.loop: Loop | None = None
        self.text = ""
        if schedule.kind == "steps":
            self.wide = self.forward and layout.program.spec.dtype != "float32"
            self.steps = BatchedPhase(layout, self.step, wide=self.wide, heads=heads)
        else:
            options = {"kept_states": kept_states, "packed": packed, "heads": heads}
            if layout.program.pair.step.has_matrices:
                replay, cut = lowering.lowered_replay(), cut_of(layout.program) or Cut("columns")
                partial = frozenset[int]() if self.forward else cut.partial_states
                self.loop = MatrixLoop(
                    layout, schedule, lowering, self.step, replay, cut.axis, partial, **options
                )
            else:
                kind = Grid if schedule.kind == "grid" else Loop
                self.loop = kind(layout, schedule, lowering, self.step, **options)
            self.text = self.loop.text()
            self.kernel = function("loop", self.text)
        self.matrices = self._matrices()

    def _matrices(self) -> list[Node]:
        matrices = [matrix for runner in self.runners for matrix in runner.matrices()]
        loop_matrices = self.loop.matrices if self.loop is not None else ()
        return list(dict.fromkeys([*matrices, *(node for node, _ in loop_matrices)]))

    @property
    def runners(self) -> list[BatchedPhase]:
        """All phases that run on rows."""
        each = [self.steps] if self.steps is not None else []
        return [self.before, *each, self.after]

    @property
    def arrays(self) -> set[str]:
        """Names of the arrays of which batched phases need the rows of all steps."""
        return self.before.arrays | self.after.arrays

    def run(
        self, arrays: Arrays, states: Sequence[Tensor], steps: int, element: Any
    ) -> Sequence[Tensor]:
        """All steps in one kernel.

        Args:
            arrays: by the kernel's names, [.., rows, n]; the dots are heads, if there are any.
            states: before the first step, in float32 [.., B, n].
            steps: number of steps.
            element: Triton's type of the operands of products.

        Returns:
            The states after the last step.
        """
        if isinstance(self.loop, MatrixLoop):
            return self._with_matrices(self.loop, arrays, states, steps, element)
        if isinstance(self.loop, Grid):
            arrays = {**arrays, **self._shared(self.loop, states, arrays["tape"], steps)}
            arrays |= {"tapenow": arrays["tape"], "chnow": arrays["ch"]}
            if knobs.runtime.interpret and self.loop.programs > 1:
                return self._without_barrier(self.loop, arrays, states, steps, element)
        return self._launch(arrays, states, (0, steps), steps, element)

    def _shared(self, loop: Grid, states: Sequence[Tensor], like: Tensor, steps: int) -> Arrays:
        """Memory of programs that synchronise: values that they read of each other, in the type of
        kept sequences, and counters."""
        *heads, B, _ = states[0].shape
        groups = -(-B // self.schedule.samples)
        carry = fresh(like, *heads, 2 * B, max(1, self.layout.carry_row))
        # the side that the first step reads; packed samples that begin later may read the other one
        sides = (0, 1) if self.packed else ((steps - 1) & 1,)
        for array, offset, column in self.layout.carried():
            columns = states[array].narrow(-1, column.offset, column.width)
            for side in sides:
                carry.narrow(-2, side * B, B).narrow(-1, offset, column.width).copy_(columns)
        return {
            "sr": fresh(like, *heads, 2 * B, max(1, self.step.scratch_row)),
            "ca": carry,
            "bar": states[0].new_zeros(*heads, groups, dtype=torch.int32),
        }

    def _with_matrices(
        self, loop: MatrixLoop, arrays: Arrays, states: Sequence[Tensor], steps: int, element: Any
    ) -> Sequence[Tensor]:
        """All steps, with memory for replayed matrices and for partial sums."""
        B, like = states[0].shape[-2], states[0]
        memory = {
            f"rp{array}": fresh(like, B * limits.MATRIX_STEPS, states[array].shape[-1])
            for array in loop.replayed
        }
        if not loop.cut:
            return self._launch({**arrays, **memory}, states, (0, steps), steps, element)
        rows = arrays["ch"].shape[-2]
        memory["pa"] = fresh(like, rows, loop.shares, loop.partial_width)
        summed = {k: self.layout.states[k] for k in loop.partial_states}
        for place in summed.values():
            width = states[place.array].shape[-1]
            memory[f"pe{place.array}"] = fresh(like, B, loop.shares, width)
        ends = self._launch({**arrays, **memory}, states, (0, steps), steps, element)
        for access, offset in loop.partial.items():
            total = memory["pa"][..., offset : offset + access.units].sum(-2)
            ColumnRange.of(access).view(arrays).copy_(total)
        for place in summed.values():
            columns = slice(place.offset, place.offset + place.width)
            ends[place.array][..., columns] = memory[f"pe{place.array}"][..., columns].sum(-2)
        return ends

    def _without_barrier(
        self, loop: Grid, arrays: Arrays, states: Sequence[Tensor], steps: int, element: Any
    ) -> Sequence[Tensor]:
        """Steps for the interpreter, which runs programs one after another, so that a barrier would
        wait for ever: each step is repeated until every segment has read the stores before it."""
        for i in range(steps):
            before = {name: arrays[f"{name}now"].clone() for name in ("tape", "ch")}
            ends = states
            for _ in range(loop.passes):
                ends = self._launch(
                    {**arrays, **before}, states, (i, i + 1), steps, element, barrier=False
                )
            states = ends
        return states

    def _launch(
        self,
        arrays: Arrays,
        states: Sequence[Tensor],
        steps: tuple[int, int],
        total: int,
        element: Any,
        *,
        barrier: bool = True,
    ) -> Sequence[Tensor]:
        """Some steps of ``total``, in one launch, or in one for each set of resident groups."""
        loop, fixed = self.loop, self.schedule
        assert loop is not None, "the schedule has a loop"
        *heads, B, _ = states[0].shape
        N = heads[0] if heads else 1
        ends = [torch.empty_like(state) for state in states]
        first, last = ("first", "last") if self.forward else ("dlast", "dfirst")
        named = {**arrays, **numbered(first, states), **numbered(last, ends)}
        numbers = {"T": total, "B": B, "i0": steps[0], "i1": steps[1], "g0": 0}
        interpreted = bool(knobs.runtime.interpret)
        options: dict[str, Any] = {
            "N": fixed.samples,
            "DT": element,
            "PRECISION": precision(),
            "INTERPRETED": interpreted,
            "BARRIER": barrier,
            "num_warps": fixed.warps,
        }
        groups = -(-B // fixed.samples)
        if not isinstance(loop, Grid):
            shares = loop.shares if isinstance(loop, MatrixLoop) else N
            self.kernel[groups, shares](*arguments(loop.arguments, named, numbers), **options)
            return ends
        if not interpreted:  # programs wait for each other, so all must be resident
            options["launch_cooperative_grid"] = True
        most = processors() // (loop.programs * N)
        if not most and not interpreted:
            raise EngineError(
                f"schedule {fixed.name} has {loop.programs * N} programs that synchronise, "
                f"and this GPU has room for {processors()}"
            )
        most = max(1, most)
        for group in range(0, groups, most):
            values = arguments(loop.arguments, named, {**numbers, "g0": group})
            grid = (loop.programs, min(most, groups - group), N)
            self.kernel[grid](*values, **options)
        return ends

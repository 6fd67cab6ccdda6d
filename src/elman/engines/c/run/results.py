"""Result arrays of a kernel: state sequences, output, tape and gradients."""

from __future__ import annotations

import math
from collections.abc import Callable

from torch import Tensor

from elman.engines.base import Job
from elman.engines.c.process.memory import Supply
from elman.engines.call import Call, Gradients
from elman.engines.packed_rows import Packed
from elman.lowered.layout import Layout
from elman.plan.build import output_is_state
from elman.plan.program import Program

Maker = Callable[[Tensor], Tensor]


class Results:
    """Allocates the results of calls.

    Args:
        job, program, layout: of the kernel.
        weights: names of the weights, in the order of a call.
        supply: makes the arrays.

    Attributes:
        output_is_state: whether the output is the sequence of the first state.
        rings: rows that each state's sequence holds: before and after each step (-1), of two steps
            that alternate (1), or one per sample that is never written (0).
        all_rows: ``rings`` with the rows of all steps, for a backward and for packed rows.
        tape_row: elements of the tape per row of T·B.
    """

    def __init__(
        self, job: Job, program: Program, layout: Layout, weights: list[str], supply: Supply
    ) -> None:
        self._supply, self._steps = supply, job.spec.steps
        self.output_is_state = output_is_state(program.pair)
        self.scalar_output = not job.graph.output_shape
        self.output_width = layout.output_width
        self.tape_row = layout.tape_row if program.tape else 0
        self._widths, self._matrices = layout.state_widths, layout.matrices
        # a backward reads the states of all steps, and so does an epilogue of the forward
        every = job.spec.training or bool(program.forward.after.segments)
        states = range(len(layout.state_widths))
        all_steps = [
            job.spec.training if k in layout.matrices else every or (not k and self.output_is_state)
            for k in states
        ]
        self.rings = tuple([0 if k in layout.held else -1 if all_steps[k] else 1 for k in states])
        self.all_rows = tuple([0 if k in layout.held else -1 for k in states])
        wants, step = job.spec.wants, program.pair.step
        self._weight_makers = [supply.like if name in wants else None for name in weights]
        missed = {  # inputs with a gate block without gradient, which no kernel writes
            leaf.data[0]
            for leaf, d in zip(step.inputs, program.pair.d_inputs, strict=True)
            if d is None
        }
        self._input_makers = [
            None if name not in wants else supply.zeros if name in missed else supply.like
            for name in dict.fromkeys(leaf.data[0] for leaf in step.inputs)
        ]

    def sequences(
        self, T: int, B: int, chunk: int, packed: Packed | None = None
    ) -> list[tuple[int, int, int]]:
        """Shapes of the state sequences of a call, dense or of packed rows, in chunks of ``chunk``
        steps."""

        def shape(k: int, ring: int, width: int) -> tuple[int, int, int]:
            if k in self._matrices:  # before each chunk
                chunks = max(1, -(-T // chunk))
                every = ring < 0 or packed is not None
                return chunks if every else 2 if chunks > 1 else 0, B, width
            if packed is not None:  # the states after a row lie B rows behind it: still one array
                return 1, packed.batch + packed.rows * bool(ring), width
            return 1 + (T if ring < 0 else ring), B, width

        return [shape(k, *of) for k, of in enumerate(zip(self.rings, self._widths, strict=True))]

    def kept_elements(self, T: int, B: int, chunk: int) -> int:
        """Elements that the forward keeps for the backward: slots and state sequences."""
        return B * T * self.tape_row + sum(map(math.prod, self.sequences(T, B, chunk)))

    def output(self, call: Call, sequences: tuple[Tensor, ...]) -> Tensor:
        """Memory of a call's output: its own, or the rows after each step of the first state."""
        _, B, rows = call.sizes
        if not self.output_is_state:
            return self._supply.empty((rows, self.output_width))
        return sequences[0][1:] if call.packed is None else sequences[0][0, B:]

    def shaped(self, call: Call, output: Tensor) -> Tensor:
        """An output in the shape of :class:`elman.engines.call.Result`: [T, B, n], or [N, n]."""
        T, B, rows = call.sizes
        lead = (rows,) if call.packed is not None else (T, B)
        if self.scalar_output:
            return output.reshape(lead)
        return output if self.output_is_state else output.reshape(*lead, self.output_width)

    def gradient_makers(self, call: Call) -> tuple[list[Maker | None], list[Maker | None]]:
        """Allocators of the gradients of each input and each weight, for calls like ``call``; None
        where a gradient is not wanted."""
        makers = [
            self._supply.maker_like(tensor) if make == self._supply.like else make
            for tensor, make in zip(
                (*call.inputs, *call.weights), (*self._input_makers, *self._weight_makers)
            )
        ]
        count = len(call.inputs)
        return makers[:count], makers[count:]

    def gradients(self, call: Call) -> Gradients:
        """Memory of a call's gradients; None for those that are not wanted."""
        return Gradients(
            self._d_inputs(call),
            tuple(map(self._supply.like, call.states)),
            tuple(map(_allocate, call.weights, self._weight_makers)),
        )

    def _d_inputs(self, call: Call) -> tuple[Tensor | None, ...]:
        """Gradients of the inputs; merged steps share one tensor, whose rows lie step by step."""
        if self._steps == 1:
            return tuple(map(_allocate, call.inputs, self._input_makers))
        count = len(call.inputs) // self._steps
        makers = [self._input_makers[k::count] for k in range(count)]
        wholes: list[Tensor | None] = []
        for x, each in zip(call.inputs, makers):
            make = next((make for make in each if make is not None), None)
            if make is not None and any(other != make for other in each):
                make = self._supply.zeros  # some step gets no gradient
            T, *rest = x.shape
            wholes.append(_allocate(x.new_empty(()).expand(self._steps * T, *rest), make))
        return tuple(
            None if whole is None else whole[step :: self._steps]
            for step in range(self._steps)
            for whole in wholes
        )


def _allocate(like: Tensor, make: Maker | None) -> Tensor | None:
    return None if make is None else make(like)

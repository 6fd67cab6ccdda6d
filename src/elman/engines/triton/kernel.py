"""A program on Triton: batched phases on all rows, and the steps in one kernel or one by one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
import triton.language as tl
from torch import Tensor

from elman.engines.base import Job, Kernel
from elman.engines.ragged import Ragged
from elman.engines.triton.launch import Arrays, fresh, launching, numbered
from elman.engines.triton.layout import Layout
from elman.engines.triton.rows import RowsRunner, turned
from elman.engines.triton.schedule import Schedule
from elman.engines.triton.steps import Work
from elman.engines.triton.sweeping import Ends, Sweeping
from elman.engines.triton.totals import totals
from elman.engines.weights import WeightRate
from elman.errors import EngineError
from elman.ir.graph import Node
from elman.plan.build import output_is_state
from elman.plan.program import Program, Sweep

DTYPES = {
    "float32": (torch.float32, tl.float32),
    "bfloat16": (torch.bfloat16, tl.bfloat16),
    "float16": (torch.float16, tl.float16),
}
Gradients = tuple[Tensor | None, ...]


@dataclass(frozen=True, eq=False)
class Call:
    """What both directions of a call share; ``rows`` of all steps together."""

    T: int
    B: int
    rows: int
    vec: Tensor
    matrices: Mapping[Node, Tensor]
    arrays: Arrays


class TritonKernel(Kernel):
    """All steps of one layer in one direction on a GPU, or in Triton's interpreter.

    Args:
        job, program, schedule: what is run, and how.
        heads: how many run side by side: all arguments and results are [heads, …] then. 0: none.
    """

    engine = "triton"

    def __init__(self, job: Job, program: Program, schedule: Schedule, heads: int = 0) -> None:
        self.job, self.program, self.fixed = job, program, schedule
        self._heads = (heads,) if heads else ()
        self.layout = layout = Layout(program)
        self.dtype, self.element = DTYPES[job.spec.dtype]
        self.rate = WeightRate(job)
        # a step that is cut into kernels reads in memory what a loop has at hand in float32
        self._slots = torch.float32 if schedule.kind == "steps" else self.dtype
        step = program.pair.step
        self.output_is_state = output_is_state(program.pair)
        training = job.spec.training
        late = bool(program.forward.after.segments)
        self.kept = tuple(
            training or late or schedule.kind == "grid" or (not k and self.output_is_state)
            for k in range(len(layout.state_widths))
        )
        self.scalar_output = not step.outputs[0].shape
        self.ahead = Sweeping(layout, program.forward, schedule, self.kept, heads=heads > 0)
        self.back = None
        if program.backward is not None:
            self.back = Sweeping(layout, program.backward, schedule, self.kept, heads=heads > 0)
        sweeps = [sweep for sweep in (self.ahead, self.back) if sweep is not None]
        found = [matrix for sweep in sweeps for matrix in sweep.matrices()]
        self._matrices = list(dict.fromkeys(found))
        self._declared = [leaf.name for leaf in job.graph.inputs]
        self.ragged: Ragged | None = None
        self._packed: TritonKernel | None = None

    def over(self, ragged: Ragged) -> TritonKernel | None:
        """See :meth:`Kernel.over`: where all steps are one program's, each sample has its own."""
        if self.fixed.kind != "loop":
            return None
        if self._packed is None:
            made = self._packed = copy(self)
            made.ahead = self._sweep_of(self.program.forward)
            if self.program.backward is not None:
                made.back = self._sweep_of(self.program.backward)
        found = copy(self._packed)
        found.ragged = ragged
        return found

    def _sweep_of(self, sweep: Sweep) -> Sweeping:
        return Sweeping(self.layout, sweep, self.fixed, self.kept, ragged=True)

    def describe(self) -> dict[str, Any]:
        """Engine and schedule."""
        return {"engine": self.engine, "schedule": self.fixed.name}

    @property
    def texts(self) -> list[str]:
        """The text of every kernel."""
        sweeps = [sweep for sweep in (self.ahead, self.back) if sweep is not None]
        found = [text for sweep in sweeps for runner in sweep.runners for text in runner.texts]
        return [*found, *(sweep.text for sweep in sweeps if sweep.loop is not None)]

    def call(self, inputs: Sequence[Tensor], weights: Sequence[Tensor]) -> Call:
        """What both directions of a call share."""
        T, B, rows = self._sizes(inputs)
        lead, like = self._heads, inputs[0]
        roots = [*self.layout.vectors, *self._matrices]
        values = self.rate.values(weights, roots, heads=bool(lead))
        vectors = [values[node].reshape(*lead, -1) for node in self.layout.vectors]
        if vectors:
            vec = torch.cat(vectors, -1).float()
        else:
            vec = like.new_zeros(*lead, 1, dtype=torch.float32)
        matrices = {node: _rowed(values[node]) for node in self._matrices}
        arrays: Arrays = {}
        for k, (value, width) in enumerate(zip(inputs, self.layout.input_widths, strict=True)):
            arrays[f"in{k}"] = _rowed(value.reshape(*lead, rows, width))
        if self.ragged is not None:
            arrays["rows"] = _first_rows(self.ragged, like.device)
        return Call(T, B, rows, vec, matrices, arrays)

    def _sizes(self, inputs: Sequence[Tensor]) -> tuple[int, int, int]:
        """Steps, samples, and rows of all steps together."""
        if self.ragged is not None:
            return self.ragged.steps, self.ragged.batch, self.ragged.rows
        T, B = inputs[0].shape[len(self._heads) :][:2]
        return T, B, T * B

    def _looped(
        self,
        sweep: Sweeping,
        call: Call,
        arrays: Arrays,
        sequences: Sequence[Tensor],
        ends: Ends,
    ) -> None:
        """All steps in one kernel."""
        assert sweep.loop is not None, "asked for before"
        matrices = [_rowed(turned(call.matrices[node], t)) for node, t in sweep.loop.matrices]
        whole = {
            **arrays,
            **numbered("st", [sequence.flatten(-3, -2) for sequence in sequences]),
            **numbered("m", matrices),
            "vec": call.vec,
        }
        sweep.run(whole, ends, call.T, self.element)

    def batched(self, runner: RowsRunner, call: Call, arrays: Arrays) -> None:
        """A phase on all rows at once."""
        if not runner.segments:
            return
        lead, count = self._heads, call.rows
        some = next(iter(arrays.values()))
        own = {
            "sr": fresh(some, *lead, count, max(1, runner.scratch[1]), dtype=torch.float32),
            "sc": fresh(some, *lead, count, max(1, runner.scalars), dtype=torch.float32),
        }
        runner.run({**arrays, **own}, runner.weights(call.matrices), call.vec, count)

    def _sequence_rows(self, sequences: Sequence[Tensor], B: int) -> Arrays:
        """Kept sequences as rows before and after each step."""
        found: Arrays = {}
        for k, sequence in enumerate(sequences):
            if self.kept[k]:
                flat = sequence.flatten(-3, -2)
                before = (
                    flat
                    if self.ragged is None
                    else flat.index_select(-2, _before(self.ragged, flat.device))
                )
                found |= {f"st{k}": before, f"nx{k}": flat[..., B:, :]}
        return found

    def forward(
        self, inputs: Sequence[Tensor], states: Sequence[Tensor], weights: Sequence[Tensor]
    ) -> tuple[Tensor, tuple[Tensor, ...], tuple[Tensor, ...]]:
        """See :meth:`Kernel.forward`.

        Raises:
            EngineError: this chip cannot hold the kernel.
        """
        with launching(states[0]):
            return self._run_forward(inputs, states, weights)

    def _run_forward(
        self, inputs: Sequence[Tensor], states: Sequence[Tensor], weights: Sequence[Tensor]
    ) -> tuple[Tensor, tuple[Tensor, ...], tuple[Tensor, ...]]:
        layout, sweep, heads = self.layout, self.ahead, self._heads
        T, B, rows = self._sizes(inputs)
        like, ragged = states[0], self.ragged is not None
        call = self.call(inputs, weights)
        first = [
            state.reshape(*heads, B, width).contiguous()
            for state, width in zip(states, layout.state_widths, strict=True)
        ]
        fewest = 2 if sweep.steps is not None else 1
        sequences = [
            fresh(like, *heads, 1, B + rows, width)
            if kept and ragged
            else fresh(like, *heads, T + 1 if kept else fewest, B, width)
            for kept, width in zip(self.kept, layout.state_widths, strict=True)
        ]
        for sequence, start in zip(sequences, first, strict=True):
            sequence[..., 0, :B, :] = start
        arrays = dict(call.arrays)
        lead = (rows,) if ragged else (T, B)
        if self.output_is_state:
            whole = sequences[0]
            output = whole[..., 0, B:, :] if ragged else whole[..., 1:, :, :]
        else:
            output = fresh(like, *heads, *lead, layout.output_width)
            arrays["out"] = output.reshape(*heads, rows, layout.output_width)
        tape = fresh(like, *heads, rows, max(1, layout.tape_row), dtype=self._slots)
        arrays["tape"] = tape
        arrays["ch"] = self._chunk(sweep, like, rows)
        arrays |= self._sequence_rows(sequences, B) if not ragged else {}
        self.batched(sweep.before, call, arrays)
        last = [torch.empty_like(start) for start in first]
        if sweep.steps is not None:
            self._stepped(sweep, call, arrays, sequences, {})
            for end, sequence in zip(last, sequences, strict=True):
                end.copy_(sequence.select(-3, T % sequence.shape[-3]))
        else:
            self._looped(sweep, call, arrays, sequences, Ends(("first", "last"), first, last))
        if ragged and sweep.after.segments:
            arrays |= self._sequence_rows(sequences, B)
        self.batched(sweep.after, call, arrays)
        if self.scalar_output:
            output = output.reshape(*heads, *lead)
        shaped = tuple(end.reshape(state.shape) for end, state in zip(last, states, strict=True))
        return output, shaped, (*sequences, tape) if self.job.spec.training else ()

    def _chunk(self, sweep: Sweeping, like: Tensor, rows: int) -> Tensor:
        """Memory for what batched phases hand to the steps, or the steps to them."""
        return fresh(like, *self._heads, rows, max(1, sweep.chunk[1]), dtype=self._slots)

    def _stepped(
        self,
        sweep: Sweeping,
        call: Call,
        arrays: Arrays,
        sequences: Sequence[Tensor],
        carries: Arrays,
    ) -> Tensor | None:
        """All steps one by one; what is carried at the end."""
        assert sweep.steps is not None, "asked for before"
        rows = {
            name: value
            for name, value in arrays.items()
            if not name.startswith(("st", "nx")) and name != "rows"
        }
        read = {name for name in rows if name == "dy" or name.startswith("in")}
        written, weights = frozenset(rows) - read, sweep.steps.runner.weights(call.matrices)
        return sweep.steps.run(
            Work(call.T, call.B, call.vec, weights, rows, sequences, carries, written)
        )

    def backward(
        self,
        inputs: Sequence[Tensor],
        states: Sequence[Tensor],
        weights: Sequence[Tensor],
        saved: Sequence[Tensor],
        d_output: Tensor | None,
        d_last: Sequence[Tensor | None],
        keep: bool,
    ) -> tuple[Gradients, Gradients, Gradients]:
        """See :meth:`Kernel.backward`; raises as :meth:`forward`."""
        if self.back is None:
            raise EngineError("this kernel was compiled without a backward")
        with launching(states[0]):
            return self._run_backward(
                self.back, inputs, states, weights, saved, d_output, d_last, keep
            )

    def _run_backward(
        self,
        sweep: Sweeping,
        inputs: Sequence[Tensor],
        states: Sequence[Tensor],
        weights: Sequence[Tensor],
        saved: Sequence[Tensor],
        d_output: Tensor | None,
        d_last: Sequence[Tensor | None],
        keep: bool,
    ) -> tuple[Gradients, Gradients, Gradients]:
        layout, heads, wants = self.layout, self._heads, self.job.spec.wants
        *sequences, tape = saved
        _, B, rows = self._sizes(inputs)
        like = states[0]
        call = self.call(inputs, weights)
        arrays: Arrays = {**call.arrays, **self._sequence_rows(sequences, B)}
        arrays["tape"] = tape.clone() if keep else tape  # a slot may be written again
        arrays["ch"] = self._chunk(sweep, like, rows)
        width = layout.output_width
        if d_output is None:
            arrays["dy"] = like.new_zeros(width).expand(*heads, rows, width)
        else:
            arrays["dy"] = _rowed(d_output.reshape(*heads, rows, width))
        found = [
            like.new_zeros(*heads, rows, width) if name in wants else None
            for name, width in zip(self._declared, layout.input_widths, strict=True)
        ]
        arrays |= {f"din{k}": d for k, d in enumerate(found) if d is not None}
        self.batched(sweep.before, call, arrays)
        ends = [
            like.new_zeros(*heads, B, width)
            if d is None
            else d.reshape(*heads, B, width).contiguous()
            for d, width in zip(d_last, layout.state_widths, strict=True)
        ]
        d_first = [torch.empty_like(end) for end in ends]
        if sweep.steps is not None:
            self._carried(sweep, call, arrays, sequences, ends, d_first)
        else:
            self._looped(sweep, call, arrays, sequences, Ends(("dlast", "dfirst"), ends, d_first))
        self.batched(sweep.after, call, arrays)
        summed = totals(sweep, self.program.sums, arrays, self.dtype)
        d_weights = self.rate.gradients(summed, weights, heads=bool(heads))
        d_inputs = tuple(
            d if d is None else d.reshape(value.shape)
            for d, value in zip(found, inputs, strict=True)
        )
        d_states = tuple(d.reshape(state.shape) for d, state in zip(d_first, states, strict=True))
        return d_inputs, d_states, d_weights

    def _carried(
        self,
        sweep: Sweeping,
        call: Call,
        arrays: Arrays,
        sequences: Sequence[Tensor],
        ends: Sequence[Tensor],
        d_first: Sequence[Tensor],
    ) -> None:
        """Steps one by one, from the last states' cotangents to the first's."""
        layout = self.layout
        size = (*self._heads, call.B, max(1, layout.carry_row))
        carries = {name: ends[0].new_zeros(size, dtype=torch.float32) for name in ("ca", "cn")}
        for array, offset, column in layout.carried():
            own = ends[array].narrow(-1, column.offset, column.width)
            carries["ca"].narrow(-1, offset, column.width).copy_(own)
        end = self._stepped(sweep, call, arrays, sequences, carries)
        assert end is not None, "carries were given"
        for array, offset, column in layout.carried():
            own = end.narrow(-1, offset, column.width)
            d_first[array].narrow(-1, column.offset, column.width).copy_(own)


def _rowed(matrix: Tensor) -> Tensor:
    """A matrix, or several, whose rows are contiguous."""
    return matrix if matrix.stride(-1) == 1 else matrix.contiguous()


@lru_cache(maxsize=8)
def _first_rows(ragged: Ragged, device: torch.device) -> Tensor:
    """The first row of every step, and the end."""
    return ragged.numbers(1)[: ragged.steps + 1].to(device)


@lru_cache(maxsize=8)
def _before(ragged: Ragged, device: torch.device) -> Tensor:
    """For each packed row, where the state before its step lies."""
    starts = (0, *(ragged.batch + first for first in ragged.offsets[: ragged.steps - 1]))
    sizes = torch.tensor(ragged.sizes)
    first = torch.tensor(starts) - torch.tensor(ragged.offsets[: ragged.steps])
    rows = torch.arange(ragged.rows) + first.repeat_interleave(sizes)
    return rows.to(device)

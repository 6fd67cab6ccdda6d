"""A program on Triton: batched phases on all rows, and the steps in one kernel or one by one."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass
from typing import Any

import torch
import triton.language as tl
from torch import Tensor
from triton import knobs
from triton.errors import TritonError

from elman.engines.base import Job, Kernel
from elman.engines.ragged import Ragged
from elman.engines.triton.grid import Grid
from elman.engines.triton.layout import Layout
from elman.engines.triton.loop import Loop
from elman.engines.triton.rows import RowsRunner, joined, multiplied
from elman.engines.triton.schedule import Schedule
from elman.engines.triton.source import function
from elman.engines.weights import Values, WeightRate
from elman.errors import EngineError
from elman.ir.graph import Node
from elman.plan.build import output_is_state
from elman.plan.program import Home, Phase, Program, Sweep

DTYPES = {
    "float32": (torch.float32, tl.float32),
    "bfloat16": (torch.bfloat16, tl.bfloat16),
    "float16": (torch.float16, tl.float16),
}
Gradients = tuple[Tensor | None, ...]
Arrays = dict[str, Tensor]


class Sweeping:
    """One direction: what runs before, in and after the steps."""

    def __init__(
        self,
        layout: Layout,
        sweep: Sweep,
        schedule: Schedule,
        kept: tuple[bool, ...],
        *,
        ragged: bool = False,
        heads: bool = False,
    ) -> None:
        self.layout, self.sweep, self.ragged, self.heads = layout, sweep, ragged, heads
        self.forward = sweep is layout.program.forward
        self.chunk = layout.slots(sweep.chunk)
        self.before = RowsRunner(layout, sweep.before, self.place)
        self.after = RowsRunner(layout, sweep.after, self.place)
        self.steps: RowsRunner | None = None
        self.wide = False
        self.loop: Loop | None = None
        if schedule.kind == "steps":
            self.wide = self.forward and layout.program.spec.dtype != "float32"
            self.steps = RowsRunner(layout, sweep.step, self.place, wide=self.wide)
        else:
            self.loop = self._made(sweep.step, schedule, kept)
            self.text = self.loop.text()
            self.kernel = function("loop", self.text)

    def _made(self, phase: Phase, schedule: Schedule, kept: tuple[bool, ...]) -> Loop:
        forward, layout, chunk = self.forward, self.layout, self.chunk
        if schedule.kind == "loop":
            ragged, heads = self.ragged, self.heads
            return Loop(
                layout, phase, chunk, forward=forward, kept=kept, ragged=ragged, heads=heads
            )
        own, splits = schedule.units, schedule.warps
        return Grid(layout, phase, chunk, forward=forward, own=own, splits=splits)

    @property
    def runners(self) -> list[RowsRunner]:
        """All phases that run on rows."""
        return [runner for runner in (self.before, self.steps, self.after) if runner is not None]

    def matrices(self) -> list[Node]:
        """What its products multiply with."""
        found = [matrix for runner in self.runners for matrix in runner.matrices()]
        return [*found, *(self.loop.matrices if self.loop is not None else ())]

    def place(self, home: Home) -> tuple[str, int]:
        """Where a home lies in arrays of rows."""
        where, index, layout = home.where, home.index, self.layout
        if where in ("input", "state", "next", "d_input"):
            column = layout.column(home)
            name = {"input": "in", "state": "st", "next": "nx", "d_input": "din"}[where]
            return f"{name}{column.array}", column.offset
        if where in ("output", "d_output"):
            return {"output": "out", "d_output": "dy"}[where], layout.column(home).offset
        if where in ("carry", "d_state"):
            return {"carry": "ca", "d_state": "cn"}[where], layout.carry[index]
        if where == "tape":
            return "tape", layout.tape[index]
        if where == "chunk":
            return "ch", self.chunk[0][index]
        assert where == "scalar", f"a {where} lies elsewhere"
        return "sc", index


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
    """All steps of one layer in one direction on a GPU, or in Triton's interpreter."""

    engine = "triton"

    def __init__(
        self, job: Job, program: Program, schedule: Schedule, *, heads: bool = False
    ) -> None:
        self.job, self.program, self.fixed = job, program, schedule
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
        self.ahead = Sweeping(layout, program.forward, schedule, self.kept, heads=heads)
        self.back = None
        if program.backward is not None:
            self.back = Sweeping(layout, program.backward, schedule, self.kept, heads=heads)
        sweeps = [sweep for sweep in (self.ahead, self.back) if sweep is not None]
        found = [matrix for sweep in sweeps for matrix in sweep.matrices()]
        self._matrices = list(dict.fromkeys(found))
        self._declared = [leaf.name for leaf in job.graph.inputs]
        self.ragged: Ragged | None = None
        self._packed: TritonKernel | None = None
        # fresh memory is filled with NaN, so that an element that was never written shows
        self._poison = bool(os.environ.get("ELMAN_POISON"))

    def empty(self, like: Tensor, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        """Fresh memory like a tensor's."""
        fresh = like.new_empty(shape, dtype=dtype or like.dtype)
        return fresh.fill_(float("nan")) if self._poison else fresh

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

    def call(self, inputs: Sequence[Tensor], values: Values) -> Call:
        """What both directions of a call share."""
        T, B, rows = self._sizes(inputs)
        vectors = [values[node].reshape(-1) for node in self.layout.vectors]
        like = inputs[0]
        vec = torch.cat(vectors).float() if vectors else like.new_zeros(1, dtype=torch.float32)
        matrices = {node: _rowed(values[node]) for node in self._matrices}
        arrays: Arrays = {}
        for k, (value, width) in enumerate(zip(inputs, self.layout.input_widths, strict=True)):
            arrays[f"in{k}"] = _rowed(value.reshape(rows, width))
        if self.ragged is not None:
            arrays["rows"] = self.ragged.numbers(1)[: T + 1].to(like.device)
        return Call(T, B, rows, vec, matrices, arrays)

    def _sizes(self, inputs: Sequence[Tensor]) -> tuple[int, int, int]:
        """Steps, samples, and rows of all steps together."""
        if self.ragged is not None:
            return self.ragged.steps, self.ragged.batch, self.ragged.rows
        T, B = inputs[0].shape[:2]
        return T, B, T * B

    def values(self, weights: Sequence[Tensor]) -> Values:
        """Values of weight rate that the kernels read."""
        return self.rate.values(weights, [*self.layout.vectors, *self._matrices])

    def _looped(
        self,
        sweep: Sweeping,
        call: Call,
        arrays: Arrays,
        sequences: Sequence[Tensor],
        begin: tuple[str, Sequence[Tensor]],
        end: tuple[str, Sequence[Tensor]],
    ) -> None:
        """All steps in one kernel; ``begin`` and ``end``: what is carried, and the names of it."""
        loop = sweep.loop
        whole = _numbered("st", [sequence.flatten(0, 1) for sequence in sequences])
        if not isinstance(loop, Grid):
            names = {**_numbered(*begin), **_numbered(*end)}
            self._launch(sweep, call, {**arrays, **whole, **names}, (0, call.T))
            return
        some = begin[1][0]
        groups = -(-call.B // self.fixed.samples)
        more = {
            "sr": self.empty(some, 2 * call.B, max(1, loop.scratch[1])),
            "ca": self.empty(some, 2 * call.B, max(1, self.layout.carry_row)),
            "bar": some.new_zeros(groups, dtype=torch.int32),
            "tapenow": arrays["tape"],
            "chnow": arrays["ch"],
        }
        now = [value.float() for value in begin[1]]
        parity = (call.T - 1) & 1
        for array, offset, column in self._columns():
            rows = more["ca"][parity * call.B : (parity + 1) * call.B]
            own = now[array][:, column.offset : column.offset + column.width]
            rows[:, offset : offset + column.width] = own
        after = [torch.empty_like(value) for value in now]
        if not knobs.runtime.interpret or loop.programs == 1:
            names = {**_numbered(begin[0], now), **_numbered(end[0], after)}
            self._launch(sweep, call, {**arrays, **more, **names}, (0, call.T))
        else:
            self._without_meeting(sweep, call, {**arrays, **more}, (begin[0], now), (end[0], after))
        for target, value in zip(end[1], after, strict=True):
            target.copy_(value)

    def _without_meeting(
        self,
        sweep: Sweeping,
        call: Call,
        arrays: Arrays,
        begin: tuple[str, list[Tensor]],
        end: tuple[str, list[Tensor]],
    ) -> None:
        """The interpreter runs programs one after another: step by step, and each so often that
        every segment finds what the one before it stored."""
        loop = sweep.loop
        assert isinstance(loop, Grid), "asked for before"
        now, after = [value.clone() for value in begin[1]], end[1]
        for i in range(call.T):
            before = {name: arrays[f"{name}now"].clone() for name in ("tape", "ch")}
            names = {**_numbered(begin[0], now), **_numbered(end[0], after)}
            for _ in range(loop.passes):
                self._launch(sweep, call, {**arrays, **before, **names}, (i, i + 1), meet=False)
            for value, made in zip(now, after, strict=True):
                value.copy_(made)

    def _launch(
        self,
        sweep: Sweeping,
        call: Call,
        arrays: Mapping[str, Tensor],
        steps: tuple[int, int],
        *,
        meet: bool = True,
    ) -> None:
        """One call of the kernel of all steps."""
        loop, fixed = sweep.loop, self.fixed
        assert loop is not None, "asked for before"
        numbers = {"T": call.T, "B": call.B, "i0": steps[0], "i1": steps[1]}
        given: list[Any] = []
        for name in loop.pointers:
            base, _, kind = name.partition("_")
            if name in numbers:
                given.append(numbers[name])
            elif name == "vec":
                given.append(call.vec)
            elif base.startswith("m"):
                matrix = call.matrices[loop.matrices[int(base[1:])]]
                given.append(matrix.stride(0) if kind else matrix)
            elif kind:
                given.append(_stride(arrays[base], call.B, kind))
            else:
                given.append(arrays[name])
        groups = -(-call.B // fixed.samples)
        spread = isinstance(loop, Grid)
        kernel = sweep.kernel[(loop.programs, groups) if isinstance(loop, Grid) else (groups,)]
        interpreted = bool(knobs.runtime.interpret)
        together = {"launch_cooperative_grid": True} if spread and not interpreted else {}
        kernel(
            *given,
            N=fixed.samples,
            DT=self.element,
            STAGES=fixed.stages,
            PRECISION=precision(),
            INTERPRETED=interpreted,
            MEET=meet,
            num_warps=fixed.warps,
            **together,
        )

    def _one_by_one(self, sweep: Sweeping, call: Call, arrays: Arrays, sequences: Arrays) -> None:
        """All steps, each with its products and kernels; carries change places after each."""
        runner = sweep.steps
        assert runner is not None, "asked for before"
        T, B = call.T, call.B
        some = next(iter(arrays.values()))
        own = {
            "sr": self.empty(some, B, max(1, runner.scratch[1]), dtype=torch.float32),
            "sc": self.empty(some, B, max(1, runner.scalars), dtype=torch.float32),
        }
        carries = {name: arrays[name] for name in ("ca", "cn") if name in arrays}
        wide = {}
        if sweep.wide:
            wide = {
                name: sequence[:1].float().repeat(2, 1, 1) for name, sequence in sequences.items()
            }
        rowed = {name: a for name, a in arrays.items() if name not in carries}
        for t in range(T) if sweep.forward else reversed(range(T)):
            now = {name: a[t * B : (t + 1) * B] for name, a in rowed.items()}
            for name, sequence in sequences.items():
                before, after = sequence[t % len(sequence)], sequence[(t + 1) % len(sequence)]
                now.update({f"st{name}": before, f"nx{name}": after})
                if sweep.wide:
                    now.update({f"sp{name}": before, f"sq{name}": after})
                    now.update({f"st{name}": wide[name][t % 2], f"nx{name}": wide[name][1 - t % 2]})
            runner.run({**now, **own, **carries}, call.matrices, call.vec, B)
            if carries:
                carries = {"ca": carries["cn"], "cn": carries["ca"]}
        arrays.update(carries)

    def batched(self, runner: RowsRunner, call: Call, arrays: Arrays) -> None:
        """A phase on all rows at once."""
        if not runner.segments:
            return
        count = call.rows
        some = next(iter(arrays.values()))
        own = {
            "sr": self.empty(some, count, max(1, runner.scratch[1]), dtype=torch.float32),
            "sc": self.empty(some, count, max(1, runner.scalars), dtype=torch.float32),
        }
        runner.run({**arrays, **own}, call.matrices, call.vec, count)

    def _before(self, like: Tensor) -> Tensor:
        """For each packed row, where the state before its step lies."""
        ragged = self.ragged
        assert ragged is not None, "asked for before"
        starts = (0, *(ragged.batch + first for first in ragged.offsets[: ragged.steps - 1]))
        pairs = zip(starts, ragged.sizes, strict=True)
        return torch.cat([torch.arange(at, at + size) for at, size in pairs]).to(like.device)

    def _sequence_rows(self, sequences: Sequence[Tensor], B: int) -> Arrays:
        """Kept sequences as rows before and after each step."""
        found: Arrays = {}
        for k, sequence in enumerate(sequences):
            if self.kept[k]:
                flat = sequence.flatten(0, 1)
                before = flat if self.ragged is None else flat.index_select(0, self._before(flat))
                found.update({f"st{k}": before, f"nx{k}": flat[B:]})
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
        layout, sweep = self.layout, self.ahead
        T, B, rows = self._sizes(inputs)
        like, ragged = states[0], self.ragged is not None
        call = self.call(inputs, self.values(weights))
        first = [
            state.reshape(B, width).contiguous()
            for state, width in zip(states, layout.state_widths, strict=True)
        ]
        steps = sweep.steps is not None
        sequences = [
            self.empty(like, 1, B + rows, width)
            if kept and ragged
            else self.empty(like, T + 1 if kept else 2 if steps else 1, B, width)
            for kept, width in zip(self.kept, layout.state_widths, strict=True)
        ]
        for sequence, start in zip(sequences, first, strict=True):
            sequence[0, :B] = start
        arrays = dict(call.arrays)
        lead = (rows,) if ragged else (T, B)
        if self.output_is_state:
            output = sequences[0][0, B:] if ragged else sequences[0][1:]
        else:
            output = self.empty(like, *lead, layout.output_width)
            arrays["out"] = output.reshape(rows, layout.output_width)
        tape = self.empty(like, rows, max(1, layout.tape_row), dtype=self._slots)
        arrays["tape"] = tape
        arrays["ch"] = self.empty(like, rows, max(1, sweep.chunk[1]), dtype=self._slots)
        arrays |= self._sequence_rows(sequences, B) if not ragged else {}
        self.batched(sweep.before, call, arrays)
        last = [torch.empty_like(start) for start in first]
        if sweep.steps is not None:
            numbered = {str(k): sequence for k, sequence in enumerate(sequences)}
            self._one_by_one(sweep, call, arrays, numbered)
            for end, sequence in zip(last, sequences, strict=True):
                end.copy_(sequence[T % len(sequence)])
        else:
            self._looped(sweep, call, arrays, sequences, ("first", first), ("last", last))
        if ragged and sweep.after.segments:
            arrays |= self._sequence_rows(sequences, B)
        self.batched(sweep.after, call, arrays)
        if self.scalar_output:
            output = output.reshape(lead)
        shaped = tuple(end.reshape(state.shape) for end, state in zip(last, states, strict=True))
        return output, shaped, (*sequences, tape) if self.job.spec.training else ()

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
        layout, wants = self.layout, self.job.spec.wants
        *sequences, tape = saved
        _, B, rows = self._sizes(inputs)
        like = states[0]
        call = self.call(inputs, self.values(weights))
        arrays: Arrays = {**call.arrays, **self._sequence_rows(sequences, B)}
        arrays["tape"] = tape.clone() if keep else tape  # a slot may be written again
        arrays["ch"] = self.empty(like, rows, max(1, sweep.chunk[1]), dtype=self._slots)
        width = layout.output_width
        if d_output is None:
            arrays["dy"] = like.new_zeros(1, width).expand(rows, width)
        else:
            arrays["dy"] = _rowed(d_output.reshape(rows, width))
        found = [
            like.new_zeros(rows, width) if name in wants else None
            for name, width in zip(self._declared, layout.input_widths, strict=True)
        ]
        arrays.update({f"din{k}": d for k, d in enumerate(found) if d is not None})
        self.batched(sweep.before, call, arrays)
        ends = [
            like.new_zeros(B, width) if d is None else d.reshape(B, width).contiguous()
            for d, width in zip(d_last, layout.state_widths, strict=True)
        ]
        d_first = [torch.empty_like(end) for end in ends]
        if sweep.steps is not None:
            self._carried(sweep, call, arrays, sequences, ends, d_first)
        else:
            self._looped(sweep, call, arrays, sequences, ("dlast", ends), ("dfirst", d_first))
        self.batched(sweep.after, call, arrays)
        d_weights = self.rate.gradients(self.totals(sweep, arrays), weights)
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
        for name in ("ca", "cn"):
            size = (call.B, max(1, layout.carry_row))
            arrays[name] = ends[0].new_zeros(size, dtype=torch.float32)
        for array, offset, column in self._columns():
            own = ends[array][:, column.offset : column.offset + column.width]
            arrays["ca"][:, offset : offset + column.width] = own
        numbered = {str(k): sequence for k, sequence in enumerate(sequences)}
        self._one_by_one(sweep, call, arrays, numbered)
        for array, offset, column in self._columns():
            own = arrays["ca"][:, offset : offset + column.width]
            d_first[array][:, column.offset : column.offset + column.width] = own

    def _columns(self) -> list[tuple[int, int, Any]]:
        """For each atom of the states: its array, its place in the carry, its column."""
        layout = self.layout
        return [
            (column.array, offset, column)
            for offset, column in zip(layout.carry, layout.states, strict=True)
        ]

    def totals(self, sweep: Sweeping, arrays: Arrays) -> Values:
        """Σ over all rows, one product for all that multiply with the same rows."""

        def rows_of(value: Node) -> Tensor:
            base, offset = sweep.place(sweep.sweep.summed(value))
            return arrays[base][: len(arrays["tape"]), offset : offset + self.layout.width(value)]

        found: Values = {}

        def add(target: Node, part: Tensor) -> None:
            found[target] = part if target not in found else found[target] + part

        by_right: dict[Node, list[Any]] = {}
        alone: dict[Node, Tensor] = {}
        for term in self.program.sums:
            if term.right is not None:
                by_right.setdefault(term.right, []).append(term)
                continue
            if term.left not in alone:
                total = rows_of(term.left).sum(0, dtype=torch.float32).to(self.dtype)
                alone[term.left] = total if term.left.shape else total[0]
            add(term.target, alone[term.left])
        for right, terms in by_right.items():
            lefts = list(dict.fromkeys(term.left for term in terms))
            whole = joined([rows_of(left).t() for left in lefts])
            widths = [self.layout.width(left) for left in lefts]
            made = multiplied(whole, rows_of(right).to(self.dtype)).to(self.dtype).split(widths)
            split = dict(zip(lefts, made, strict=True))
            for term in terms:
                add(term.target, split[term.left])
        return found


@contextmanager
def launching(like: Tensor) -> Iterator[None]:
    """Launch on a tensor's device; what Triton refuses is told as an error of the engine."""
    try:
        with torch.cuda.device_of(like):
            yield
    except TritonError as error:
        raise EngineError(f"Triton refuses a kernel: {error}") from error


def precision() -> str:
    """How float32 is multiplied, as torch's switch says."""
    return "tf32" if torch.backends.cuda.matmul.allow_tf32 else "ieee"


def _numbered(name: str, values: Sequence[Tensor]) -> Arrays:
    """``name0``, ``name1`` …"""
    return {f"{name}{k}": value for k, value in enumerate(values)}


def _rowed(matrix: Tensor) -> Tensor:
    """A matrix whose rows are contiguous."""
    return matrix if matrix.stride(1) == 1 else matrix.contiguous()


def _stride(rows: Tensor, B: int, kind: str) -> int:
    """Elements from one step, or sample, of an array of rows to the next."""
    return rows.stride(0) * (B if kind == "t" else 1)

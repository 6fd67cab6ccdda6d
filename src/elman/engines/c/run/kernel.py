"""A compiled program as a kernel: arguments, workspace, launches."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from elman.engines.base import Job, Kernel
from elman.engines.c.calls.context import Frame
from elman.engines.c.compilation.build import built
from elman.engines.c.compilation.isa import detect
from elman.engines.c.process.memory import (
    Spares,
    Supply,
    address,
    address_or_null,
    contiguous,
    contiguous_or_none,
    full_storage,
    rows_of,
)
from elman.engines.c.process.threads import on_pool, oversubscription, threads, workers
from elman.engines.c.run.arguments import Arguments
from elman.engines.c.run.launches import ConcurrentLaunches, Entry
from elman.engines.c.run.results import Results
from elman.engines.c.text.emit import Emitter
from elman.engines.call import Call, Cotangents, Gradients, Result
from elman.engines.packed_rows import Packed
from elman.engines.precision import BF16
from elman.errors import EngineError
from elman.plan.forecast import load_of, ranked, step_seconds, usual_rows
from elman.plan.program import Program
from elman.plan.schedule import SPLITS, USUAL_BLOCKS, Blocks, Bound, Division, Schedule

_ALONE = Division("one")
_WORTH_S = 5e-6  # (s) a shorter call ends before other threads have started
MOST_TEXT = 1 << 20  # characters of one kernel: five times the longest of the library's cells
_CHUNK, _WORKERS, _SHARES = 2, 3, 5  # indices in the head of the context
_FEW_ROWS = 4  # of T·B: packing weights costs about as much as products of so many rows
_MOST_PLANS = 4096  # sizes of calls remembered per kernel
DTYPES = {"float32": torch.float32, "float64": torch.float64}


@dataclass(frozen=True)
class Plan:
    """Sizes shared by all calls of one T, B and number of threads.

    Attributes:
        head: the first fields of the context: T, B, chunk, workers, split and the kernel's own.
        forward_entry: the forward, on packed weights or, of few rows, on unpacked ones.
        forward, backward: workspace (elements).
        sequences: shapes of the state sequences.
        tape: size of the tape (elements).
    """

    head: tuple[int, ...]
    forward_entry: Entry
    forward: int
    backward: int
    sequences: list[tuple[int, int, int]]
    tape: int


class CKernel(Kernel):
    """One compiled program. Thread-safe: every call has its own context and workspace."""

    engine = "c"
    packs = True

    def __init__(
        self, job: Job, planned: Program, blocks: Blocks = USUAL_BLOCKS, *, timed: bool = False
    ) -> None:
        self.program, self.spec, self._blocks = planned, job.spec, blocks
        self.fixed: Division | None = None
        self._load, self._rows = load_of(planned), usual_rows(planned)
        self.isa = detect().without(job.spec.options.without)
        if job.spec.precision == BF16:
            self.isa = self.isa.with_pairs()
        self._alone = "threads" in job.spec.options.without
        self.emitter = Emitter(planned, self.isa, blocks, timed=timed)
        self._steps = blocks.replayed_steps(self._matrix_bytes())
        text, linked = self.emitter.text(), self.emitter.linked_texts()
        if len(text) > MOST_TEXT:
            size = f"{len(text) >> 20} MiB of C, which gcc would take minutes for"
            raise EngineError(f"{job.name} is {size}: it has thousands of operations")
        self.digest = hashlib.sha256("".join((text, *linked)).encode()).hexdigest()[:16]
        library, self._fingerprint = built(text, self.isa, linked)
        self._library = library
        on_pool(library)
        self._forward = Entry.of(library, "forward")
        self._backward = Entry.of(library, "backward") if planned.backward is not None else None
        self._direct = Entry.of(library, "direct") if planned.backward is None else None
        self._team = int(self._alone)  # most workers of a call; 0: no limit
        shape = self.emitter.shape
        self._frame = Frame(shape)
        self.places = self._frame.places
        counts = (shape.inputs, shape.states, shape.weights)
        self._padding = tuple((0,) * (not count) for count in counts)
        inputs, states, weights = (max(1, count) for count in counts)
        self._no_gradients = (0,) * (3 + 2 * states + inputs + weights)
        self._no_forward = (0,) * (2 * states + 1)
        self.dtype = DTYPES[job.spec.dtype]
        self.supply = Supply(self.dtype)
        joined = self.emitter.joined
        self._arguments = Arguments(shape, [k in joined for k in range(shape.inputs)])
        self.joined_dy = "dy" in joined
        weight_names = self.emitter.weight_names
        self.results = Results(job, planned, self.emitter.layout, weight_names, self.supply)
        self._rings = (*self.results.rings, *self._padding[1])
        self._all_rows = (*self.results.all_rows, *self._padding[1])
        self.destructive = planned.overwrites_tape
        self.arenas, self.tapes = Spares(), Spares()
        self._plans: dict[tuple[int, int, int], Plan] = {}

    def _matrix_bytes(self) -> int:
        """Matrices per sample among the states (bytes)."""
        rows = self.emitter.layout.matrix_rows
        return rows * (8 if self.spec.dtype == "float64" else 4)

    def describe(self) -> dict[str, Any]:
        """Engine, digest of the C text, instruction set, schedule."""
        schedule = Schedule(self.fixed, self._blocks).name
        return {"engine": "c", "plan": self.digest, "isa": self.isa.name, "schedule": schedule}

    def phases(self) -> Mapping[str, float]:
        return self.emitter.clock.read_seconds(self._library) if self.emitter.clock.on else {}

    def fingerprint(self) -> str:
        """The hash of the library."""
        return self._fingerprint

    def stressed(self) -> tuple[CKernel, ...]:
        """Variants with chunks of one step and at least two workers, under the kernel's split or,
        if it has none, under each."""
        splits = SPLITS if self.fixed is None else (self.fixed.split,)
        team = max(2, threads())
        return tuple(self.scheduled(Division(split, 1), team) for split in splits)

    def scheduled(self, division: Division | None, team: int = 0) -> CKernel:
        """The same compiled program and memory with another division of calls (None: forecast).

        ``team``: most workers (0: no limit).
        """
        kernel = copy(self)
        kernel.fixed, kernel._team, kernel._plans = division, int(self._alone) or team, {}
        return kernel

    def workers(self) -> int:
        """Number of threads that a call may use now."""
        free = workers()
        return min(self._team, free) if self._team else free

    def schedule(self, T: int, B: int) -> Bound:
        """The division of a call of these sizes (B of a ragged one: mean samples per step).

        It assumes the threads of a quiet machine, so that results do not depend on how many are
        free now, bit for bit.
        """
        quiet = min(self._team, threads()) if self._team else threads()
        step_s = step_seconds(self._load, _ALONE, B, 1) + B * self._load.batched_s
        if not self._team and step_s * T <= _WORTH_S:  # a given team works at any size
            quiet = 1
        division = self.fixed or ranked(self.program, B, quiet)[0]
        return division.bind(T, B, quiet, self._rows, self._steps)

    def tape_bytes(self, T: int, B: int) -> int:
        """Slots and state sequences that the forward keeps for the backward (bytes)."""
        chunk = self.schedule(T, B).chunk
        return self.dtype.itemsize * self.results.kept_elements(T, B, chunk)

    def workspace_bytes(self, T: int, B: int) -> int:
        """Packed weights, chunks, scratch: of the larger direction (bytes)."""
        plan = self._plan(T, B)
        return self.dtype.itemsize * max(plan.forward, plan.backward)

    def _plan(self, T: int, B: int, packed: Packed | None = None) -> Plan:
        """Sizes of calls, cached."""
        if packed is not None:
            return self._packed_plan(packed)
        free = self.workers()
        plan = self._plans.get((T, B, free))
        if plan is None:
            plan = self._planned(self.schedule(T, B), T, B, free)
            if len(self._plans) >= _MOST_PLANS:
                self._plans.clear()
            if self.workers() == free:  # else the number of free threads changed meanwhile
                self._plans[T, B, free] = plan
        return plan

    def _packed_plan(self, packed: Packed) -> Plan:
        """Sizes of a packed call; not cached, since they rarely repeat."""
        T, B = packed.steps, packed.batch
        plan = self._planned(self.schedule(T, packed.mean_batch), T, B, self.workers(), True)
        sequences = self.results.sequences(T, B, plan.head[_CHUNK], packed)
        tape = packed.rows * self.results.tape_row
        return replace(plan, sequences=sequences, tape=tape)

    def _planned(self, schedule: Bound, T: int, B: int, free: int, packed: bool = False) -> Plan:
        shares = schedule.workers
        head = (T, B, schedule.chunk, min(free, shares), schedule.split, shares, 0, 0, 0)
        item = self.dtype.itemsize
        few = T * B <= _FEW_ROWS
        forward = self._direct if few and self._direct is not None else self._forward
        return Plan(
            head,
            forward,
            self._bytes(forward, head, packed) // item + 1,
            self._bytes(self._backward, head, packed) // item + 1 if self._backward else 0,
            self.results.sequences(T, B, schedule.chunk),
            T * B * self.results.tape_row,
        )

    def _bytes(self, entry: Entry, head: tuple[int, ...], packed: bool) -> int:
        """Workspace of a call (bytes), which a kernel returns if it gets no arena."""
        if not head[0] * head[1]:
            return 0
        # no arena, no tape; of rows it only matters whether there are any
        numbers = (*head, 0, 0, int(packed))
        return self._frame.call(
            entry.alone, *numbers, *(0,) * (self._frame.number_count - len(numbers))
        )

    def _launch(
        self,
        launches: ConcurrentLaunches | None,
        entry: Entry,
        size: int,
        references: Any,
        head: tuple[int, ...],
        *numbers: int,
    ) -> None:
        """Run a call now, or add it to concurrent launches.

        Args:
            launches: the concurrent launches, or None.
            entry: the kernel's function.
            size: of the workspace (elements).
            references: objects that must not be freed before it has run.
            head: of the plan.
            numbers: the arguments after the workspace (:meth:`Frame.call`).
        """
        arena = self.supply.take(self.arenas, size)
        if launches is not None:
            launches.add(self._frame, entry, (*head, arena.data_ptr(), *numbers), references)
            launches.hand_back(self.arenas, arena)
            return
        stolen = self._frame.call(entry.alone, *head, arena.data_ptr(), *numbers)
        self.arenas.append(arena)
        if head[_WORKERS] > 1:
            oversubscription.tell(stolen)

    def _places(self, plan: Plan, packed: Packed | None) -> Tensor | None:
        """Row offsets of the steps of a packed call, and shares of its samples."""
        return None if packed is None else packed.numbers(plan.head[_SHARES])

    def forward(self, call: Call) -> Result:
        return self.begin_forward(call, None)

    def begin_forward(self, call: Call, launches: ConcurrentLaunches | None) -> Result:
        """:meth:`forward`; with concurrent launches, results are valid only after their run."""
        T, B, rows = call.sizes
        packed = call.packed
        plan = self._plan(T, B, packed)
        places = self._places(plan, packed)
        references, numbers = self._arguments.of(call)
        first = tuple(map(contiguous, call.states))
        sequences = tuple(map(self.supply.empty, plan.sequences))
        last = tuple(map(self.supply.like, call.states))
        output = self.results.output(call, sequences)
        tape = self.supply.take(self.tapes, plan.tape) if self.spec.training else None
        if tape is not None and tape.numel() != plan.tape:
            tape = tape[: plan.tape]  # so that saved tensors have the same shape each time
        if not rows:
            for end, start in zip(last, first, strict=True):
                end.copy_(start)
        else:
            states_pad = self._padding[1]
            self._launch(
                launches,
                plan.forward_entry,
                plan.forward,
                (references, first, sequences, places),
                plan.head,
                0 if tape is None else tape.data_ptr(),
                address_or_null(places),
                *(self._rings if packed is None else self._all_rows),
                *numbers,
                *map(address, sequences),
                *states_pad,
                *map(address, first),
                *states_pad,
                *map(address, last),
                *states_pad,
                output.data_ptr(),
                *self._no_gradients,
            )
        saved = () if tape is None else (*sequences, tape)
        return Result(self.results.shaped(call, output), last, saved)

    def discard(self, saved: Sequence[Tensor]) -> None:
        """See :meth:`Kernel.discard`; the tape is the last saved tensor."""
        if saved:
            self.tapes.append(full_storage(saved[-1]))

    def backward(
        self, call: Call, saved: Sequence[Tensor], cotangents: Cotangents, keep: bool
    ) -> Gradients:
        return self.begin_backward(call, saved, cotangents, keep, None)

    def begin_backward(
        self,
        call: Call,
        saved: Sequence[Tensor],
        cotangents: Cotangents,
        keep: bool,
        launches: ConcurrentLaunches | None,
    ) -> Gradients:
        """:meth:`backward`; with concurrent launches, results are valid only after their run."""
        if self._backward is None:
            raise EngineError("this kernel was compiled without a backward")
        T, B, rows = call.sizes
        plan = self._plan(T, B, call.packed)
        places = self._places(plan, call.packed)
        references, numbers = self._arguments.of(call)
        *sequences, tape = saved
        if keep and self.destructive:  # cotangents share slots with the tape and overwrite it
            tape = tape.clone()
        d_output = cotangents.output
        if d_output is None:
            width = self.results.output_width
            dy, t, row = torch.zeros(width, dtype=self.dtype, device="cpu"), 0, 0
        else:
            d_output = d_output if call.packed is None else d_output.unsqueeze(1)
            dy, t, row = rows_of(d_output, self.joined_dy)
            t *= self.spec.steps
        gradients = self.results.gradients(call)
        d_inputs, d_states, d_weights = gradients.inputs, gradients.states, gradients.weights
        lasts = tuple(map(contiguous_or_none, cotangents.last))
        if not rows:
            for d in (*d_inputs, *d_states, *d_weights):
                if d is not None:
                    d.zero_()
        else:
            inputs_pad, states_pad, weights_pad = self._padding
            self._launch(
                launches,
                self._backward,
                plan.backward,
                (references, dy, lasts, tape, places),
                plan.head,
                tape.data_ptr(),
                address_or_null(places),
                *self._all_rows,
                *numbers,
                *map(address, sequences),
                *states_pad,
                *self._no_forward,
                dy.data_ptr(),
                t,
                row,
                *map(address_or_null, lasts),
                *states_pad,
                *map(address_or_null, d_inputs),
                *inputs_pad,
                *map(address_or_null, d_states),
                *states_pad,
                *map(address_or_null, d_weights),
                *weights_pad,
            )
        if not keep:  # no second backward can read the tape, so the next forward may reuse it
            tape = full_storage(tape)
            if launches is not None:
                launches.hand_back(self.tapes, tape)
            else:
                self.tapes.append(tape)
        return gradients

"""Engine c: programs spelled as C, the whole time loop in one native call."""

from __future__ import annotations

import ctypes
import hashlib
import os
from collections import deque
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from elman.engines.base import Engine, Job, Kernel
from elman.engines.c.build import build, find_compiler, load
from elman.engines.c.emit import ARRAYS, Blocks, Emitter, fields
from elman.engines.c.isa import detect
from elman.engines.c.schedule import SPLITS, Schedule, choose, product_weights
from elman.engines.c.threads import pool, workers
from elman.errors import EngineError
from elman.plan.build import output_is_state, program
from elman.plan.prices import Prices
from elman.plan.program import Home, Program, Sweep

PRICES = Prices()
_DTYPES = {"float32": torch.float32, "float64": torch.float64}


@lru_cache(maxsize=256)
def _context(inputs: int, states: int, weights: int) -> type[ctypes.Structure]:
    """The ctypes twin of the context in ``emit.py``; everything is eight bytes wide."""
    members: list[tuple[str, Any]] = []
    for ctype, name, count in fields(inputs, states, weights):
        kind: Any = ctypes.c_long if ctype == "long" else ctypes.c_void_p
        members.append((name, kind * max(1, count) if name in ARRAYS else kind))
    return type("Context", (ctypes.Structure,), {"_fields_": members})


def _rows(x: Tensor) -> tuple[Tensor, int, int]:
    """A tensor [T, B, ...] as rows at one distance: itself if it is, else a copy; (tensor, t,
    row)."""
    T, B = x.shape[:2]
    if x.dim() == 3 and x.stride(2) != 1 and x.shape[2] > 1:
        if x.stride(0) == 0 and x.stride(1) == 0:  # an expanded gradient: one row serves all
            return x[0, 0].contiguous(), 0, 0
        x = x.contiguous()
    elif B > 1 and T > 1 and x.stride(0) != B * x.stride(1):
        x = x.contiguous()
    t, b = x.stride(0), x.stride(1)
    return x, t, t if B == 1 else b


def _overwrites_tape(sweep: Sweep | None) -> bool:
    if sweep is None:
        return False
    writes: list[Home] = []
    for phase in (sweep.before, sweep.step, sweep.after):
        for segment in phase.segments:
            writes.extend(home for _, home in segment.scalar_writes)
            writes.extend(home for part in segment.parts for _, home in part.writes)
    return any(home.where == "tape" for home in writes)


class CKernel(Kernel):
    """One compiled program. Thread-safe: every call has its own context and workspace."""

    engine = "c"

    def __init__(self, job: Job, made: Program, split: str, blocks: Blocks | None = None) -> None:
        self.program, self.spec, self.split = made, job.spec, split
        self.isa = detect()
        self.emitter = Emitter(made, self.isa, blocks)
        text = self.emitter.text()
        self.digest = hashlib.sha256(text.encode()).hexdigest()[:16]
        library = load(build(text, self.isa))
        threads = pool()
        library.elman_threads.argtypes = [ctypes.c_void_p] * 3
        library.elman_threads.restype = None
        library.elman_threads(threads.parallel, threads.number, threads.count)
        self._forward = library.elman_forward
        self._backward = library.elman_backward if made.backward is not None else None
        for function in (self._forward, self._backward):
            if function is not None:
                function.restype = ctypes.c_long
                function.argtypes = [ctypes.c_void_p]
        shape = self.emitter.shape
        self._context = _context(shape.inputs, shape.states, shape.weights)
        layout = self.emitter.layout
        self.dtype = _DTYPES[job.spec.dtype]
        # fresh memory is filled with NaN, so that an element that was never written shows
        self.poison = bool(os.environ.get("ELMAN_POISON"))
        self.state_widths = layout.state_widths
        self.output_width = layout.output_width
        self.tape_row = layout.tape_row if made.tape else 0
        step = made.pair.step
        self.output_is_state = output_is_state(made.pair)
        # a backward reads all rows of the states, and so does an epilogue of the forward
        self.keeps_rows = job.spec.training or bool(made.forward.after.segments)
        self.scalar_output = not step.outputs[0].shape
        names = self.emitter.arrays.names
        self.wanted_weights = [name in job.spec.wants for name in names]
        inputs = list(dict.fromkeys(leaf.data[0] for leaf in step.inputs))
        self.wanted_inputs = [name in job.spec.wants for name in inputs]
        missed = {  # inputs of which some atom gets no gradient: nothing is written there
            leaf.data[0]
            for leaf, d in zip(step.inputs, made.pair.d_inputs, strict=True)
            if d is None
        }
        self.missed_inputs = [name in missed for name in inputs]
        self.destructive = _overwrites_tape(made.backward)
        self._weights = product_weights(made.forward, dict(made.spec.dims))
        self._arenas: deque[Tensor] = deque(maxlen=2)
        self._tapes: deque[Tensor] = deque(maxlen=2)
        self._bytes: dict[tuple[int, int, Schedule, bool], int] = {}

    def describe(self) -> dict[str, Any]:
        """Engine, digest of the C text (which is the plan's), instruction set, split."""
        return {"engine": "c", "plan": self.digest, "isa": self.isa.name, "schedule": self.split}

    def schedule(self, T: int, B: int) -> Schedule:
        """How a call of these sizes runs now."""
        return choose(self.program, self._weights, B, T, workers(), self.split)

    def tape_bytes(self, T: int, B: int) -> int:
        """What the forward keeps for the backward: slots and state sequences (bytes)."""
        item = 8 if self.spec.dtype == "float64" else 4
        return item * (T * B * self.tape_row + (T + 1) * B * sum(self.state_widths))

    def _empty(self, *shape: int) -> Tensor:
        fresh = torch.empty(shape, dtype=self.dtype)
        return fresh.fill_(float("nan")) if self.poison else fresh

    def _take(self, spare: deque[Tensor], count: int) -> Tensor:
        """A buffer that an earlier call gave back if it is large enough, else a new one.

        Fresh memory costs a page fault per 4 KiB, which is a few per cent of a training step.
        """
        try:
            buffer = spare.pop()
        except IndexError:
            return self._empty(count)
        if buffer.numel() < count:
            return self._empty(count)
        return buffer.fill_(float("nan")) if self.poison else buffer

    def _run(self, function: Any, context: Any, T: int, B: int, backward: bool) -> None:
        schedule = self.schedule(T, B)
        context.T, context.B, context.chunk = T, B, schedule.chunk
        context.workers, context.split = schedule.workers, schedule.split
        address = ctypes.addressof(context)
        key = (T, B, schedule, backward)
        size = self._bytes.get(key)
        if size is None:
            context.arena = None
            size = self._bytes[key] = function(address)
        arena = self._take(self._arenas, size // self.dtype.itemsize + 1)
        context.arena = arena.data_ptr()
        function(address)
        self._arenas.append(arena)

    def forward(
        self, inputs: Sequence[Tensor], states: Sequence[Tensor], weights: Sequence[Tensor]
    ) -> tuple[Tensor, tuple[Tensor, ...], tuple[Tensor, ...]]:
        """See :meth:`Kernel.forward`."""
        T, B = inputs[0].shape[:2]
        training = self.spec.training
        context = self._context()
        held = self._point_inputs(context, inputs)
        first = [state.contiguous() for state in states]
        matrices = [weight.contiguous() for weight in weights]
        sequences: list[Tensor] = []
        last: list[Tensor] = []
        for index, (state, width) in enumerate(zip(first, self.state_widths, strict=True)):
            every = self.keeps_rows or (index == 0 and self.output_is_state)
            sequence = self._empty(T + 1 if every else 2, B, width)
            sequences.append(sequence)
            context.ring[index] = -1 if every else 1
            context.st[index] = sequence.data_ptr()
            context.h0[index] = state.data_ptr()
            last.append(self._empty(*state.shape))
            context.last[index] = last[-1].data_ptr()
        for index, weight in enumerate(matrices):
            context.w[index] = weight.data_ptr()
        if self.output_is_state:
            output = sequences[0][1:]
        else:
            output = self._empty(T, B, self.output_width)
            context.out = output.data_ptr()
        tape = self._take(self._tapes, T * B * self.tape_row) if training else None
        context.tape = tape.data_ptr() if tape is not None else None
        if T * B:
            self._run(self._forward, context, T, B, False)
        else:
            for made, given in zip(last, first, strict=True):
                made.copy_(given)
        del held
        if self.scalar_output:
            output = output.reshape(T, B)
        saved = (*sequences, tape) if tape is not None else ()
        return output, tuple(last), saved

    def _point_inputs(self, context: Any, inputs: Sequence[Tensor]) -> list[Tensor]:
        held: list[Tensor] = []
        addresses = getattr(context, "in")
        for index, x in enumerate(inputs):
            rows, t, row = _rows(x)
            held.append(rows)
            addresses[index] = rows.data_ptr()
            context.in_t[index], context.in_l[index] = t, row
        return held

    def backward(
        self,
        inputs: Sequence[Tensor],
        states: Sequence[Tensor],
        weights: Sequence[Tensor],
        saved: Sequence[Tensor],
        d_output: Tensor | None,
        d_last: Sequence[Tensor | None],
        keep: bool,
    ) -> tuple[tuple[Tensor | None, ...], tuple[Tensor | None, ...], tuple[Tensor | None, ...]]:
        """See :meth:`Kernel.backward`."""
        if self._backward is None:
            raise EngineError("this kernel was compiled without a backward")
        T, B = inputs[0].shape[:2]
        context = self._context()
        held = self._point_inputs(context, inputs)
        *sequences, tape = saved
        if keep and self.destructive:
            tape = tape.clone()
        matrices = [weight.contiguous() for weight in weights]
        for index, sequence in enumerate(sequences):
            context.st[index] = sequence.data_ptr()
            context.ring[index] = -1
        for index, weight in enumerate(matrices):
            context.w[index] = weight.data_ptr()
        context.tape = tape.data_ptr()
        if d_output is None:
            dy, t, row = torch.zeros(self.output_width, dtype=self.dtype), 0, 0
        else:
            dy, t, row = _rows(d_output)
        context.dy, context.dy_t, context.dy_l = dy.data_ptr(), t, row
        d_inputs: list[Tensor | None] = []
        for index, (x, wanted) in enumerate(zip(inputs, self.wanted_inputs, strict=True)):
            if not wanted:
                d_inputs.append(None)
                continue
            missed = self.missed_inputs[index]
            d = torch.zeros(x.shape, dtype=self.dtype) if missed else self._empty(*x.shape)
            d_inputs.append(d)
            context.din[index] = d.data_ptr()
        lasts = [None if d is None else d.contiguous() for d in d_last]
        d_states: list[Tensor] = []
        for index, (state, d) in enumerate(zip(states, lasts, strict=True)):
            context.dlast[index] = None if d is None else d.data_ptr()
            made = self._empty(*state.shape)
            d_states.append(made)
            context.dst[index] = made.data_ptr()
        d_weights: list[Tensor | None] = []
        for index, (weight, wanted) in enumerate(zip(weights, self.wanted_weights, strict=True)):
            d = self._empty(*weight.shape) if wanted else None
            d_weights.append(d)
            if d is not None:
                context.dw[index] = d.data_ptr()
        if T * B:
            self._run(self._backward, context, T, B, True)
        else:
            for d in (*d_inputs, *d_states, *d_weights):
                if d is not None:
                    d.zero_()
        if not keep:
            self._tapes.append(tape)  # nobody else can read it any more
        del held, dy
        return tuple(d_inputs), tuple(d_states), tuple(d_weights)


class CEngine(Engine):
    """Generated C on the CPU."""

    name = "c"

    def supports(self, job: Job) -> str | None:
        """A CPU, float32 or float64, and a C compiler."""
        if job.spec.device != "cpu":
            return f"it runs on the CPU, not on {job.spec.device}"
        if job.spec.dtype not in _DTYPES:
            return f"it has no {job.spec.dtype}; it has {' and '.join(_DTYPES)}"
        found = find_compiler()
        return found if isinstance(found, str) else None

    def schedules(self, job: Job) -> tuple[str, ...]:
        """The cost model's choice, and each way of sharing a step."""
        return ("", *SPLITS)

    def compile(self, job: Job, schedule: str | None = None) -> Kernel:
        """Plan, spell, compile (or find in the cache), load."""
        reason = self.supports(job)
        if reason is not None:
            raise EngineError(f"engine 'c' cannot run {job.name}: {reason}")
        if schedule and schedule not in SPLITS:
            raise EngineError(
                f"engine 'c' has no schedule {schedule!r}; it has {', '.join(SPLITS)}"
            )
        return CKernel(job, program(job.pair, job.spec, PRICES), schedule or "")


ENGINE = CEngine()

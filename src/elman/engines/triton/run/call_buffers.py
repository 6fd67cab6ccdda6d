"""Arrays of a call in progress."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor

from elman.engines.call import Call, Cotangents, Gradients, Result
from elman.engines.packed_rows import Packed
from elman.engines.triton.device import limits
from elman.engines.triton.device.launch import Arrays, fresh, numbered
from elman.engines.triton.loops.batched_phase import BatchedPhase, transposed_if
from elman.engines.triton.loops.sweeping import Sweeping
from elman.engines.triton.run.kernel_parts import KernelParts


class CallBuffers(ABC):
    """Arrays of a call in one direction.

    Attributes:
        T, B, rows: steps, samples, and rows of all steps.

    Args:
        of: the kernel.
        sweep: the direction.
        call: the call.
        vec: all loop-invariant vectors; None: they are computed.
    """

    def __init__(
        self,
        of: KernelParts,
        sweep: Sweeping | None,
        call: Call,
        vec: Tensor | None = None,
    ) -> None:
        assert sweep is not None, "the kernel has this direction"
        self.of, self.sweep, self.heads = of, sweep, of.heads
        self.call, self.packed = call, call.packed
        self.T, self.B, self.rows = of.sizes(call)
        like = call.inputs[0]
        lead, layout = self.heads, of.layout
        vectors = [] if vec is not None else [*layout.memory.offsets]
        values = of.rate.values(call.weights, [*vectors, *sweep.matrices], heads=bool(lead))
        if vectors:
            flat = [values[node].reshape(*lead, -1).to(like.device) for node in vectors]
            vec = _side_by_side(flat)
        self.vec = like.new_zeros(*lead, 1, dtype=torch.float32) if vec is None else vec
        self._matrices = {node: _rowed(values[node].to(of.dtype)) for node in sweep.matrices}
        self._carry: Sequence[Tensor] = []
        self.sequences: Sequence[Tensor] = ()
        self.arrays: Arrays = {}  # [.., rows, n] each
        for k, (value, width) in enumerate(zip(call.inputs, layout.input_widths, strict=True)):
            self.arrays[f"in{k}"] = _rowed(value.reshape(*lead, self.rows, width))

    def _run_steps(self) -> None:
        """Run all steps, and the batched phases before and after them."""
        self._batched(self.sweep.before)
        if self.sweep.steps is not None:
            self._carry = self._stepped()
        else:
            self._carry = self._looped()
        if self.packed is not None and self.sweep.forward and self.sweep.after.segments:
            self.arrays |= self._rows_of_states()
        self._batched(self.sweep.after)

    def _batched(self, runner: BatchedPhase) -> None:
        """Run a batched phase on all rows."""
        if not runner.segments:
            return
        workspace: Arrays = {}
        for name, width in (("sr", runner.phase.scratch_row), ("sc", runner.phase.scalars)):
            if width:
                workspace[name] = fresh(self.vec, *self.heads, self.rows, width)
        weights = runner.weights(self._matrices)
        runner.run({**self.arrays, **workspace}, weights, self.vec, self.rows)

    def _looped(self) -> Sequence[Tensor]:
        """All steps in one kernel; the states at the end."""
        loop, packed = self.sweep.loop, self.packed
        assert loop is not None, "the schedule has a loop"
        matrices = [_rowed(transposed_if(self._matrices[node], t)) for node, t in loop.matrices]
        states = numbered("st", [sequence.flatten(-3, -2) for sequence in self.sequences])
        arrays = {**self.arrays, **states, **numbered("m", matrices), "vec": self.vec}
        if packed is not None:
            rows = _first_rows(packed, self.vec.device)
            arrays["rows"] = rows.expand(*self.heads, -1)  # the same for every head
        carry = [value.float() for value in self._carry]
        return self.sweep.run(arrays, carry, self.T, self.of.element)

    @abstractmethod
    def _stepped(self) -> list[Tensor]:
        """Run all steps one by one; returns the states carried at the end."""

    def _step_by_step(self, carries: Arrays) -> Tensor | None:
        """Run all steps one by one.

        Args:
            carries: ``ca`` and ``cn`` [.., B, n], which are exchanged after each step; or none.

        Returns:
            The carry at the end, if there is one.
        """
        runner, heads, B = self.sweep.steps, self.heads, self.B
        assert runner is not None, "the schedule runs single steps"
        weights = runner.weights(self._matrices)
        rows = {name: a for name, a in self.arrays.items() if not name.startswith(("st", "nx"))}
        workspace = {
            "sr": fresh(self.vec, *heads, B, max(1, runner.phase.scratch_row)),
            "sc": fresh(self.vec, *heads, B, max(1, runner.phase.scalars)),
        }
        wide: list[Tensor] = []
        if self.sweep.wide:
            starts = [sequence[..., :1, :B, :].float() for sequence in self.sequences]
            wide = [start.expand(*heads, 2, -1, -1).clone() for start in starts]
        for t in range(self.T) if self.sweep.forward else reversed(range(self.T)):
            first, size = self._rows_at(t)
            now = {name: a.narrow(-2, first, size) for name, a in rows.items()}
            beside = (*workspace.items(), *carries.items())
            now |= {name: a.narrow(-2, 0, size) for name, a in beside}
            for k, sequence in enumerate(self.sequences):
                kept = self._states_at(sequence, t)
                states = self._states_at(wide[k], t) if wide else kept
                names = (f"st{k}", f"nx{k}", f"sp{k}", f"sq{k}")
                now |= dict(zip(names, (*states, *kept), strict=True))
            runner.run(now, weights, self.vec, size)
            if carries:
                carries = {"ca": carries["cn"], "cn": carries["ca"]}
        return carries.get("ca")

    def _rows_at(self, t: int) -> tuple[int, int]:
        """The first row of a step, and the number of its rows."""
        if self.packed is None:
            return t * self.B, self.B
        return self.packed.offsets[t], self.packed.sizes[t]

    def _states_at(self, sequence: Tensor, t: int) -> tuple[Tensor, Tensor]:
        """A state [.., rows, n] before and after a step; a state that is not kept has two rows,
        which alternate."""
        at, size = self._rows_at(t)
        if self.packed is not None and sequence.shape[-2] > self.B:
            first = 0 if not t else self.B + self._rows_at(t - 1)[0]
            flat = sequence.select(-3, 0)
            return flat.narrow(-2, first, size), flat.narrow(-2, self.B + at, size)
        count = sequence.shape[-3]
        before, after = sequence.select(-3, t % count), sequence.select(-3, (t + 1) % count)
        return before.narrow(-2, 0, size), after.narrow(-2, 0, size)

    def _rows_of_states(self) -> Arrays:
        """Kept sequences as rows before and after each step."""
        rows: Arrays = {}
        packed = self.packed
        needed = self._needed()
        for k, sequence in enumerate(self.sequences):
            if k in self.of.layout.held and {f"st{k}", f"nx{k}"} & needed:
                rows[f"st{k}"] = rows[f"nx{k}"] = self._repeated(sequence)
            if not self.of.kept_states[k]:
                continue
            flat = sequence.flatten(-3, -2)
            rows[f"nx{k}"] = flat[..., self.B :, :]
            if packed is None:
                rows[f"st{k}"] = flat[..., : self.rows, :]
            else:
                rows[f"st{k}"] = flat.index_select(-2, _before(packed, flat.device))
        return rows

    def _needed(self) -> set[str]:
        """Names of the arrays whose rows of all steps are read."""
        return self.sweep.arrays

    def _repeated(self, sequence: Tensor) -> Tensor:
        """A pass-through state repeated for each step."""
        if self.packed is None:
            return sequence.expand(*self.heads, self.T, -1, -1).flatten(-3, -2)
        at = self.packed.sequence.to(sequence.device)
        return sequence.select(-3, 0).index_select(-2, at)

    def _chunk(self, like: Tensor) -> Tensor:
        """Memory between batched phases and steps."""
        width = max(1, self.sweep.lowering.chunk[1])
        return fresh(like, *self.heads, self.rows, width, dtype=self.of.slots)


class ForwardCallBuffers(CallBuffers):
    """A forward in progress.

    Args:
        of: the kernel.
        call: see :meth:`Kernel.forward`.
    """

    def __init__(
        self,
        of: KernelParts,
        call: Call,
    ) -> None:
        super().__init__(of, of.sweepings(call.packed is not None)[0], call)
        layout, heads, like, packed = of.layout, self.heads, call.states[0], call.packed
        T, B, rows = self.T, self.B, self.rows
        self._dtype = like.dtype
        self._carry = [
            state.reshape(*heads, B, width).contiguous()
            for state, width in zip(call.states, layout.state_widths, strict=True)
        ]
        self.sequences = [
            fresh(like, *heads, 1, B + rows, width)
            if of.kept_states[k] and packed is not None
            else self._matrices_kept(like, width)
            if k in layout.matrices
            else fresh(like, *heads, self._kept_steps(k), B, width)
            for k, width in enumerate(layout.state_widths)
        ]
        for sequence, start in zip(self.sequences, self._carry, strict=True):
            sequence[..., 0, :B, :] = start
        self._lead = (rows,) if packed is not None else (T, B)
        if of.output_is_state:
            sequence0 = self.sequences[0]
            self.output = sequence0[..., 1:, :, :] if packed is None else sequence0[..., 0, B:, :]
        else:
            self.output = fresh(like, *heads, *self._lead, layout.output_width)
            self.arrays["out"] = self.output.reshape(*heads, rows, layout.output_width)
        self._tape = fresh(like, *heads, rows, max(1, layout.tape_row), dtype=of.slots)
        self.arrays |= {"tape": self._tape, "ch": self._chunk(like)}
        if packed is None:
            self.arrays |= self._rows_of_states()

    def _kept_steps(self, k: int) -> int:
        """Steps of a state that is a vector."""
        if self.of.kept_states[k]:
            return self.T + 1
        return 1 if k in self.of.layout.held or self.sweep.steps is None else 2

    def _matrices_kept(self, like: Tensor, width: int) -> Tensor:
        """Memory for the matrices before each chunk of steps, in float32."""
        chunks = -(-self.T // limits.MATRIX_STEPS) if self.of.replays else 1
        return fresh(like, *self.heads, chunks, self.B, width, dtype=torch.float32)

    def run(self) -> Result:
        """Run the call; the result of :meth:`Kernel.forward`."""
        self._run_steps()
        output = self.output
        if self.of.scalar_output:
            output = output.reshape(*self.heads, *self._lead)
        ends = zip(self._carry, self.call.states, strict=True)
        last = tuple(end.to(self._dtype).reshape(start.shape) for end, start in ends)
        saved = (*self.sequences, self._tape, self.vec)
        return Result(output, last, saved if self.of.job.spec.training else ())

    def _stepped(self) -> list[Tensor]:
        self._step_by_step({})
        return [self._last(k, sequence) for k, sequence in enumerate(self.sequences)]

    def _last(self, k: int, sequence: Tensor) -> Tensor:
        """A state after every sample's last step."""
        if self.packed is None or k in self.of.layout.held:
            return sequence.select(-3, self.T % sequence.shape[-3]).clone()
        rows = _last_rows(self.packed, self.of.kept_states[k], sequence.device)
        return sequence.flatten(-3, -2).index_select(-2, rows)


class BackwardCallBuffers(CallBuffers):
    """A backward in progress.

    Args:
        of: the kernel.
        call, saved, cotangents, keep: see :meth:`Kernel.backward`.
    """

    def __init__(
        self,
        of: KernelParts,
        call: Call,
        saved: Sequence[Tensor],
        cotangents: Cotangents,
        keep: bool,
    ) -> None:
        *sequences, tape, vec = saved
        super().__init__(of, of.sweepings(call.packed is not None)[1], call, vec)
        layout, heads, like, rows = of.layout, self.heads, call.states[0], self.rows
        d_output = cotangents.output
        self.sequences = sequences
        self.arrays |= self._rows_of_states()
        self.arrays["tape"] = tape.clone() if keep else tape  # the backward may overwrite slots
        self.arrays["ch"] = self._chunk(like)
        width = layout.output_width
        if d_output is None:
            self.arrays["dy"] = like.new_zeros(width).expand(*heads, rows, width)
        else:
            self.arrays["dy"] = _rowed(d_output.reshape(*heads, rows, width))
        wants = of.job.spec.wants
        self.d_inputs = [
            _empty(like, name in of.filled, *heads, rows, width) if name in wants else None
            for name, width in zip(of.declared, layout.input_widths, strict=True)
        ]
        self.arrays |= {f"din{k}": d for k, d in enumerate(self.d_inputs) if d is not None}
        self._carry = [
            like.new_zeros(*heads, self.B, width)
            if d is None
            else d.reshape(*heads, self.B, width).contiguous()
            for d, width in zip(cotangents.last, layout.state_widths, strict=True)
        ]

    def run(self) -> Gradients:
        """Run the call; the result of :meth:`Kernel.backward`."""
        self._run_steps()
        of, call = self.of, self.call
        sums = of.weight_gradients(self.arrays)
        d_weights = of.rate.gradients(sums, call.weights, heads=bool(self.heads))
        d_inputs = tuple(
            d if d is None else d.reshape(value.shape)
            for d, value in zip(self.d_inputs, call.inputs, strict=True)
        )
        d_states = tuple(
            d.to(state.dtype).reshape(state.shape)
            for d, state in zip(self._carry, call.states, strict=True)
        )
        return Gradients(d_inputs, d_states, d_weights)

    def _needed(self) -> set[str]:
        return super()._needed() | self.of.weight_gradients.arrays

    def _stepped(self) -> list[Tensor]:
        layout = self.of.layout
        size = (*self.heads, self.B, max(1, layout.carry_row))
        carries = {name: self.vec.new_zeros(size) for name in ("ca", "cn")}
        for array, offset, column in layout.carried():
            columns = self._carry[array].narrow(-1, column.offset, column.width)
            for carry in carries.values():  # packed samples may begin with either
                carry.narrow(-1, offset, column.width).copy_(columns)
        end = self._step_by_step(carries)
        assert end is not None, "carries were given"
        states = [torch.empty_like(value) for value in self._carry]
        for array, offset, column in layout.carried():
            columns = end.narrow(-1, offset, column.width)
            states[array].narrow(-1, column.offset, column.width).copy_(columns)
        return states


def _empty(like: Tensor, filled: bool, *shape: int) -> Tensor:
    """Memory for a gradient: zeros, unless the kernel fills all of it."""
    return fresh(like, *shape) if filled else like.new_zeros(shape)


def _rowed(matrix: Tensor) -> Tensor:
    """A matrix, or several, with contiguous rows."""
    return matrix if matrix.stride(-1) == 1 else matrix.contiguous()


def _side_by_side(vectors: Sequence[Tensor]) -> Tensor:
    """Vectors [.., n] in one array of float32, padded as their offsets are."""
    zeros = vectors[0].new_zeros(limits.ALIGNED).expand(*vectors[0].shape[:-1], -1)
    padded = [part for v in vectors for part in (v, zeros[..., : -v.shape[-1] % limits.ALIGNED])]
    return torch.cat(padded, -1).float()


@lru_cache(maxsize=8)
def _first_rows(packed: Packed, device: torch.device) -> Tensor:
    """The first row of every step, and the end."""
    return packed.numbers(1)[: packed.steps + 1].to(device)


@lru_cache(maxsize=8)
def _before(packed: Packed, device: torch.device) -> Tensor:
    """For each packed row, the row of the state before its step."""
    starts = (0, *(packed.batch + first for first in packed.offsets[: packed.steps - 1]))
    sizes = torch.tensor(packed.sizes)
    first = torch.tensor(starts) - torch.tensor(packed.offsets[: packed.steps])
    rows = torch.arange(packed.rows) + first.repeat_interleave(sizes)
    return rows.to(device)


@lru_cache(maxsize=8)
def _last_rows(packed: Packed, is_kept: bool, device: torch.device) -> Tensor:
    """The row of the state after each sample's last step, in a kept sequence or in two alternating
    rows."""
    rows = [
        packed.batch + packed.offsets[length - 1] + n if is_kept else length % 2 * packed.batch + n
        for n, length in enumerate(packed.lengths)
    ]
    return torch.tensor(rows, device=device)

"""All steps in one kernel where states are matrices per sample: a program for each sample.

A program has its matrices in registers. The forward keeps them before every chunk of steps; a
backward recomputes the matrices of a chunk before it goes back through its steps, into memory of
the program's own.
"""

from __future__ import annotations

from typing import Any

from elman.engines.triton.device import limits
from elman.engines.triton.device.source import indented
from elman.engines.triton.loops.loop import NEXT
from elman.engines.triton.loops.matrix_blocks import AGAIN, MatrixBlocks
from elman.engines.triton.text.printer import NO_UNIT
from elman.lowered.types import Access, Space


class MatrixLoop(MatrixBlocks):
    """One direction's time loop over the matrices of one sample.

    Args:
        of, options: see :class:`MatrixBlocks`.

    Attributes:
        replayed: states whose matrices the backward reads.
        summed_states: states whose cotangents are partial sums, set by :meth:`text`.
    """

    def __init__(self, *of: Any, **options: Any) -> None:
        super().__init__(*of, **options)
        self._after: dict[int, str] = {}  # variables of the states after a step
        self.replayed = sorted(self.layout.matrices) if self.replay is not None else []
        self.summed_states: frozenset[int] = frozenset()

    def samples(self, block: str = "tl.program_id(0)") -> list[str]:
        """See :meth:`Loop.samples`: one."""
        return [f"n = {block}.to(tl.int64)", "all_live = n < B", "live = all_live"]

    def text(self) -> str:
        text = super().text()
        self.divisible &= len(self._widths) == 1 and self.shares_apart()
        self.summed_states = frozenset(
            k for after, k in self._next.items() if self.at_hand.get(after) in self._partial_sums
        )
        return text

    def print_steps(self) -> None:
        before = [access for access, _ in self.carried]
        self._forms = dict(zip(before, self._state_forms, strict=True))
        self._axes_of = {a: axes for a, axes in zip(before, self._state_axes, strict=True) if axes}
        super().print_steps()
        self._after = {}
        for after, k in self._next.items():
            if after in self.at_hand:
                with self._as(self._state_forms[k], self._state_axes[k]):
                    self._after[k] = self.broadcast(self.use(after), after)

    def step(self) -> list[str]:
        if self.forward:
            return [*self._kept(), *super().step()]
        head, *rest = self.step_parts()
        again = self._matrices_of_chunk() if self.replayed else []
        moves = [f"new{array} = old{array}" for array in self.replayed]
        moves += [f"old{array} = old{array}{NEXT}" for array in self.replayed]
        return [*head, *again, *(line for part in rest for line in part), *moves]

    def step_end(self) -> list[str]:
        ends: list[str] = []
        for k, state in self._after.items():
            ends.append(f"next_{k} = {self._if_live(state, f'h{k}')}")
        return [*ends, *(f"h{k} = next_{k}" for k in self._after)]

    def _if_live(self, value: str, otherwise: str) -> str:
        """A value, or what it was where the sample's steps are over."""
        return f"tl.where({self.live}, {value}, {otherwise})" if self.packed else value

    def _place(self, array: int, row: str, kind: str) -> tuple[str, str]:
        """Pointers to a sample's matrix in a row of an array, and their mask."""
        k = next(k for k, column in enumerate(self.layout.states) if column.array == array)
        with self._as("matrix", self._state_axes[k]):
            at, masks = self._element()
        width = self.layout.state_widths[array]
        return f"{self.array(f'{kind}{array}')} + ({row}) * {width} + {at}", " & ".join(
            [*masks, "all_live"]
        )

    def _kept(self) -> list[str]:
        """Keep the matrices before the first step of each chunk."""
        sweep = self.layout.program.backward
        if sweep is None or sweep.replay is None:
            return []
        lines: list[str] = []
        for k, column in enumerate(self.layout.states):
            if column.array in self.layout.matrices:
                row = f"(i // {limits.MATRIX_STEPS}) * B + n"
                at, mask = self._place(column.array, row, "st")
                lines.append(f"lib.put({at}, h{k}, {mask})")
        return [f"if i % {limits.MATRIX_STEPS} == 0:", *indented(lines)] if lines else []

    def _matrices_of_chunk(self) -> list[str]:
        """Recompute the matrices of a chunk at its last step, which a backward visits first; load
        the matrices of the preceding step ahead, within the chunk."""
        size = limits.MATRIX_STEPS
        body, after = self._printed_again()
        begin: list[str] = []
        head: list[str] = []
        ends: list[str] = []
        ahead: list[str] = []
        moves: list[str] = []
        for array in self.replayed:
            at, mask = self._place(array, f"(t // {size}) * B + n", "st")
            begin += [f"again{array} = tl.load({at}, mask={mask}, other=0.0).to(tl.float32)"]
            at, mask = self._place(array, f"n * {size} + (s - chunk)", "rp")
            head += [f"lib.put({at}, again{array}, {mask})"]
            ends.insert(0, f"behind{array} = {after[array]}")  # all next states before any update
            ends += [f"again{array} = behind{array}"]
            at, mask = self._place(array, f"n * {size} + (t - chunk - 1)", "rp")
            place = at.replace("- 1)", ")")
            # loaded, not handed on from `again`: Triton 3.6 takes a variable that a loop sets to
            # another one's earlier value for invariant, if both were equal before the loop
            moves += [f"old{array} = tl.load({place}, mask={mask}, other=0.0)"]
            moves += [f"new{array} = again{array}"]
            ahead += [f"old{array}{NEXT} = tl.load({at}, mask={mask} & (t > chunk), other=0.0)"]
        loop = ["for s in range(chunk, t + 1):", *indented([*head, *body, *ends])]
        barrier = "tl.debug_barrier()"  # threads read what others have stored
        return [
            f"chunk = t // {size} * {size}",
            f"if (i == 0) | (t == chunk + {size - 1}):",
            *indented([barrier, *begin, *loop, barrier, *moves]),
            *ahead,
        ]

    def _printed_again(self) -> tuple[list[str], dict[int, str]]:
        """The lines of a step of the replay, and the matrices after it."""
        assert self.replay is not None, "it has replayed states"
        before = self.lines, self.at_hand, self._forms, self._axes_of, self._other, self._loaded
        self.lines, self.at_hand, self._forms, self._axes_of = [], {}, {}, {}
        self._other, self._loaded = {}, set()
        self._again, self._mark = True, f"_{AGAIN}"
        after: dict[int, str] = {}
        for segment in self.replay.segments:
            self.segment(segment)
        for access, name in self.at_hand.items():
            if access.region.space is Space.REPLAYED and access.step:
                array = access.region.array
                with self._as("matrix", self._axes_of[access]):
                    text = self.broadcast(name, access)
                after[array] = self._if_live(text, f"again{array}")
        lines = [*self.step_head("T - 1 - s"), *self.lines]
        if not self.packed:
            lines = ["live_again = all_live", *lines]
        self._again, self._mark = False, ""
        self.lines, self.at_hand, self._forms, self._axes_of, self._other, self._loaded = before
        return lines, after

    def begin(self) -> list[str]:
        lines = super().begin()
        if self.cut:
            first = "tl.program_id(1) == 0"
            lines += [f"h{k} = tl.where({first}, h{k}, 0.0)" for k in sorted(self.partial_states)]
        for array in self.replayed:
            k = next(k for k, column in enumerate(self.layout.states) if column.array == array)
            with self._as("matrix", self._state_axes[k]):
                zeros = f"tl.zeros({self._shape(0)}, tl.float32)"
            lines += [f"old{array} = {zeros}", f"new{array} = {zeros}"]
        return lines

    def end_row(self, name: str, array: int, k: int) -> str:
        if not self.cut or k not in self.partial_states or name != "dfirst":
            return super().end_row(name, array, k)
        row = "(n * tl.num_programs(1) + tl.program_id(1))"
        return f"{self.array(f'pe{array}')} + {row} * {self.layout.state_widths[array]}"

    def end_units(self, k: int, at: str, access: Access) -> tuple[str, str]:
        if access.scalar:
            return f"{at} + {NO_UNIT}", "all_live"
        with self._as(self._state_forms[k], self._state_axes[k]):
            units = self._element()[0] if self._form == "matrix" else self.units(access.units)
            return f"{at} + {units}", self.inside(access.units, "all_live")

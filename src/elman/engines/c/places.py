"""Addresses of a phase's values as C text: rows of arguments, tape, chunk and scratch."""

from __future__ import annotations

from dataclasses import dataclass

from elman.engines.c.layout import CLayout
from elman.ir.graph import Node
from elman.plan.program import Buffer, Phase


@dataclass(frozen=True)
class RowAddress:
    """A column of row-addressed memory: C text of base and row stride, and what must be
    declared."""

    base: str
    stride: str
    offset: int
    width: int | None  # None: padded to whole vectors
    first: str = ""  # the row that lies at the base; empty: 0

    def index(self, row: str) -> str:
        """C text of where the column begins in a row (elements behind the base)."""
        offset = f" + {self.offset}" if self.offset else ""
        row = f"({row} - {self.first})" if self.first else row
        return f"{row} * {self.stride}{offset}"

    def at(self, row: str) -> str:
        """C text of the column's address in a row."""
        return f"{self.base} + {self.index(row)}"


class Places:
    """Columns of row-addressed memory, as one phase names them.

    Attributes:
        bases: name of a base -> its C text, of all that were asked for.
        joined: inputs, and ``"dy"``, of which rows of T·B are read.
        gathers_held: whether rows of T·B may read states that have one row per sample.
        later: by how much t changes from one step to the next; 0 where no step follows.
    """

    later = 0

    def __init__(
        self,
        layout: CLayout,
        phase: Phase,
        chunk: tuple[list[int], int],
        *,
        loop: bool,
        gathers_held: bool,
    ) -> None:
        self.layout, self.phase, self.chunk, self.loop = layout, phase, chunk, loop
        self.scratch, self.scratch_row = layout.scratch(phase)
        self.bases: dict[str, str] = {}
        self.joined: set[int | str] = set()
        self.gathers_held = gathers_held

    def place(self, buffer: Buffer, value: Node) -> RowAddress:
        """The column of a buffer; registers the declaration of its base."""
        where, index = buffer.where, buffer.index
        layout = self.layout
        if where in ("input", "state", "next", "output", "d_output", "d_input"):
            column = layout.column(buffer)
            width = column.width if value.shape else None
            array = column.array
            if where == "input":
                if not self.loop:
                    self.joined.add(array)
                self.bases[f"in{array}"] = (
                    f"c->in[{array}] + in_row(c, t, c->in_t[{array}], c->in_l[{array}])"
                )
                return RowAddress(f"in{array}", f"c->in_l[{array}]", column.offset, width)
            if where == "d_output":
                if not self.loop:
                    self.joined.add("dy")
                self.bases["dy"] = "c->dy + in_row(c, t, c->dy_t, c->dy_l)"
                return RowAddress("dy", "c->dy_l", column.offset, width)
            if where == "output":
                row = layout.output_width
                self.bases["out"] = f"c->out + first_row(c, t) * {row}"
                return RowAddress("out", str(row), column.offset, width)
            if where == "d_input":
                row = layout.input_widths[array]
                self.bases[f"din{array}"] = f"c->din[{array}] + first_row(c, t) * {row}"
                return RowAddress(f"din{array}", str(row), column.offset, width)
            row = layout.state_widths[array]
            step, name = ("t", "st") if where == "state" else ("t + 1", "nx")
            text = f"c->st[{array}] + state_row(c, {step}, c->ring[{array}]) * {row}"
            if where == "state" and not self.loop and array in layout.held:
                assert self.gathers_held, "its rows are in no workspace"
                text = f"c->prev[{array}]"
            elif where == "state" and not self.loop:
                text = f"c->rows ? c->prev[{array}] : {text}"
            self.bases[f"{name}{array}"] = text
            return RowAddress(f"{name}{array}", str(row), column.offset, width)
        if where in ("carry", "d_state"):
            name = "cs" if layout.summed[index] else "ca" if where == "carry" else "cn"
            self.bases[name], row = layout.carried(index, "t" if where == "carry" else "t + 1")
            return RowAddress(name, str(row), layout.carry[index], None)
        if where == "tape":
            self.bases["tape"] = f"c->tape + first_row(c, t) * {layout.tape_row}"
            return RowAddress("tape", str(layout.tape_row), layout.tape[index], None)
        if where == "chunk":
            offsets, row = self.chunk
            self.bases["ch"] = f"c->chunk_rows + (first_row(c, t) - first_row(c, t0)) * {row}"
            return RowAddress("ch", str(row), offsets[index], None)
        if where == "scratch":
            step = f" + (t & 1) * c->B * {self.scratch_row}" if self.loop else ""
            self.bases["sr"] = f"c->scratch{step}"
            first = "" if self.loop else "done"
            return RowAddress("sr", str(self.scratch_row), self.scratch[index], None, first)
        raise AssertionError(f"a {where} has no column")

    def prefetches(self, value: Node, buffer: Buffer | None, *, stored: bool) -> list[str]:
        """C lines that prefetch what the next step stores (forward) or loads (backward).

        The tape of a long sequence is in no cache when a direction comes to it, and between two
        steps only products run. Of a ragged batch it is a guess, and behind the end nothing.
        """
        if not self.later or stored != (self.later > 0) or buffer is None or not value.shape:
            return []
        if buffer.where not in ("tape", *(() if stored else ("d_output",))):
            return []
        row = f"(r {'+' if stored else '-'} c->B)"
        place = self.place(buffer, value)
        return [f"PREFETCH({place.base}, {place.index(row)} + u, {int(stored)});"]

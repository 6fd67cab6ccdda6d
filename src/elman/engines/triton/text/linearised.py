"""The step of a group of states and its Jacobian, written unit by unit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate

from elman.engines.group_step import GroupStep
from elman.engines.triton.text.unitwise import Entry, Writer, live, operand
from elman.ir.graph import Node, Rate


class Linearised:
    """f and the rows of its Jacobian at the states ``h0`` …, on a block [steps, channels].

    Args:
        group: the step of the group.
        sizes: of the named dims.
        units, passthrough: see :class:`Writer`.
        groups: number of groups of the kind; each channel belongs to one.
        again: whether each row loads values of weight rate again: more loads, fewer registers.

    Attributes:
        n: number of states that depend on each other.
        width: channels of one sample and group.
        rows, invariants: loaded values, in order.
    """

    def __init__(
        self,
        group: GroupStep,
        sizes: Mapping[str, int],
        *,
        units: bool,
        groups: int = 1,
        passthrough: frozenset[Node] = frozenset(),
        again: bool = False,
    ) -> None:
        writer = Writer(sizes, units=units, groups=groups, passthrough=passthrough)
        self._counts = [writer.count(state) for state in group.states]
        self.n = sum(self._counts)
        self.width = max(writer.size(state) for state in group.states) if units else 1
        self._at = [0, *accumulate(self._counts)]
        for state, first, count in zip(group.states, self._at, self._counts):
            writer.entries[state] = [f"h{first + i}" for i in range(count)]
        writer.place([*group.after, *group.rows])
        self.rows, self.invariants = list(writer.rows), list(writer.invariants)
        rows = [(self._wide(writer, group.after), writer.take())]
        for s in range(self.n):
            if again:
                writer.forget_invariants()
            rows.append((self._row(writer, group, s), writer.take()))
        read: set[Entry] = set()
        self._rows: list[tuple[list[Entry], list[str]]] = []
        for entries, lines in reversed(rows):  # a row may read what an earlier one defines
            read.update(entries)
            self._rows.insert(0, (entries, live(lines, read)))

    def _wide(self, writer: Writer, values: Sequence[Node | None]) -> list[Entry]:
        """An entry for every state."""
        entries: list[Entry] = []
        for value, count in zip(values, self._counts, strict=True):
            of_value: list[Entry] = [0.0] if value is None else writer.value(value)
            entries += of_value if len(of_value) == count else of_value * count
        return entries

    def _row(self, writer: Writer, group: GroupStep, s: int) -> list[Entry]:
        for seed, first, count in zip(group.seeds, self._at, self._counts):
            writer.entries[seed] = [float(s == first + i) for i in range(count)]
        row = self._wide(writer, group.rows)
        writer.forget(Rate.OUTPUT)
        return row

    @property
    def text(self) -> str:
        """All lines, which must be the same for all groups of one kernel."""
        return "\n".join([*self.values(), *(line for i in range(self.n) for line in self.row(i))])

    def values(self) -> list[str]:
        """Lines of f: ``g0`` …, and ``f0`` … without NaN."""
        entries, lines = self._rows[0]
        text = [*lines, "zero = tl.zeros([STEPS, CHANNELS], tl.float32)"]
        for i, entry in enumerate(entries):
            text += [f"g{i} = {operand(entry)} + zero", f"f{i} = lib.number(g{i})"]
        return text

    def row(self, i: int) -> list[str]:
        """Lines of a row of the Jacobian, ``ai0`` …; the identity's for steps beyond the last."""
        entries, lines = self._rows[1 + i]
        text = list(lines)
        for j, entry in enumerate(entries):
            bounded = f"lib.bounded({operand(entry)} + zero)"
            text.append(f"a{i}{j} = tl.where(inside, {bounded}, {float(i == j)})")
        return text

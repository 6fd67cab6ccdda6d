"""States that are matrices per sample as C: where they lie, the loop over samples, what is kept."""

from __future__ import annotations

from collections.abc import Sequence

from elman.engines.c.spelling.values import (
    MATRIX_ROWS,
    matrix_address,
    matrix_pointer,
    pointers_size,
)
from elman.lowered.layout import Layout
from elman.lowered.types import Direction, Space


class MatrixStates:
    """Spells what one direction does with matrices per sample.

    One worker runs all steps of a chunk of one sample before it takes the next. The forward keeps
    the matrices before each chunk; a backward begins each chunk with these, and computes those of
    its steps again.

    Attributes:
        by_sample: whether a part of the direction is over a matrix, so that steps run sample by
            sample.
    """

    def __init__(self, layout: Layout, direction: Direction) -> None:
        self._layout = layout
        self._widths = {array: layout.state_widths[array] for array in sorted(layout.matrices)}
        self._forward = direction.name == "forward"
        self._space = Space.LOCAL if direction.replay is None else Space.REPLAYED
        self.by_sample = any(part.axes for part in direction.parts)

    def elements(self) -> str:
        """C text that adds the elements of a worker's matrices, which lie before its scalars."""
        if not self.by_sample:
            return ""
        pointers = pointers_size(self._layout) if self._space is Space.LOCAL else 0
        return f" + {MATRIX_ROWS[self._space]} * {self._layout.matrix_rows} + {pointers}"

    def size(self) -> list[str]:
        """C line that adds a worker's matrices to its scalars, in whole cache lines."""
        if not self.by_sample:
            return []
        return [f"    c->scalars_size = (c->scalars_size{self.elements()} + 15) / 16 * 16;"]

    def loops(
        self,
        loop: str,
        again: Sequence[str],
        steps: Sequence[str],
        before: Sequence[str],
        after: Sequence[str],
    ) -> list[str]:
        """The loops over samples and steps.

        Args:
            loop: the head of the loop over steps, in the direction's order.
            again: calls of a step of the replay; empty without one.
            steps: calls of a step.
            before, after: of the other phases, if they run sample by sample.
        """
        forwards = "for (long t = t0; t < t0 + n; t++)"
        lines = _of_active(forwards, before)
        if self._space is Space.REPLAYED:
            for array, width in self._widths.items():
                here = matrix_address(self._layout, array, self._space, "0")
                source = self._checkpoint(array, "t0 / c->chunk")
                lines.append(f"memcpy({here}, {source}, sizeof(T) * {width});")
            lines += _of_active(forwards, again)
        elif self._forward:
            lines += self._ends()
            steps = [*self._pointers(), *steps]
        lines += [*_of_active(loop, steps), *_of_active(forwards, after)]
        return [
            "int lead = 1;",
            "long s = c->split ? w->id : 0, shares = c->split ? c->shares : 1;",
            "if (c->split || !w->id) for (; s < shares; s += w->workers)",
            "    for (long b0 = cut(c, s, shares); b0 < cut(c, s + 1, shares); b0++) {",
            "        const long e = b0 + 1;",
            "        UNUSED const int more = e < cut(c, s + 1, shares);",
            *("        " + line for line in lines),
            "    }",
        ]

    def _checkpoint(self, array: int, chunk: str) -> str:
        """C text of the address at which a sample's matrix before a chunk is saved."""
        row = f"(({chunk}) & c->ring[{array}]) * c->B + b0"
        return f"c->st[{array}] + ({row}) * {self._widths[array]}"

    def _ends(self) -> list[str]:
        """C lines that declare where a chunk of the forward reads its sample's first matrices and
        writes the last ones, behind step ``stop``. A backward needs the initial ones: a copy."""
        lines = [
            "long stop = t0 + n;",
            "while (stop > t0 && size_at(c, stop - 1) < e) stop--;",
        ]
        for array, width in self._widths.items():
            before, after = (
                self._checkpoint(array, f"t0 / c->chunk{more}") for more in ("", " + 1")
            )
            begin, end = (f"c->{name}[{array}] + b0 * {width}" for name in ("h0", "last"))
            lines += [
                f"T *first{array} = t0 ? {before} : (T *)({begin});",
                f"T *last{array} = t0 + n < c->T ? {after} : {end};",
            ]
            if self._layout.program.spec.training:
                lines.append(f"if (!t0) memcpy({before}, first{array}, sizeof(T) * {width});")
            copy = f"memcpy(last{array}, first{array}, sizeof(T) * {width});"
            lines.append(f"if (stop == t0) {copy}")
        return lines

    def _pointers(self) -> list[str]:
        """C lines that set the pointers to the matrices before and behind step t."""
        lines: list[str] = []
        for array in self._widths:
            rows = [
                matrix_address(self._layout, array, Space.LOCAL, f"({t}) & 1")
                for t in ("t", "t + 1")
            ]
            before, behind = (matrix_pointer(self._layout, array, step) for step in (0, 1))
            lines += [
                f"{before} = t == t0 ? first{array} : {rows[0]};",
                f"{behind} = t + 1 == stop ? last{array} : {rows[1]};",
            ]
        return lines


def _of_active(loop: str, calls: Sequence[str]) -> list[str]:
    """C lines of a loop over those steps in which the sample is active; none without calls."""
    if not calls:
        return []
    lines = ["if (size_at(c, t) < e) continue;", *calls]
    return [f"{loop} {{", *("    " + line for line in lines), "}"]

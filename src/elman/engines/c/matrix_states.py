"""States that are matrices per sample as C: where they lie, the loop over samples, what is kept."""

from __future__ import annotations

from collections.abc import Sequence

from elman.engines.c.spelling import MATRIX_ROWS, matrix_address
from elman.lowered.layout import Layout
from elman.lowered.types import Direction, Space


class MatrixStates:
    """Spells what one direction does with matrices per sample.

    One worker runs all steps of a chunk of one sample before it takes the next. The forward keeps
    matrices before and behind each chunk; a backward begins each chunk with those before it, and
    computes those of its steps again.

    Attributes:
        by_sample: whether a part of the direction is over a matrix, so that steps run sample by
            sample.
    """

    def __init__(self, layout: Layout, direction: Direction) -> None:
        self._layout, self._arrays = layout, sorted(layout.matrices)
        self._forward = direction.name == "forward"
        self._space = Space.LOCAL if direction.replay is None else Space.REPLAYED
        self.by_sample = any(part.axes for part in direction.parts)

    def elements(self) -> str:
        """C text that adds the elements of a worker's matrices, which lie before its scalars."""
        if not self.by_sample:
            return ""
        return f" + {MATRIX_ROWS[self._space]} * {self._layout.matrix_rows}"

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
        replays = self._space is Space.REPLAYED
        lines = _of_active(forwards, before)
        if replays or self._forward:
            lines += self._copies("t0 / c->chunk", "0" if replays else "t0 & 1", load=True)
        if replays:
            lines += _of_active(forwards, again)
        lines += [*_of_active(loop, steps), *_of_active(forwards, after)]
        if self._forward:
            lines += [
                "long stop = t0 + n;",
                "while (stop > t0 && size_at(c, stop - 1) < e) stop--;",
                *self._copies("t0 / c->chunk + 1", "stop & 1", load=False),
            ]
        return [
            "int lead = 1;",
            "long s = c->split ? w->id : 0, shares = c->split ? c->shares : 1;",
            "if (c->split || !w->id) for (; s < shares; s += w->workers)",
            "    for (long b0 = cut(c, s, shares); b0 < cut(c, s + 1, shares); b0++) {",
            "        const long e = b0 + 1;",
            *("        " + line for line in lines),
            "    }",
        ]

    def _copies(self, chunk: str, row: str, *, load: bool) -> list[str]:
        """C lines that copy a sample's matrices from (``load``) or to where they are kept."""
        lines: list[str] = []
        for array in self._arrays:
            width = self._layout.state_widths[array]
            at_hand = matrix_address(self._layout, array, self._space, row)
            kept = f"c->st[{array}] + ((({chunk}) & c->ring[{array}]) * c->B + b0) * {width}"
            target, source = (at_hand, kept) if load else (kept, at_hand)
            lines.append(f"memcpy({target}, {source}, sizeof(T) * {width});")
        return lines

    def last(self) -> list[str]:
        """C lines that copy the matrices behind the last chunk to the last states, by worker 0."""
        lines: list[str] = []
        for array in self._arrays:
            width = f"c->B * {self._layout.state_widths[array]}"
            chunks = "(c->T + c->chunk - 1) / c->chunk"
            source = f"c->st[{array}] + (({chunks}) & c->ring[{array}]) * {width}"
            lines.append(f"if (!w->id) memcpy(c->last[{array}], {source}, sizeof(T) * {width});")
        return lines


def _of_active(loop: str, calls: Sequence[str]) -> list[str]:
    """C lines of a loop over those steps in which the sample is active; none without calls."""
    if not calls:
        return []
    lines = ["if (size_at(c, t) < e) continue;", *calls]
    return [f"{loop} {{", *("    " + line for line in lines), "}"]

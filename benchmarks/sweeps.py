"""Charts over several rows: a figure of some contestants at each size of a sweep."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from benchmarks.claims import Rows, UnmeasuredError
from benchmarks.rows import curve


@dataclass(frozen=True)
class Sweep:
    """One chart of a suite.

    Attributes:
        title, x, y: of the chart, of its axes.
        sizes: the places along x.
        lines: what is drawn, by name: contestants, cells …
        figure: of a line at a size.
        log: the names of the axes that are logarithmic.
    """

    title: str
    x: str
    y: str
    sizes: Sequence[int]
    lines: Iterable[Any]
    figure: Callable[[Rows, Any, int], float]
    log: str = "xy"

    def plots(self, rows: Rows) -> list[dict[str, Any]]:
        """The chart without sizes that were not measured; nothing if none was."""
        lines: dict[str, list[tuple[int, float]]] = {}
        for line in self.lines:
            for size in self.sizes:
                with suppress(UnmeasuredError):
                    point = size, self.figure(rows, line, size)
                    lines.setdefault(str(line), []).append(point)
        return [curve(self.title, self.x, self.y, self.log, lines)] if lines else []

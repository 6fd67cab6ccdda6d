"""Where everything goes: columns from left to right, few crossings, short lines.

Columns are ordered by barycentres, and rows moved as near to their neighbours as they fit. Only the
forward is laid out; the backward mirrors it.
"""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from elman.drawing.picture import AFTER, BEFORE, Line, Mark, Picture

Point = tuple[float, float]

HEIGHT = 30.0  # of a shape; tags and names stand above and below it
TAG, NAME = 20.0, 15.0
_CHAR = 7.3  # width of a character
GAP_X, _GAP_Y = 64.0, 14.0
_LANE = 16.0  # height of a line that passes a column
_SWEEPS = 24


@dataclass(frozen=True)
class Layout:
    """Places in points, y downward.

    Attributes:
        centre: of every shape.
        route: per line, the points it passes.
        bands: left and right edge of what runs before, and after, the loop.
    """

    centre: Mapping[str, Point]
    route: Mapping[Line, Sequence[Point]]
    bands: Mapping[int, tuple[float, float]]
    width: float
    height: float


def width_of(mark: Mark) -> float:
    """Width of a shape: room for what stands in it, forward and backward."""
    if mark.kind in ("sum", "times"):
        return HEIGHT
    return max(HEIGHT, _CHAR * max(len(mark.label), len(mark.back)) + 16.0)


def tag_width(text: str) -> float:
    """Width of a weight's tag."""
    return 6.4 * len(text) + 12.0


def _room(mark: Mark) -> tuple[float, float, float]:
    """(width, above, below) of a shape with what hangs on it."""
    wide = max(width_of(mark), tag_width(mark.tag) if mark.tag else 0.0)
    wide = max(wide, tag_width(mark.back_tag) if mark.back_tag else 0.0)
    above = HEIGHT / 2 + (TAG if mark.tag or mark.back_tag else 0.0)
    return wide, above, HEIGHT / 2 + (NAME if mark.name or mark.back_name else 0.0)


def columns(picture: Picture) -> dict[str, int]:
    """The column of each shape: after all it reads; what runs before the loop stands left of it."""
    marks = picture.marks  # each behind those that it reads
    tails: dict[str, set[str]] = {key: set() for key in marks}
    heads: dict[str, set[str]] = {key: set() for key in marks}
    for line in picture.lines:
        tails[line.head].add(line.tail)
        heads[line.tail].add(line.head)
    column: dict[str, int] = {}
    first = 0
    last: dict[int, int] = {}
    for zone in sorted({mark.zone for mark in marks.values()}):
        inside = [key for key, mark in marks.items() if mark.zone == zone]
        for key in inside:
            column[key] = max([first, *(column[tail] + 1 for tail in tails[key])])
        first = max(column[key] for key in inside) + 1
        last[zone] = first - 1
    for key in reversed(marks):
        before = [column[head] - 1 for head in heads[key]]
        if marks[key].kind in ("next", "output"):
            column[key] = last[marks[key].zone]
        elif marks[key].kind not in ("input", "state") and before:
            if len(tails[key]) <= len(heads[key]):
                column[key] = max(column[key], min([*before, last[marks[key].zone]]))
    return column


def _bands(picture: Picture, centre: Mapping[str, Point]) -> dict[int, tuple[float, float]]:
    """Where what runs before, and after, the loop begins and ends."""
    edges: dict[int, tuple[float, float]] = {}
    for zone in (BEFORE, AFTER):
        inside = [
            (centre[key][0] - _room(mark)[0] / 2, centre[key][0] + _room(mark)[0] / 2)
            for key, mark in picture.marks.items()
            if mark.zone == zone
        ]
        if inside:
            edges[zone] = (min(start for start, _ in inside), max(end for _, end in inside))
    return edges


class _Rows:
    """Orders the shapes of each column, and the lanes of lines that pass it."""

    def __init__(self, picture: Picture, column: Mapping[str, int]) -> None:
        self.picture = picture
        self.rows: list[list[str]] = [[] for _ in range(max(column.values()) + 1)]
        self.room: dict[str, tuple[float, float]] = {}
        self.before: dict[str, list[str]] = {}
        self.right: dict[str, list[str]] = {}
        self.via: dict[Line, list[str]] = {}
        for key, mark in picture.marks.items():
            self.rows[column[key]].append(key)
            self.room[key] = _room(mark)[1:]
        for number, line in enumerate(picture.lines):
            lanes: list[str] = []
            for index in range(column[line.tail] + 1, column[line.head]):
                lane = f"lane {number} {index}"
                self.rows[index].append(lane)
                self.room[lane] = (_LANE / 2, _LANE / 2)
                lanes.append(lane)
            self.via[line] = lanes
            chain = [line.tail, *lanes, line.head]
            for before, after in itertools.pairwise(chain):
                self.right.setdefault(before, []).append(after)
                self.before.setdefault(after, []).append(before)

    def crossings(self) -> int:
        place = {key: index for row in self.rows for index, key in enumerate(row)}
        total = 0
        for row in self.rows:
            ends: list[int] = []  # of the lines that begin above, in order
            for key in row:
                for head in sorted(place[head] for head in self.right.get(key, ())):
                    at = bisect_right(ends, head)
                    total += len(ends) - at
                    ends.insert(at, head)
        return total

    def order(self) -> None:
        """Sweep to and fro, each column by the mean row of its neighbours; keep the best."""
        best, best_rows = self.crossings(), [list(row) for row in self.rows]
        for sweep in range(_SWEEPS):
            rightward = sweep % 2 == 0
            near = self.before if rightward else self.right
            indices = range(len(self.rows))
            for index in indices if rightward else reversed(indices):
                place = {
                    key: (at + 0.5) / len(row) for row in self.rows for at, key in enumerate(row)
                }

                self.rows[index].sort(key=partial(_mean, near=near, place=place))
            count = self.crossings()
            if count < best:
                best, best_rows = count, [list(row) for row in self.rows]
        self.rows = best_rows
        self._swap()

    def _swap(self) -> None:
        """Exchange neighbours while that removes crossings."""
        place = {key: index for row in self.rows for index, key in enumerate(row)}
        for _ in range(4):
            swapped = False
            for row in self.rows:
                for at in range(len(row) - 1):
                    upper, lower = row[at], row[at + 1]
                    if self._gain(upper, lower, place) > 0:
                        row[at], row[at + 1] = lower, upper
                        place[upper], place[lower] = at + 1, at
                        swapped = True
            if not swapped:
                return

    def _gain(self, upper: str, lower: str, place: Mapping[str, int]) -> int:
        """The number of crossings that an exchange of two neighbours removes."""
        gain = 0
        for near in (self.before, self.right):
            ends = [[place[end] for end in near.get(key, ())] for key in (upper, lower)]
            gain += sum((a > b) - (a < b) for a, b in itertools.product(*ends))
        return gain

    def heights(self) -> dict[str, float]:
        """y of everything: as near to its neighbours as the order and the room allow."""
        y: dict[str, float] = {}
        for row in self.rows:
            y.update(zip(row, _spread([0.0] * len(row), self._steps(row)), strict=True))
        for sweep in range(2 * _SWEEPS):
            for row in self.rows if sweep % 2 == 0 else reversed(self.rows):
                targets: list[float] = []
                for key in row:
                    ends = [y[end] for end in (*self.before.get(key, ()), *self.right.get(key, ()))]
                    targets.append(sum(ends) / len(ends) if ends else y[key])
                y.update(zip(row, _spread(targets, self._steps(row)), strict=True))
        return y

    def _steps(self, row: Sequence[str]) -> list[float]:
        """The least distances between the centres of a column."""
        pairs = itertools.pairwise(row)
        return [self.room[a][1] + self.room[b][0] + _GAP_Y for a, b in pairs]


def _mean(key: str, near: Mapping[str, list[str]], place: Mapping[str, float]) -> float:
    """Where a shape's neighbours stand, on average; its own place without any."""
    ends = [place[end] for end in near.get(key, ())]
    return sum(ends) / len(ends) if ends else place[key]


def _spread(targets: Sequence[float], steps: Iterable[float]) -> list[float]:
    """Places nearest to the wishes (least squares) that keep the order and the distances."""
    offsets = [0.0]
    for step in steps:
        offsets.append(offsets[-1] + step)
    blocks: list[list[float]] = []  # (mean, count), pooled until they ascend
    for target, offset in zip(targets, offsets, strict=False):
        blocks.append([target - offset, 1.0])
        while len(blocks) > 1 and blocks[-2][0] > blocks[-1][0]:
            mean, count = blocks.pop()
            total = blocks[-1][1] + count
            blocks[-1] = [(blocks[-1][0] * blocks[-1][1] + mean * count) / total, total]
    flat = [mean for mean, count in blocks for _ in range(int(count))]
    return [base + offset for base, offset in zip(flat, offsets, strict=False)]


def layout(picture: Picture, gap: float = GAP_X) -> Layout:
    """Place a picture, columns that far apart at least."""
    rows = _Rows(picture, columns(picture))
    rows.order()
    y = rows.heights()
    marks = picture.marks
    top = min(y[key] - rows.room[key][0] for key in y)
    bottom = max(y[key] + rows.room[key][1] for key in y)
    x: dict[str, float] = {}
    edge = 0.0
    for row in rows.rows:
        wide = max((_room(marks[key])[0] for key in row if key in marks), default=0.0)
        factors = [len(line.back) for line in picture.lines if line.head in row]
        if any(factors):
            edge += max(0.0, 6.8 * max(factors) + 26.0 - gap)
        x.update(dict.fromkeys(row, edge + wide / 2))
        edge += wide + gap
    centre = {key: (x[key], y[key] - top) for key in marks}
    route: dict[Line, Sequence[Point]] = {}
    for line in picture.lines:
        (x1, y1), (x2, y2) = centre[line.tail], centre[line.head]
        lanes = [(x[lane], y[lane] - top) for lane in rows.via[line]]
        start = (x1 + width_of(marks[line.tail]) / 2, y1)
        route[line] = [start, *lanes, (x2 - width_of(marks[line.head]) / 2, y2)]
    return Layout(centre, route, _bands(picture, centre), edge - gap, bottom - top)

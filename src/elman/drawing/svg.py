"""A placed picture as SVG: the forward above and, unless it is compact, its mirrored backward."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from elman.drawing.layout import HEIGHT, NAME, TAG, Layout, Point, tag_width, width_of
from elman.drawing.picture import AFTER, BEFORE, Line, Mark, Picture
from elman.escaping import xml_text

_MARGIN = 36.0
_HEAD = 104.0
_BETWEEN = 64.0  # between forward and backward
_SMALL = 14.0  # margin of a picture of symbols
_LONG = 5  # characters of a symbol that is written small
_FOOT = 100.0
_DOT = 5.0
_SHARES = (0.5, 0.4, 0.6, 0.3, 0.7, 0.2, 0.8, 0.1)  # where along a line its factor may stand
_SHIFTS = (0.0, -8.0, 8.0, -15.0, 15.0, -24.0, 24.0)  # of a factor from its line
_MIDDLE = 'dy="0.35em"'  # not every viewer knows dominant-baseline

_LIGHT = """
text { font-family: 'DejaVu Sans', Helvetica, Arial, sans-serif; font-size: 12px; fill: #1f2933;
       text-anchor: middle; }
.title { font-size: 20px; font-weight: bold; text-anchor: start; }
.subtitle, .note { font-size: 12px; fill: #52606d; text-anchor: start; }
.side { font-size: 13px; font-weight: bold; fill: #7b8794; text-anchor: end; letter-spacing: 1px; }
.band { fill: #eaf2fb; } .bandname { fill: #5a7fa8; font-size: 11px; font-style: italic; }
.line { fill: none; stroke: #7b8794; stroke-width: 1.4; }
.shape { fill: #ffffff; stroke: #52606d; stroke-width: 1.4; }
.leaf { fill: #e3f5e8; stroke: #2f8f5b; } .state { fill: #fff4d6; stroke: #b7862b; }
.product { fill: #2c5282; stroke: #1a365d; } .inproduct { fill: #ffffff; font-weight: bold; }
.tag { fill: #e8e4f5; stroke: #6b5ca5; stroke-width: 1; } .intag { font-size: 11px; fill: #44337a; }
.taped { fill: #f9c4c4; } .needed { stroke: #d21f1f; stroke-width: 2.4; }
.red { fill: #d21f1f; font-weight: bold; }
.name { font-size: 12px; font-style: italic; }
.factor { font-size: 11px; }
.card { fill: none; stroke: #cbd2d9; } .faint { fill: #cbd2d9; }
.axis { stroke: #cbd2d9; stroke-dasharray: 5 5; }
.ground { fill: #ffffff; } .tip { fill: #52606d; }
.symbols text { font-size: 17px; } .symbols .long { font-size: 12px; }
.symbols .name { font-size: 14px; } .symbols .line { stroke-width: 1.8; }
.symbols .red { font-weight: normal; }
"""
_DARK = """
  text { fill: #e4e7eb; } .subtitle, .note { fill: #9aa5b1; } .ground { fill: #16181b; }
  .band { fill: #1c2733; } .bandname { fill: #8fb4dd; }
  .line { stroke: #8a94a0; } .tip { fill: #aeb7c2; }
  .shape { fill: #23272d; stroke: #aeb7c2; }
  .leaf { fill: #17372a; stroke: #57b98a; } .state { fill: #3d3115; stroke: #d9a94a; }
  .product { fill: #3f6ea8; stroke: #8fb4dd; }
  .tag { fill: #2e2747; stroke: #a294d8; } .intag { fill: #d3c9f5; }
  .taped { fill: #6b2626; } .needed { stroke: #f2685f; } .red { fill: #ff8a80; }
  .card, .axis { stroke: #4a525c; } .faint { fill: #6b7480; }
"""
STYLES = {  # by colour scheme; that of the page unless it is named
    "": f"{_LIGHT}@media (prefers-color-scheme: dark) {{{_DARK}}}\n",
    "light": _LIGHT,
    "dark": _LIGHT + _DARK,
}
# Shrinks with the column that it stands in; opened alone it has its own size.
_FITTING = 'style="max-width: 100%; height: auto"'

_LEGEND = (  # class and rounded corners of a shape, and what it is
    ("shape leaf", 8, "input, output"),
    ("shape state", 8, "state"),
    ("tag", 0, "weight, its gradient"),
    ("shape product", 4, "product"),
    ("shape needed", 4, "read by the backward, where red"),
    ("shape taped", 4, "kept on the tape"),
)
_Box = tuple[float, float, float, float]


def opening(
    width: float, height: float, title: str, kind: str = "", scheme: str = ""
) -> Iterator[str]:
    """The beginning of a picture: its size, title, styles, the tips of arrows, its ground."""
    box = f'width="{width:.0f}" height="{height:.0f}" viewBox="0 0 {width:.0f} {height:.0f}"'
    named = f' class="{kind}"' if kind else ""
    yield f'<svg xmlns="http://www.w3.org/2000/svg"{named} {box} {_FITTING}>'
    yield f"<title>{xml_text(title)}</title>"
    yield f"<style>{STYLES[scheme]}</style>"
    tip = 'viewBox="0 0 8 8" refX="7.5" refY="4" markerWidth="7" markerHeight="7" orient="auto"'
    yield f'<defs><marker id="tip" {tip}><path class="tip" d="M0,0.6 L8,4 L0,7.4 z"/>'
    yield "</marker></defs>"
    yield '<rect class="ground" width="100%" height="100%"/>'


def svg(
    picture: Picture,
    positions: Layout,
    backward: bool = True,
    symbols: bool = False,
    scheme: str = "",
) -> str:
    """Write a picture as SVG text.

    Args:
        picture, positions: what is drawn, and where.
        backward: whether the backward stands below the forward.
        symbols: leave out heading and legend, and write symbols large.
        scheme: ``"light"``, ``"dark"``, or that of the page.
    """
    return _Writer(picture, positions, backward, symbols).text(scheme)


class _Writer:
    def __init__(
        self, picture: Picture, placed: Layout, backward: bool = True, symbols: bool = False
    ) -> None:
        self.picture, self.placed, self.symbols = picture, placed, symbols
        self.sides = (False, True) if backward else (False,)
        margin, self.head, foot = (_SMALL,) * 3 if symbols else (_MARGIN, _HEAD, _FOOT)
        between = 2 * _SMALL if symbols else _BETWEEN
        least = 880.0 if backward and not symbols else 0.0  # what the legend needs
        self.width = max(placed.width, least) + 2 * margin
        self.offset = (self.width - placed.width) / 2
        self.axis = self.head + placed.height + between / 2
        self.bottom = self.axis + between / 2 + placed.height if backward else self.axis
        self.height = self.bottom + (foot if backward else 0.0)
        self.boxes: list[_Box] = []

    def text(self, scheme: str = "") -> str:
        kind = "symbols" if self.symbols else ""
        parts = [
            *opening(self.width, self.height, self.picture.title, kind, scheme),
            *(() if self.symbols else self._head()),
            *self._bands(),
        ]
        for back in self.sides:
            for mark in self.picture.marks.values():
                self.boxes.extend(self._boxes(mark, back))
        labels: list[str] = []
        for back in self.sides:
            for line in self.picture.lines:
                parts.append(self._line(line, back))
                labels.extend(self._factor(line, back))
        for back in self.sides:
            for mark in self.picture.marks.values():
                parts.extend(self._mark(mark, back))
        legend = self._legend() if True in self.sides and not self.symbols else ()
        return "\n".join([*parts, *labels, *legend, "</svg>"])

    def _at(self, point: Point, back: bool) -> Point:
        """A point of the layout on the page; the backward is mirrored at the axis."""
        x, y = point[0] + self.offset, point[1] + self.head
        return (x, 2 * self.axis - y) if back else (x, y)

    def _head(self) -> Iterator[str]:
        title, subtitle = xml_text(self.picture.title), xml_text(self.picture.subtitle)
        yield f'<text class="title" x="{_MARGIN}" y="26">{title}</text>'
        yield f'<text class="subtitle" x="{_MARGIN}" y="48">{subtitle}</text>'

    def _bands(self) -> Iterator[str]:
        words = {
            BEFORE: ("before the loop: once for all T·B", "after the loop: once for all T·B"),
            AFTER: ("after the loop: once for all T·B", "before the loop: once for all T·B"),
        }
        for zone, (start, right) in self.placed.bands.items():
            x, wide = start + self.offset - 12, right - start + 24
            near = 3 if self.symbols else 8  # of the axis
            for back in self.sides:
                y = self.axis + near if back else self.head - 12
                tall = (self.bottom - self.axis if back else self.axis - self.head) + 12 - near
                yield f'<rect class="band" x="{x:.1f}" y="{y:.1f}" width="{wide:.1f}" '
                yield f'height="{tall:.1f}" rx="8"/>'
                if self.symbols:
                    continue
                at = self.bottom + 30 if back else _HEAD - 20
                title = words[zone][back]
                yield f'<text class="bandname" x="{x + wide / 2:.1f}" y="{at:.1f}">{title}</text>'
        if True not in self.sides or self.symbols:
            return
        right = self.width - _MARGIN
        yield f'<path class="axis" d="M{_MARGIN},{self.axis} H{right}"/>'
        yield f'<text class="side" x="{right}" y="{self.axis - 10}">forward →</text>'
        yield f'<text class="side" x="{right}" y="{self.axis + 20}">← backward</text>'

    def _boxes(self, mark: Mark, back: bool) -> Iterator[_Box]:
        x, y = self._at(self.placed.centre[mark.key], back)
        wide, half = width_of(mark) / 2, HEIGHT / 2
        yield x - wide, y - half, x + wide, y + half
        tag, name = (mark.back_tag, mark.back_name) if back else (mark.tag, mark.name)
        down = 1 if back else -1
        if tag:
            half_tag, at = tag_width(tag) / 2, y + down * (half + TAG / 2)
            yield x - half_tag, at - TAG / 2, x + half_tag, at + TAG / 2
        if name:
            at = y - down * (half + NAME / 2)
            yield x - 4 * len(name), at - NAME / 2, x + 4 * len(name), at + NAME / 2

    def _points(self, line: Line, back: bool) -> list[Point]:
        points = [self._at(point, back) for point in self.placed.route[line]]
        if not back:
            return points
        marks = self.picture.marks  # a sum is a dot in the backward: lines go on to it
        if marks[line.tail].kind == "sum":
            points[0] = (points[0][0] - HEIGHT / 2 + _DOT + 1, points[0][1])
        if marks[line.head].kind == "sum":
            points[-1] = (points[-1][0] + HEIGHT / 2 - _DOT, points[-1][1])
        return points[::-1]

    def _line(self, line: Line, back: bool) -> str:
        points = self._points(line, back)
        curves = [_cubic(*ends)[1:] for ends in itertools.pairwise(points)]
        path = f"M{_xy(points[0])} " + " ".join(
            "C" + " ".join(_xy(point) for point in curve) for curve in curves
        )
        return f'<path class="line" d="{path}" marker-end="url(#tip)"/>'

    def _factor(self, line: Line, back: bool) -> Iterator[str]:
        """A coefficient or a derivative's factor, near its reader, where it covers nothing."""
        text = line.back if back else line.label
        if not text:
            return
        piece = self._last(line, back)
        half = 3.4 * len(text) + 3
        (left, right), (top, bottom) = ((min(ends), max(ends)) for ends in zip(*piece))
        reach = left - half, top - 7 - max(_SHIFTS), right + half, bottom + 7 + max(_SHIFTS)
        near = [box for box in self.boxes if _overlap(reach, box)]
        best: tuple[float, float, float] | None = None
        for share in _SHARES:
            for shift in _SHIFTS:
                x, y = _bezier(piece, share)
                y += shift
                box = (x - half, y - 7, x + half, y + 7)
                cost = sum(_overlap(box, neighbour) for neighbour in near) + abs(shift) * 0.1
                if best is None or cost < best[0]:
                    best = (cost, x, y)
        assert best is not None
        _, x, y = best
        self.boxes.append((x - half, y - 7, x + half, y + 7))
        colour = " red" if line.red and back else ""
        yield (
            f'<rect x="{x - half + 2:.1f}" y="{y - 7:.1f}" width="{2 * half - 4:.1f}" height="14" '
            'rx="3" class="ground"/>'
        )
        yield f'<text class="factor{colour}" x="{x:.1f}" y="{y:.1f}" {_MIDDLE}>'
        yield f"{xml_text(text)}</text>"

    def _last(self, line: Line, back: bool) -> list[Point]:
        """The segment of a line next to its reader, as a cubic."""
        points = [self._at(point, back) for point in self.placed.route[line]]
        return _cubic(*points[-2:])

    def _mark(self, mark: Mark, back: bool) -> Iterator[str]:
        x, y = self._at(self.placed.centre[mark.key], back)
        label = mark.back if back else mark.label
        wide, half = width_of(mark), HEIGHT / 2
        inner = "red" if back and mark.reads else ""
        marked = "" if back else " taped" * mark.taped + " needed" * mark.needed
        if mark.kind == "sum" and back:
            yield f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{_DOT}" class="tip"/>'
        elif mark.kind in ("sum", "times"):
            yield f'<circle class="shape{marked}" cx="{x:.1f}" cy="{y:.1f}" r="{half}"/>'
            size = 20 if self.symbols else 16
            colour = ' class="red"' if inner else ""
            yield f'<text{colour} x="{x:.1f}" y="{y:.1f}" {_MIDDLE} style="font-size: {size}px">'
            yield f"{xml_text(label)}</text>"
        else:
            styles = {"input": "leaf", "output": "leaf", "parameter": "tag", "next": "state"}
            styles |= {kind: kind for kind in ("state", "product")}
            name = f"shape {styles.get(mark.kind, '')}".rstrip() + marked
            if mark.kind == "product" and (back or not mark.taped):
                inner = "inproduct"
            round_ = half if mark.kind in ("input", "output", "parameter", "state", "next") else 5
            yield (
                f'<rect class="{name}" x="{x - wide / 2:.1f}" y="{y - half:.1f}" '
                f'width="{wide:.1f}" height="{HEIGHT}" rx="{round_}"/>'
            )
            text = xml_text(label)
            if self.symbols and len(label) > _LONG:
                inner = f"{inner} long".lstrip()
            yield f'<text class="{inner}" x="{x:.1f}" y="{y:.1f}" {_MIDDLE}>{text}</text>'
        yield from self._hanging(mark, back, x, y)

    def _hanging(self, mark: Mark, back: bool, x: float, y: float) -> Iterator[str]:
        """Weights above a shape, its value's name below; mirrored in the backward."""
        tag, name = (mark.back_tag, mark.back_name) if back else (mark.tag, mark.name)
        down = 1 if back else -1
        if tag:
            at = y + down * (HEIGHT / 2 + TAG / 2)
            wide = tag_width(tag)
            tip = 5.0
            start, end = x - wide / 2, x + wide / 2
            points = [
                (start, at - 8),
                (end - tip, at - 8),
                (end, at),
                (end - tip, at + 8),
                (start, at + 8),
            ]
            yield f'<polygon class="tag" points="{" ".join(_xy(point) for point in points)}"/>'
            yield f'<text class="intag" x="{x - tip / 4:.1f}" y="{at:.1f}" {_MIDDLE}>'
            yield f"{xml_text(tag)}</text>"
        if name:
            at = y - down * (HEIGHT / 2 + NAME / 2)
            colour = " red" if mark.needed and not back else ""
            yield f'<text class="name{colour}" x="{x:.1f}" y="{at:.1f}" {_MIDDLE}>{xml_text(name)}'
            yield "</text>"

    def _legend(self) -> Iterator[str]:
        y = self.height - 24
        x = _MARGIN
        for name, corner, words in _LEGEND:
            yield f'<rect class="{name}" x="{x}" y="{y - 8}" width="26" height="16" rx="{corner}"/>'
            yield f'<text class="note" x="{x + 32}" y="{y}" {_MIDDLE}>{words}</text>'
            x += 52 + 6.6 * len(words)


def _cubic(start: Point, stop: Point) -> list[Point]:
    """The control points of a curve that leaves and arrives horizontally."""
    (x1, y1), (x2, y2) = start, stop
    middle = (x1 + x2) / 2
    return [(x1, y1), (middle, y1), (middle, y2), (x2, y2)]


def _bezier(points: Sequence[Point], t: float) -> Point:
    """A point of a cubic."""
    shares = ((1 - t) ** 3, 3 * t * (1 - t) ** 2, 3 * t * t * (1 - t), t**3)
    x, y = (sum(w * p[k] for w, p in zip(shares, points, strict=True)) for k in (0, 1))
    return x, y


def _xy(point: Sequence[float]) -> str:
    return f"{point[0]:.1f},{point[1]:.1f}"


def _overlap(a: _Box, b: _Box) -> float:
    wide = min(a[2], b[2]) - max(a[0], b[0])
    tall = min(a[3], b[3]) - max(a[1], b[1])
    return wide * tall if wide > 0 and tall > 0 else 0.0

"""Draw the picture at the top of the README: the formula of an LSTM and its graph.

``python docs/readme_picture.py`` writes it to docs/pictures, in both colour schemes, wide and, for
telephones, tall.
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from pathlib import Path

from cell_pages import formula  # next to this file

from elman import cells
from elman.drawing import SYMBOLS_GAP, picture_of
from elman.drawing.collapse import forward_only, symbols_alone
from elman.drawing.layout import layout
from elman.drawing.svg import svg
from elman.escaping import xml_text

PICTURES = Path(__file__).with_name("pictures")
FONT, LINE, MARGIN = 15.0, 23.0, 24.0  # points
_CHAR = 0.602 * FONT  # width of a monospaced character
COLOURS = {  # of a scheme: text, keywords, strings, frame
    "light": ("#1f2328", "#1f5fa8", "#2f6f3f", "#cbd2d9"),
    "dark": ("#e4e7eb", "#58a6ff", "#7fc98f", "#4a525c"),
}
WORDS = re.compile(r'("[^"]*"|@\w+\b|\b(?:def|return)\b)')


def pictures() -> dict[str, str]:
    """SVG by file name."""
    return {
        f"lstm-{form}-{scheme}.svg": picture(scheme, form == "tall")
        for form in ("wide", "tall")
        for scheme in COLOURS
    }


def picture(scheme: str, tall: bool) -> str:
    """The formula, and the graph at its right; of a tall picture below it."""
    lines = code()
    graph = drawing(scheme)
    root = ElementTree.fromstring(graph)
    wide, high = (float(root.get(name, "")) for name in ("width", "height"))
    text_wide, text_high = _CHAR * max(map(len, lines)), LINE * len(lines)
    scale = text_wide / wide if tall else 1.0
    wide, high = scale * wide, scale * high
    if tall:
        width, height = text_wide + 2 * MARGIN, text_high + high + 3 * MARGIN
        at, top = (MARGIN, text_high + 2 * MARGIN), MARGIN
    else:
        width, height = text_wide + wide + 3 * MARGIN, max(text_high, high) + 2 * MARGIN
        at, top = (text_wide + 2 * MARGIN, (height - high) / 2), (height - text_high) / 2
    placed = re.sub(
        r' width="\d+" height="\d+"',
        f' x="{at[0]:.1f}" y="{at[1]:.1f}" width="{wide:.1f}" height="{high:.1f}"',
        graph,
        count=1,
    )
    return "\n".join(_parts(scheme, width, height, top, placed)) + "\n"


def _parts(scheme: str, width: float, height: float, top: float, graph: str) -> Iterator[str]:
    text, keyword, string, frame = COLOURS[scheme]
    size = f'width="{width:.0f}" height="{height:.0f}" viewBox="0 0 {width:.0f} {height:.0f}"'
    yield f'<svg xmlns="http://www.w3.org/2000/svg" {size}>'
    yield "<title>The formula of an LSTM, and the graph that elman makes of it</title>"
    yield f"<style>.code {{ font: {FONT:.0f}px 'DejaVu Sans Mono', Menlo, Consolas, monospace;"
    yield f"text-anchor: start; white-space: pre; fill: {text}; }} .keyword {{ fill: {keyword}; }}"
    yield f".string {{ fill: {string}; }} .frame {{ stroke: {frame}; }}</style>"
    box = f'x="0.5" y="0.5" width="{width - 1:.1f}" height="{height - 1:.1f}" rx="10"'
    yield f'<rect class="ground frame" {box}/>'
    for row, line in enumerate(code()):
        spelled = "".join(_spans(line))
        yield f'<text class="code" x="{MARGIN}" y="{top + LINE * (row + 0.7):.1f}">{spelled}</text>'
    yield f"{graph}</svg>"


def _spans(line: str) -> Iterator[str]:
    """A line of code with colours."""
    for part in WORDS.split(line):
        kind = "string" if part.startswith('"') else "keyword" if WORDS.fullmatch(part) else ""
        text = xml_text(part)
        yield f'<tspan class="{kind}">{text}</tspan>' if kind else text


def code() -> list[str]:
    """The formula without its imports."""
    text = formula(cells.lstm)
    return text[text.index("@cell") :].splitlines()


def drawing(scheme: str) -> str:
    """The forward graph, with the names of its values."""
    graph = symbols_alone(forward_only(picture_of(cells.lstm, cells.lstm.bind(128, 128))))
    return svg(graph, layout(graph, SYMBOLS_GAP), backward=False, symbols=True, scheme=scheme)


if __name__ == "__main__":
    for name, text in pictures().items():
        (PICTURES / name).write_text(text, encoding="utf-8", newline="\n")

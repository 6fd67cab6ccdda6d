"""What the compiler does to a GRU, stage by stage: a page whose steps one clicks through.

Texts and pictures are made by the code of each stage; the steps are radio buttons that the style
sheet reads, so the page needs no script.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple

from cell_pages import formula  # next to this file

from elman import cells
from elman.compiler import pair_of, training_rules
from elman.drawing import SYMBOLS_GAP, picture_of
from elman.drawing.collapse import symbols_alone
from elman.drawing.layout import layout
from elman.drawing.picture import BEFORE
from elman.drawing.picture import Picture as Graph
from elman.drawing.svg import svg
from elman.engines.c.compilation.isa import SCALAR
from elman.engines.c.text.emit import Emitter
from elman.plan.build import program
from elman.plan.spec import Spec

CELL = cells.gru
SIZES = {"I": 128, "H": 128}
HEAD = """# What the compiler does to a GRU

Six stages, from a formula to C. Each code and each picture is the stage's own output, for {I}
inputs and {H} units.
"""
FOOT = """
`elman.explain(net, x)` prints these stages for your own layer, and `elman.draw(cell, "cell.svg")`
draws its graph with all weights and factors. Read on: [how it works](../how_it_works.md), [the same
stages in the code](../tour.md).
"""


class Stage(NamedTuple):
    """One step of the page.

    Attributes:
        name: of its button.
        text: one sentence (Markdown).
        shown: what stands below it (Markdown).
    """

    name: str
    text: str
    shown: str


def stages_page() -> dict[str, str]:
    """The page and its pictures by file name."""
    made = drawings()
    return {
        "stages.md": "\n".join(_page(stages(made))),
        **{f"stages/{name}.svg": drawing for name, drawing in made.items()},
    }


def stages(made: Mapping[str, str]) -> list[Stage]:
    """All stages in their order."""
    graph = picture_of(CELL, SIZES)
    marks = graph.marks.values()
    kept = _listed(mark.name for mark in marks if mark.taped)
    hoisted = _listed(mark.name for mark in marks if mark.zone == BEFORE and mark.name)
    texts = {
        "Formula": "You write one time step for one sample; nothing else in elman knows what a GRU "
        "is.",
        "Graph": "elman calls the function once, without data, and records its operations: a shape "
        "is an operation, an arrow is a value, and `@` is a product with one gate's rows of a "
        "matrix.",
        "Backward": "Each operation has a derivative rule, so the backward step is the graph in a "
        "mirror: cotangents enter on the right and leave on the left.",
        "Hoisting": f"The shaded operations do not read the state: {hoisted} are one "
        "product for all time steps before the loop, and their backward is one product after it.",
        "Tape": "The backward reads the values with a red outline; a minimum cut decides that "
        f"{kept} (filled) are saved on the tape; {_listed(_recomputed(graph))} is computed again.",
        "C": "What is left in the loop becomes one function in C: each line is an operation of the "
        "graph for a vector of units, and the last lines store the tape and the next state.",
    }
    shown = {
        "Formula": _code("python", "\n".join(_formula())),
        **{name: _image(name, file) for name, file in zip([*texts][1:5], made, strict=True)},
        "C": _code("c", c_text()),
    }
    return [Stage(name, text, shown[name]) for name, text in texts.items()]


def _listed(names: Iterable[str]) -> str:
    *first, last = (f"`{name}`" for name in names)
    return f"{', '.join(first)} and {last}" if first else last


def _recomputed(graph: Graph) -> Iterator[str]:
    """The values that the backward reads and the tape lacks, each as a term of its operand."""
    for line in graph.lines:
        mark = graph.marks[line.head]
        if mark.needed and not mark.taped:
            yield mark.label.replace("·", graph.marks[line.tail].name)


def _formula() -> list[str]:
    text = formula(CELL)
    return text[text.index("@cell") :].splitlines()


def drawings() -> dict[str, str]:
    """The graph at each stage (SVG): every shape keeps its place."""
    whole = symbols_alone(picture_of(CELL, SIZES))
    placed = layout(whole, SYMBOLS_GAP)
    bare = Graph(
        whole.title,
        "",
        {
            key: replace(mark, needed=False, taped=False, reads=False)
            for key, mark in whole.marks.items()
        },
        whole.lines,
    )
    alone = replace(placed, bands={})
    return {
        "graph": svg(bare, alone, backward=False, symbols=True),
        "backward": svg(bare, alone, symbols=True),
        "loop": svg(bare, placed, symbols=True),
        "tape": svg(whole, placed, symbols=True),
    }


def c_text() -> str:
    """The pointwise lines of the forward step."""
    pair = pair_of(CELL, training_rules(CELL))
    sizes = tuple(sorted(SIZES.items()))
    text = Emitter(program(pair, Spec(sizes, wants=CELL.differentiated)), SCALAR).text()
    step = text[text.index("fwd_step_0") :]
    lines = step[step.index("const V x0") :].splitlines()
    stores = [at for at, line in enumerate(lines) if re.match(r"\s*st\(nx0", line)]
    return "\n".join(line.strip() for line in lines[: stores[0] + 1])


def _code(language: str, text: str) -> str:
    return f"```{{code-block}} {language}\n:class: formula\n\n{text}\n```\n"


def _image(name: str, file: str) -> str:
    return (
        f"```{{image}} stages/{file}.svg\n:alt: {name}: the graph of {CELL.name}\n"
        ":class: drawing\n```\n"
    )


def _page(steps: list[Stage]) -> Iterator[str]:
    yield HEAD.format(**SIZES)
    inputs = "".join(
        f'<input type="radio" name="stage" id="stage-{number}" aria-label="{step.name}"'
        f"{' checked' * (number == 1)}>"
        for number, step in enumerate(steps, 1)
    )
    tabs = "".join(_label(number, step.name) for number, step in enumerate(steps, 1))
    yield _raw(f'<div class="stages">{inputs}<div class="tabs">{tabs}</div><div class="panels">')
    for number, step in enumerate(steps, 1):
        back = _label(number - 1, "← Previous") if number > 1 else "<span></span>"
        on = _label(number + 1, "Next →") if number < len(steps) else "<span></span>"
        yield _raw(f'<div class="panel"><div class="turn">{back}{on}</div>')
        yield f"**{number}. {step.name}.** {step.text}\n\n{step.shown}"
        yield _raw("</div>")
    yield _raw("</div></div>")
    yield FOOT


def _label(number: int, text: str) -> str:
    return f'<label for="stage-{number}">{text}</label>'


def _raw(text: str) -> str:
    return f"```{{raw}} html\n{text}\n```\n"

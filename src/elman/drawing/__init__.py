"""The differentiable graph of a cell: forward above, backward below, what is kept filled."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from elman import compiler
from elman.checks import check_path, check_size
from elman.checks import shown as repeated
from elman.drawing.layout import columns, dot_text, layout
from elman.drawing.picture import Picture, picture
from elman.drawing.svg import svg
from elman.drawing.table import table
from elman.errors import InputError
from elman.frontend.cell import Cell
from elman.passes.names import step_names
from elman.plan.build import program
from elman.plan.printer import program_names
from elman.plan.spec import USUAL, PlanOptions, Spec


@dataclass(frozen=True)
class Drawing:
    """A finished picture; a notebook shows it.

    Attributes:
        svg: the picture.
        dot: its forward half in graphviz' language.
        path: where it was written, if it was.
    """

    svg: str = field(repr=False)
    dot: str = field(repr=False)
    path: Path | None = None

    def _repr_svg_(self) -> str:
        return self.svg


def draw(
    what: Any,
    path: str | Path | None = None,
    *,
    input_size: int | None = None,
    hidden_size: int = 128,
    plan: PlanOptions | None = None,
    layer: int = 0,
    **dims: int,
) -> Drawing:
    """Draw the differentiable graph: forward above, backward below.

    Each shape of the forward has its mirror in the backward, where the cotangent goes the other way
    and is multiplied by what stands there. Outlined in red: activations that the backward reads;
    filled: those that the tape keeps for it. Inputs and states are there anyway, others are
    computed again. Shaded: what leaves the time loop.

    Args:
        what: a cell, or a module of elman's.
        path: where to write it: ``.svg``, or ``.dot`` or ``.gv`` for graphviz' language.
        input_size, hidden_size: of a cell; they decide what is taped and what is hoisted.
        plan: how much is kept (``tape``), and what is left out; None: the module's.
        layer: which of a module's layers, from 0 on.
        dims: sizes of a cell's other dims.

    Raises:
        InputError: nothing that can be drawn, no such layer, or a file of another kind.

    Example:
        >>> picture = elman.draw(elman.cells.gru, "gru.svg")
    """
    check_size("layer", layer, 0)
    cell, sizes, own = _subject(what, input_size, hidden_size, dims, layer)
    target = _target(path, ".svg", ".dot", ".gv")
    made = _picture(cell, sizes, own if plan is None else plan.compiled)
    found = Drawing(svg(made, layout(made)), dot_text(made, columns(made)), target)
    if target is not None:
        target.write_text(found.svg if target.suffix == ".svg" else found.dot, encoding="utf-8")
    return found


def draw_ops(path: str | Path | None = None) -> Drawing:
    """Draw the table of basic operations: what each does, and what its backward does.

    Forward at the top, up and to the right; backward below, down and to the left, with the formula
    of each cotangent. Red: activations that the backward reads.

    Args:
        path: where to write it, ``.svg``.

    Raises:
        InputError: a file of another kind.
    """
    target = _target(path, ".svg")
    found = Drawing(table(), "", target)
    if target is not None:
        target.write_text(found.svg, encoding="utf-8")
    return found


def _target(path: str | Path | None, *suffixes: str) -> Path | None:
    """Where to write. Raises InputError for a suffix that is none of these."""
    target = None if path is None else check_path("path", path, '"graph.svg"')
    if target is not None and target.suffix not in suffixes:
        kinds = " or ".join(filter(None, (", ".join(suffixes[:-1]), suffixes[-1])))
        raise InputError(
            f"draw writes {kinds}, not {target.suffix or 'a file without a suffix'}",
            f"{target.stem or 'graph'}.svg",
            path=target,
        )
    return target


def _subject(
    what: Any, input_size: int | None, hidden_size: int, dims: dict[str, int], layer: int
) -> tuple[Cell, dict[str, int], PlanOptions]:
    """The cell, its sizes and its plan; a module has all in its ``runners``."""
    if isinstance(what, Cell):
        inputs = hidden_size if input_size is None else input_size
        return what, what.bind(inputs, hidden_size, **dims), USUAL
    runners = getattr(what, "runners", None)
    if isinstance(runners, dict) and runners:
        shown = runners.get(f"l{layer}")
        if shown is None:
            raise InputError(f"the module has no layer {layer}", has=", ".join(runners))
        return shown.cell, dict(shown.dims), shown.options
    raise InputError(
        f"draw takes a cell or a module of elman's, not {type(what).__name__}",
        'elman.draw(elman.cells.gru, "gru.svg")',
        value=repeated(what),
    )


def _picture(cell: Cell, sizes: dict[str, int], options: PlanOptions = USUAL) -> Picture:
    rules = compiler.training_rules(cell)
    pair = compiler.pair_of(cell, rules)
    wants = cell.differentiated
    of = program(pair, Spec(tuple(sorted(sizes.items())), wants=wants, options=options))
    hints = step_names(compiler.graph_of(cell, rules), pair.step, cell.output_names)
    names = program_names(of, hints)
    about = cell.__doc__.partition("\n")[0].replace("``", "")
    shown = ", ".join(f"{name} = {size}" for name, size in sorted(sizes.items()))
    return picture(cell.name, f"{about}  ({shown})" if about else shown, of, names)

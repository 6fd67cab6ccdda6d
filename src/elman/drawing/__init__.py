"""The differentiable graph of a cell: forward above, backward below, saved values filled."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from elman import compiler
from elman.checks import check_flag, check_path, check_size
from elman.checks import shown as repeated
from elman.drawing.collapse import (
    collapse_norms,
    forward_only,
    parameters_as_nodes,
    symbols_alone,
)
from elman.drawing.layout import GAP_X, layout
from elman.drawing.picture import Picture, picture
from elman.drawing.svg import svg
from elman.errors import InputError
from elman.frontend.cell import Cell
from elman.passes.names import step_names
from elman.plan.build import program
from elman.plan.printer import program_names
from elman.plan.spec import USUAL, PlanOptions, Spec, check_plan

COMPACT_GAP = 26.0  # between the columns of a compact picture (points)
SYMBOLS_GAP = 16.0  # of one of symbols alone


@dataclass(frozen=True)
class Drawing:
    """A finished picture; a notebook shows it.

    Attributes:
        svg: the picture.
        path: where it was written, if it was.
    """

    svg: str = field(repr=False)
    path: Path | None = None

    def _repr_svg_(self) -> str:
        return self.svg


def draw(
    subject: Any,
    path: str | Path | None = None,
    *,
    input_size: int | None = None,
    hidden_size: int = 128,
    plan: PlanOptions | None = None,
    layer: int = 0,
    compact: bool = False,
    collapse: bool = True,
    parameters: bool = False,
    symbols: bool = False,
    **dims: int,
) -> Drawing:
    """Draw the differentiable graph: forward above, backward below.

    Each shape of the forward has its mirror in the backward, where the cotangent flows the other
    way and is multiplied by the factor inside. A red outline marks an activation that the backward
    reads. A filled shape is saved for it; inputs and states need no saving, and all others are
    recomputed. The shaded part is hoisted out of the time loop. The picture shrinks with its column
    and follows a dark colour scheme.

    Args:
        subject: a cell, or a module of elman's.
        path: the ``.svg`` file to write.
        input_size, hidden_size: of a cell; they decide what is saved and what is hoisted.
        plan: how much is saved (``tape``), and which optimizations are off; None: the module's.
        layer: the index of the module's layer, from 0.
        compact: draw the forward alone, with columns close together.
        collapse: draw each layer norm as one shape, not as its mean, variance and quotient.
        parameters: draw each parameter as a shape, not as text at those that read it.
        symbols: draw shapes with their symbols and names alone, large and close together: no
            heading, no weights, no factors of the backward.
        dims: sizes of a cell's other dims.

    Raises:
        InputError: ``what`` cannot be drawn, ``plan`` is not a plan, there is no such layer, or the
            file has another ending.

    Example:
        >>> picture = elman.draw(elman.cells.gru, "gru.svg")
    """
    check_size("layer", layer, 0)
    cell, sizes, module_plan = _subject(subject, input_size, hidden_size, dims, layer)
    target = _target(path)
    check_flag("compact", compact)
    check_flag("collapse", collapse)
    check_flag("parameters", parameters)
    check_flag("symbols", symbols)
    picture = picture_of(cell, sizes, module_plan if plan is None else check_plan(plan).compiled)
    picture = collapse_norms(picture) if collapse else picture
    picture = parameters_as_nodes(picture) if parameters else picture
    picture = symbols_alone(picture) if symbols else picture
    picture = forward_only(picture) if compact else picture
    positions = layout(picture, SYMBOLS_GAP if symbols else COMPACT_GAP if compact else GAP_X)
    drawing = Drawing(svg(picture, positions, not compact, symbols), target)
    if target is not None:
        target.write_text(drawing.svg, encoding="utf-8")
    return drawing


def _target(path: str | Path | None) -> Path | None:
    """The file to write. Raises InputError: its suffix is not .svg."""
    target = None if path is None else check_path("path", path, '"graph.svg"')
    if target is not None and target.suffix != ".svg":
        raise InputError(
            f"draw writes .svg, not {target.suffix or 'a file without a suffix'}",
            f"{target.stem or 'graph'}.svg",
            path=target,
        )
    return target


def _subject(
    subject: Any, input_size: int | None, hidden_size: int, dims: dict[str, int], layer: int
) -> tuple[Cell, dict[str, int], PlanOptions]:
    """The cell, its sizes and its plan; a module has all in its ``runners``."""
    if isinstance(subject, Cell):
        inputs = hidden_size if input_size is None else input_size
        return subject, subject.bind(inputs, hidden_size, **dims), USUAL
    runners = getattr(subject, "runners", None)
    if isinstance(runners, dict) and runners:
        runner = runners.get(f"l{layer}")
        if runner is None:
            raise InputError(f"the module has no layer {layer}", has=", ".join(runners))
        return runner.cell, dict(runner.dims), runner.options
    raise InputError(
        f"draw takes a cell or a module of elman's, not {type(subject).__name__}",
        'elman.draw(elman.cells.gru, "gru.svg")',
        value=repeated(subject),
    )


def picture_of(cell: Cell, sizes: dict[str, int], options: PlanOptions = USUAL) -> Picture:
    """Shapes and lines of a cell at the sizes of its dims, before anything has a place."""
    rules = compiler.training_rules(cell)
    pair = compiler.pair_of(cell, rules)
    wants = cell.differentiated
    of = program(pair, Spec(tuple(sorted(sizes.items())), wants=wants, options=options))
    hints = step_names(compiler.graph_of(cell, rules), pair.step, cell.output_names)
    names = program_names(of, hints)
    about = cell.__doc__.partition("\n")[0].replace("``", "")
    size_text = ", ".join(f"{name} = {size}" for name, size in sorted(sizes.items()))
    return picture(cell.name, f"{about}  ({size_text})" if about else size_text, of, names)

"""A page for each cell of the library, and their index by family."""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from cell_uses import USES

import elman
from benchmarks.pictures import rows_of, times
from benchmarks.suites.cells import B, H, T, times_as_fast
from elman import cells
from elman.autodiff.structure import structure
from elman.compiler import pair_of
from elman.frontend.cell import Cell
from elman.frontend.signature import Declared
from elman.ir.types import Shape, dim_size, names_in, shape_size, show_dim

FAMILIES = {
    "Gated cells": (*cells.DENSE, *cells.GATED, *cells.RANDOM),
    "Diagonal recurrences": (*cells.DIAGONAL, *cells.MEANS),
    "Linear recurrences": (*cells.LINEAR, cells.s4d, *cells.FILTERS),
    "Static inputs, memories, chunks": (cells.ealstm, cells.lmu, cells.onlstm_chunked),
    "Spiking neurons": cells.SPIKING,
    "Differential equations and oscillators": cells.OSCILLATING,
    "Irregular times": cells.TIMED,
    "Matrix states that are added to": (*cells.ADDITIVE, cells.mlstm),
    "Matrix states that are corrected": cells.CORRECTING,
    "Other cells with matrices": cells.NONLINEAR,
}
ABOUT = {
    "Gated cells": "Recurrent matrices connect all units, as in torch's own layers.",
    "Diagonal recurrences": "Each unit depends only on its own past: no product with a matrix.",
    "Linear recurrences": 'All time steps are one associative scan (`engine="deer"`).',
    "Static inputs, memories, chunks": "These cells have further dims, set by keyword.",
    "Spiking neurons": "Outputs are 0 or 1; gradients are surrogates ([Spikes](../spikes.md)).",
    "Differential equations and oscillators": "Discretised equations with long memory.",
    "Irregular times": "Time is an input ([Missing data](../missing_data.md)).",
    "Matrix states that are added to": "Products of keys and values are summed up and decay "
    "([Matrix states](../matrix_states.md)).",
    "Other cells with matrices": "A nonlinear recurrence of a matrix, a window over past states, "
    "synapses with an activation of their own, a redistribution of mass "
    "([Matrix states](../matrix_states.md)).",
    "Matrix states that are corrected": "What a key stands for is replaced: the delta rule and its "
    "kin ([Matrix states](../matrix_states.md)).",
}
ARXIV, DOI = re.compile(r"arXiv:([\w.\-/]*\d(?:v\d+)?)"), re.compile(r"doi:(10\.[^\s;,]+)")
YEAR = re.compile(r"\b(?:19|20)\d\d\b")
SOURCE = re.compile(r"^    source=(?:\(\n.*?^    \)|[^\n]*),\n", re.MULTILINE | re.DOTALL)
FULL, MOST = 56.0, 15.0  # length of the longest bar (px), and its speed-up


def cell_pages() -> dict[str, str]:
    """Texts and drawings by file name."""
    made = {f"cells/{cell.name}.md": page(cell) for cell in cells.ALL}
    made |= {f"cells/{cell.name}.svg": drawing(cell) for cell in cells.ALL}
    made |= {f"cells/{cell.name}-forward.svg": drawing(cell, True) for cell in cells.ALL}
    return {"gallery.md": index(), **made}


def drawing(cell: Cell, small: bool = False) -> str:
    """The differentiable graph (SVG), or symbols of its forward; 128 of each dim."""
    dims: dict[str, Any] = sizes(cell)
    return elman.draw(cell, compact=small, symbols=small, **dims).svg


def index() -> str:
    """All cells by family: what each is, its paper, its speed."""
    lines = [
        "# Cells\n",
        "The cells of `elman.cells`. Run one by `elman.Recurrent(cell, input_size, hidden_size)`",
        "with all options of a layer. Your own formula is as fast: [write one](../cells.md).\n",
        "*Speed-up*: of a training step compared with the Python loop that one writes for the cell",
        f"in torch, on two cores of a CPU with T = {T} steps, B = {B} samples, H = {H} units",
        "(`python -m benchmarks cells`; [Results](../results.md)).\n",
    ]
    for family, members in FAMILIES.items():
        lines += [f"## {family}\n", f"{ABOUT[family]}\n"]
        lines += ["{.cells}", *map(_card, members), ""]
    names = "\n".join(f"cells/{cell.name}" for members in FAMILIES.values() for cell in members)
    return "\n".join([*lines, f"```{{toctree}}\n:hidden:\n\n{names}\n```\n"])


def _card(cell: Cell) -> str:
    """An item of a list: the graph, the name, the year, the speed-up."""
    year = YEAR.search(cell.source)
    speedup = times_as_fast(rows_of("cells"), cell)
    bar = ""
    if speedup is not None:
        width = FULL * min(speedup / MOST, 1.0)
        bar = f'<i class="bar" style="width: {width:.0f}px"></i>{times(speedup)}'
    picture = f"![Graph of {cell.name}](cells/{cell.name}-forward.svg){{.thumbnail}}"
    facts = " · ".join(filter(None, (year[0] if year else "", bar)))
    page = f"cells/{cell.name}.md"
    return f"- [{picture}]({page})\n\n  [`{cell.name}`]({page}) {facts}<br>{title(cell)}\n"


def title(cell: Cell) -> str:
    """The name in words: the first line of its file."""
    return (sys.modules[cell.function.__module__].__doc__ or "").partition("\n")[0].rstrip(".")


def page(cell: Cell) -> str:
    """One cell: what it is, how it is called, its formula, its graph."""
    return "\n".join(_sections(cell))


def _sections(cell: Cell) -> Iterator[str]:
    yield f"# {cell.name}\n"
    yield f"**{title(cell)}.**\n"
    yield f"Source: {linked(cell.source)}.\n" if cell.source else ""
    yield f"**When to use.** {USES[cell.name]}\n"
    yield _image(f"{cell.name}-forward", f"The forward graph of {cell.name}", "drawing forward")
    yield "One time step. The shaded part runs once for all time steps, before the loop. A red"
    yield "outline marks a value that the backward reads; a filled shape is saved for it.\n"
    yield "## Use\n"
    yield f"```python\n{use(cell)}```\n"
    yield from _facts(cell)
    yield "## Formula\n"
    yield f"{explanation(cell)}\n"
    yield _formula_block(cell)
    yield "## Forward and backward\n"
    yield "With weights, their gradients and the factors of cotangents. Click for full size.\n"
    yield _image(cell.name, f"The graph of {cell.name}, forward and backward", "drawing whole")


def formula_and_graph(cell: Cell) -> str:
    """The formula and the graph of a cell, to be included by a page of the upper folder."""
    graph = f"_built/cells/{cell.name}-forward.svg"
    image = f"```{{image}} {graph}\n:alt: The graph of {cell.name}\n:class: drawing\n```\n"
    return f"````{{container}} abreast\n{_formula_block(cell)}\n{image}````\n"


def _formula_block(cell: Cell) -> str:
    return f"```{{code-block}} python\n:class: formula\n\n{formula(cell)}\n```\n"


def _image(name: str, text: str, classes: str) -> str:
    target = f"../../_images/{name}.svg"
    return f"```{{image}} {name}.svg\n:alt: {text}\n:target: {target}\n:class: {classes}\n```\n"


def formula(cell: Cell) -> str:
    """The cell's file with public names, without docstrings and the source, which its page has."""
    text = inspect.getsource(sys.modules[cell.function.__module__])
    dropped: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.Module, ast.FunctionDef)) and ast.get_docstring(node) is not None:
            first = node.body[0]
            dropped.update(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    code = "\n".join(line for k, line in enumerate(text.splitlines(), 1) if k not in dropped)
    # as users write it
    code = code.replace("from elman.frontend.cell import cell\n", "from elman import cell\n")
    return SOURCE.sub("", code).strip()


def explanation(cell: Cell) -> str:
    """The docstring without its errors, references as code."""
    text = (inspect.getdoc(cell) or "").partition("\nRaises:")[0].strip()
    return re.sub(r":\w+:(`[^`]+`)", r"\1", text)


def linked(source: str) -> str:
    """A source whose arXiv numbers and DOIs are links."""
    source = ARXIV.sub(r"[arXiv:\1](https://arxiv.org/abs/\1)", source)
    return DOI.sub(r"[doi:\1](https://doi.org/\1)", source)


def _facts(cell: Cell) -> Iterator[str]:
    """A table of dims, states, options, recurrence and speed."""
    speedup = times_as_fast(rows_of("cells"), cell)
    step = pair_of(cell).source
    names = tuple(f"{leaf.data[0]}" for leaf in step.states)
    options = ", ".join(f"`{name}={_default(value)}`" for name, value in cell.defaults.items())
    rows = {
        "inputs per step": _listed(cell.inputs),
        "inputs per sequence": _listed(cell.static),
        "states": _listed(cell.states),
        "outputs": _listed(cell.outputs) or f"`{cell.states[0]}`, the first state",
        "parameters": _listed(w for w in cell.weights if w.name not in cell.constants),
        "constants": _listed(w for w in cell.weights if w.name in cell.constants),
        "options": options,
        "recurrence": structure(step).show(names),
        "training step": ""
        if speedup is None
        else f"{times(speedup)} as fast as its Python loop (T = {T}, B = {B}, H = {H}, two cores)",
    }
    yield "| | |"
    yield "|---|---|"
    yield from (f"| {name} | {text} |" for name, text in rows.items() if text)
    yield ""


def _default(value: object) -> str:
    return getattr(value, "__name__", None) or repr(value)


def _listed(entries: Iterable[Declared]) -> str:
    return ", ".join(f"`{entry}`" for entry in entries)


def use(cell: Cell) -> str:
    """Code that builds a layer of the cell and calls it."""
    dims = dict.fromkeys(_further_dims(cell), 32)
    arguments = {name: str(size) for name, size in dims.items()}
    dims |= dict.fromkeys(names_in(_usual_dims(cell)), 64) | {"H": 128}
    arguments |= {
        entry.name: f"torch.zeros({', '.join(map(str, shape_size(entry.shape, dims)))})"
        for entry in cell.weights
        if entry.name in cell.constants and entry.name not in cell.init
    }
    width, hidden = (dim_size(dim, dims) for dim in _usual_dims(cell))
    named = "".join(f", {name}={value}" for name, value in arguments.items())
    inputs = [_tensor(entry, dims, "T", "B") for entry in cell.inputs]
    static = [_tensor(entry, dims, "B") for entry in cell.static]
    call = _given(cell.inputs) + (f", static={_given(cell.static)}" if cell.static else "")
    lines = [
        *("import elman", "import torch", ""),
        f"net = elman.Recurrent(elman.cells.{cell.name}, {width}, {hidden}{named})",
        *inputs,
        *static,
        f"out, state = net({call})",
    ]
    return "\n".join(lines) + "\n"


def _given(entries: tuple[Declared, ...]) -> str:
    """One argument, or a tuple of several."""
    names = ", ".join(entry.name for entry in entries)
    return f"({names})" if len(entries) > 1 else names


def _tensor(entry: Declared, dims: Mapping[str, int], *axes: str) -> str:
    shape = [*((axis,) for axis in axes), *_axes(entry.shape)]
    sizes = shape_size(tuple(shape), {**dims, "T": 100, "B": 16})
    letters = ", ".join(map(show_dim, shape))
    return f"{entry.name} = torch.rand({', '.join(map(str, sizes))})  # [{letters}]"


def _further_dims(cell: Cell) -> list[str]:
    """Dims that are neither the first input's nor the first state's, in their order."""
    declared = (*cell.inputs, *cell.static, *cell.states, *cell.weights)
    names = dict.fromkeys(name for entry in declared for name in sorted(names_in(entry.shape)))
    usual = names_in(_usual_dims(cell))
    return [name for name in names if name not in usual]


def _axes(shape: Shape) -> Shape:
    """The dims of a tensor of this shape: a matrix per sample has two."""
    axes = shape[0][0] if shape else ()
    return ((axes[0],), (axes[1],)) if isinstance(axes, tuple) and axes else shape


def _usual_dims(cell: Cell) -> Shape:
    """The dims of the first input and of the first state, of a matrix the last."""
    return cell.inputs[0].shape[0], _axes(cell.states[0].shape)[-1]


def sizes(cell: Cell) -> dict[str, int]:
    """128 of each dim, however often an input or a state has it."""
    first, state = _usual_dims(cell)
    usual = {"input_size": 128 * len(first), "hidden_size": 128 * len(state)}
    return {**usual, **dict.fromkeys(_further_dims(cell), 128)}

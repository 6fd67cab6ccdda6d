"""Pages of the site that the code writes itself: cells, operations, reference."""

from __future__ import annotations

import inspect
import json
import operator
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import notebooks  # beside this file
import op_table
import tested
from cell_pages import cell_pages, formula_and_graph
from results_page import grid, measured, targets
from stages_page import stages_page

import elman
from elman import errors, ops

GROUPS = {
    "Steps": ("Loop", "scan"),
    "Layers": ("RNN", "GRU", "LSTM", "Recurrent", "Stream", "LinearCrossEntropyLoss", "layers"),
    "Models that you have": (
        *("accelerate", "restore", "install", "uninstall", "Accelerate", "AccelerateTrainer"),
        *("functional", "nn", "weights", "safe_globals"),
    ),
    "Cells": ("cell", "bound_cell", "cells", "ops"),
    "Engines and plans": ("PlanOptions", "using", "tune", "release"),
    "Inspection": ("explain", "draw", "measure"),
    "Parallel in time": ("linear_scan", "deer", "shard_time"),
    "Export and runs": ("export", "load"),
    "Errors": ("errors",),
}
OWN_PAGES = {
    "cells": "The published cells: [an index by family](gallery.md).",
    "ops": "The functions for formulas: [every operation](operations.md).",
}
INTERNAL = "extra_repr, flatten_parameters, compiled, to_json"
CHANGELOG = Path(__file__).parents[1] / "CHANGELOG.md"
TRIED = Path(__file__).parents[1] / "release" / "tried.jsonl"
PUBLIC = {  # names of modules whose other names are on other pages
    "nn": ("report", "choices", "pin", "counters"),
    "errors": [n for n, value in vars(errors).items() if inspect.isclass(value) and "Error" in n],
}


def write(folder: Path) -> None:
    """Write all pages; those that stay the same keep their dates."""
    folder.mkdir(exist_ok=True)
    for name, made in pages().items():
        path, data = folder / name, made.encode() if isinstance(made, str) else made
        path.parent.mkdir(exist_ok=True)
        if not path.exists() or path.read_bytes() != data:
            path.write_bytes(data)


def pages() -> dict[str, str | bytes]:
    """Texts and pictures by file name."""
    return {
        **notebooks.pages(notebooks.NOTEBOOKS),
        **cell_pages(),
        **stages_page(),
        "formula.txt": formula_and_graph(elman.cells.lstm),  # included by index.md
        "operations.md": operations(),
        "reference.md": reference(),
        "changelog.md": changelog(),
        "measured.txt": measured(),  # included by results.md
        "targets.txt": targets(),
        "tested.txt": tested.page(),  # these two by how_we_test.md
        "campaigns.txt": tested.campaigns(),
        "tried.txt": tried(),  # included by compatibility.md
    }


def operations() -> str:
    """The page of operations: what a formula may call, and the backward rule of each operation."""
    parts = [
        "# Every operation\n",
        "A formula may call these functions of `elman.ops`. The picture shows the backward rule",
        "of each operation: the cotangent of its result goes back to its arguments.\n",
        notebooks.drawing(op_table.table()),
        "",
    ]
    for name in sorted(ops.__all__):
        parts += [f"### {name}\n", _directive("autofunction", f"elman.ops.{name}")]
    return "\n".join(parts)


def reference() -> str:
    """The page of the reference: a table of all public names, then each with its parameters."""
    return "\n".join(_reference())


def _reference() -> Iterator[str]:
    yield "# Reference\n"
    yield "The public names of `elman`, one line each; details below."
    yield "[Public API and deprecation](../public_api.md) says what may change.\n"
    for title, names in GROUPS.items():
        yield f"## {title}\n"
        yield "{.names}\n| name | what it does |\n|---|---|"
        yield from (f"| {_link(name)} | {_sentence(name)} |" for name in names)
        yield ""
    yield "## Details\n"
    for name in (name for names in GROUPS.values() for name in names):
        value = getattr(elman, name)
        if inspect.ismodule(value):
            if name in OWN_PAGES:
                continue
            yield f"({_label(name)})=\n### elman.{name}\n"
            for each in PUBLIC.get(name) or value.__all__:
                inner = getattr(value, each)
                parts = (
                    [f"{each}.{n}" for n in inner.__all__] if inspect.ismodule(inner) else [each]
                )
                yield from (_entry(f"{name}.{part}") for part in parts)
        else:
            yield f"({_label(name)})=\n### {name}\n"
            yield _entry(name)


def _link(name: str) -> str:
    return f"`elman.{name}`" if name in OWN_PAGES else f"[`elman.{name}`](#{_label(name)})"


def _label(name: str) -> str:
    """The name of a place on the page; those of two names may not differ in capitals alone."""
    names = [each for group in GROUPS.values() for each in group]
    return f"ref-{'class-' * (name != name.lower() and name.lower() in names)}{name}"


def _sentence(name: str) -> str:
    """The first sentence of a docstring."""
    if name in OWN_PAGES:
        return OWN_PAGES[name]
    text = " ".join((inspect.getdoc(getattr(elman, name)) or "").partition("\n\n")[0].split())
    text = text.partition(". ")[0].rstrip(".:")
    return re.sub(r":\w+:`~?([^`]+)`", r"`\1`", text).replace("``", "`").replace("|", "\\|") + "."


def _entry(name: str) -> str:
    value = operator.attrgetter(name)(elman)
    if not inspect.isclass(value):
        return _directive("autofunction", f"elman.{name}")
    if name in ("RNN", "GRU", "LSTM"):  # their method is inherited
        call = _directive("automethod", f"elman.{name}.forward")
        return f"{_directive('autoclass', f'elman.{name}')}\n{call}"
    return _directive("autoclass", f"elman.{name}", ":members:", f":exclude-members: {INTERNAL}")


def _directive(kind: str, name: str, *options: str) -> str:
    given = options if kind == "autoclass" else ()
    lines = [f".. {kind}:: {name}", *(f"   {option}" for option in given)]
    return "\n".join(["```{eval-rst}", *lines, "```", ""])


def changelog() -> str:
    """CHANGELOG.md, and the pages about versions below it."""
    pages = "```{toctree}\n:hidden:\n\n../public_api\n../compatibility\n```\n"
    text = CHANGELOG.read_text("utf-8").replace("](docs/", "](../")
    return f"{text}\n{pages}"


def tried() -> str:
    """What an installed package was tried with: a line for each environment."""
    headers = ("Python", "torch", "Triton", "compiler", "vectors", "system", "worked", "tried on")
    rows = [json.loads(line) for line in TRIED.read_text("utf-8").splitlines()]
    return "\n".join(grid(headers, map(_tried, rows)))


def _tried(row: Mapping[str, Any]) -> Sequence[str]:
    wrong = [f"{name}: {told}" for name, told in row["checks"].items() if told != "ok"]
    worked = "; ".join(wrong) or f"all {len(row['checks'])}"
    facts = [row[name] for name in ("python", "torch", "triton", "compiler", "isa", "system")]
    return [*facts, worked, row["date"]]

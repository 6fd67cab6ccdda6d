"""Pages of the site that the code writes itself: cells, operations, reference."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import notebooks  # beside this file
from cell_pages import cell_pages

import elman
from benchmarks.cases import Suite
from benchmarks.claims import HEADERS, Rows, judged
from benchmarks.rows import read_rows
from benchmarks.suites import SUITES
from benchmarks.table import filled, machine_line
from elman import ops
from elman.drawing import draw_ops

FIGURE = 24  # characters of a cell that are not broken into lines
TRIED = Path(__file__).parents[1] / "release" / "tried.jsonl"
RESULTS = Path(__file__).parents[1] / "benchmarks" / "results"


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
        "operations.md": operations(),
        "reference.md": reference(),
        "measured.txt": measured(),  # included by results.md
        "tried.txt": tried(),  # included by compatibility.md
    }


def operations() -> str:
    """What a formula may call, and what the backward makes of it."""
    parts = [
        "# Every operation\n",
        "What a cell may call (`elman.ops`), and the rule that its backward follows: each",
        "operation of the forward has its mirror, through which the cotangent goes back.\n",
        notebooks.drawing(draw_ops().svg),
        "",
    ]
    for name in sorted(ops.__all__):
        parts += [f"### {name}\n", _directive("autofunction", f"elman.ops.{name}")]
    return "\n".join(parts)


def reference() -> str:
    """Every public name."""
    parts = ["# Reference\n", "Every public name of `elman`.\n"]
    for name in elman.__all__:
        value = getattr(elman, name)
        if inspect.isclass(value):
            parts += [f"## {name}\n", _directive("autoclass", f"elman.{name}", ":members:")]
        elif callable(value):
            parts += [f"## {name}\n", _directive("autofunction", f"elman.{name}")]
        elif inspect.ismodule(value) and name not in ("cells", "ops"):
            parts.append(f"## elman.{name}\n")
            for each in value.__all__:
                kind = "autoclass" if inspect.isclass(getattr(value, each)) else "autofunction"
                parts.append(_directive(kind, f"elman.{name}.{each}", ":members:"))
    return "\n".join(parts)


def _directive(kind: str, name: str, *options: str) -> str:
    given = options if kind == "autoclass" else ()
    lines = [f".. {kind}:: {name}", *(f"   {option}" for option in given)]
    return "\n".join(["```{eval-rst}", *lines, "```", ""])


def measured() -> str:
    """The committed rows of every suite as tables."""
    return "\n".join(part for suite in SUITES.values() for part in _suite(suite))


def tried() -> str:
    """What an installed package was tried with: a line for each environment."""
    headers = ("Python", "torch", "Triton", "compiler", "vectors", "system", "worked", "tried on")
    rows = [json.loads(line) for line in TRIED.read_text("utf-8").splitlines()]
    return "\n".join(_grid(headers, map(_tried, rows)))


def _tried(row: Mapping[str, Any]) -> Sequence[str]:
    wrong = [f"{name}: {told}" for name, told in row["checks"].items() if told != "ok"]
    worked = "; ".join(wrong) or f"all {len(row['checks'])}"
    facts = [row[name] for name in ("python", "torch", "triton", "compiler", "isa", "system")]
    return [*facts, worked, row["date"]]


def _suite(suite: Suite) -> Iterator[str]:
    """Its rows, what was measured of them on which machine, and what is missing."""
    rows = read_rows(RESULTS / f"{suite.name}.jsonl")
    present = [rows[case.name] for case in suite.cases if case.name in rows]
    missing = [case.name for case in suite.cases if case.name not in rows]
    yield f"### {suite.name}\n"
    yield f"{suite.question} (`python -m benchmarks {suite.name}`)\n"
    if not present:
        yield "Not measured: no rows are kept.\n"
        return
    headers, lines = filled([row for row in present if "peak_gflops" not in row])
    yield from _grid(headers, lines)
    if suite.claims:
        yield f"What it is measured by: {suite.source}.\n"
        yield from _grid(HEADERS, judged(suite.claims, Rows(present)))
    if missing:
        yield f"Not measured: {', '.join(missing)}.\n"
    yield from (f"{line}.\n" for line in dict.fromkeys(map(machine_line, present)))


def _grid(headers: Sequence[str], lines: Iterable[Sequence[str]]) -> Iterator[str]:
    """A table, in which a bar stands for itself and figures stay on one line."""
    yield f"| {' | '.join(headers)} |"
    yield "|---" * len(headers) + "|"
    for line in lines:
        yield f"| {' | '.join(map(_figure, line))} |"
    yield ""


def _figure(text: str) -> str:
    text = text.replace("|", "\\|")
    return f'<span class="figure">{text}</span>' if len(text) <= FIGURE else text

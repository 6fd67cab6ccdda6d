"""Notebooks run from top to bottom, and are pages of the site with what they print and plot."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from helpers import need_engine
from scripts import module_of

DOCS = Path(__file__).parents[1] / "docs"
NOTEBOOKS = sorted((DOCS / "notebook").glob("*.ipynb"))
by_name = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def cells(path: Path) -> list[dict]:
    """Those with code."""
    return [c for c in json.loads(path.read_text("utf-8"))["cells"] if c["cell_type"] == "code"]


def kinds(cell: dict) -> list[list[str]]:
    """What sort of outputs a cell has, in their order."""
    return [sorted(output.get("data", [output["output_type"]])) for output in cell["outputs"]]


@by_name
def test_outputs_are_kept(path):
    """Run in their order; no error, no warning, and pictures of every kind, none of them large."""
    found = cells(path)
    assert [cell["execution_count"] for cell in found] == list(range(1, len(found) + 1))
    outputs = [output for cell in found for output in cell["outputs"]]
    assert not [o for o in outputs if o["output_type"] == "error" or o.get("name") == "stderr"]
    shown = {kind for output in outputs for kind in output.get("data", [])}
    assert {"image/png", "image/svg+xml"} <= shown
    plots = [o["data"]["image/png"] for o in outputs if "image/png" in o.get("data", {})]
    assert max(len(base64.b64decode(plot)) for plot in plots) < 60_000


@pytest.mark.long  # most of its code is that of pages, which tests/test_site.py runs
@by_name
def test_runs(path, tmp_path):
    """In an empty kernel; each cell shows what the kept outputs show, by kind."""
    need_engine("c")
    pytest.importorskip("nbclient", reason="nbclient is not installed (make venv)")
    pytest.importorskip("ipykernel", reason="ipykernel is not installed (make venv)")
    target, searched = tmp_path / path.name, os.pathsep.join(filter(None, sys.path))
    made = subprocess.run(
        [sys.executable, str(DOCS / "notebooks.py"), str(path), str(target)],
        env={**os.environ, "PYTHONPATH": searched, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert made.returncode == 0, made.stderr[-3000:]
    assert list(map(kinds, cells(target))) == list(map(kinds, cells(path)))


def test_pages(tmp_path):
    """Text, code, prints and pictures, in their order."""
    notebooks = module_of(DOCS / "notebooks.py")
    text = {"output_type": "stream", "name": "stdout", "text": ["3\n", "4\n"]}
    value = {"output_type": "execute_result", "data": {"text/plain": ["5"]}}
    plot = {"data": {"image/png": "aGk=", "text/plain": ["<Figure>"]}}
    drawn = {"data": {"image/svg+xml": ["<?xml?>", "<svg/>"], "text/plain": ["Drawing()"]}}
    found = [
        {"cell_type": "markdown", "source": ["# A\n", "b"]},
        {"cell_type": "code", "source": ["c"], "outputs": [text, value, plot, drawn]},
    ]
    (tmp_path / "one.ipynb").write_text(json.dumps({"cells": found}))
    made = notebooks.pages(tmp_path)
    page = made.pop("one.md")
    ((picture, data),) = made.items()
    assert data == b"hi"
    start = "```{code-block} text\n:class: output\n\n"
    parts = ["# A\nb", "```python\nc\n```", f"{start}3\n4\n```", f"{start}5\n```"]
    parts += [f"![plot]({picture})", '<div class="drawing"><svg/></div>']
    parts += [f"`one.ipynb <../{tmp_path.name}/one.ipynb>`"]  # the file itself, to be run
    assert [page.count(part) for part in parts] == [1] * len(parts)
    assert sorted(parts, key=page.index) == parts

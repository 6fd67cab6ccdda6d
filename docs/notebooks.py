"""Notebooks of the documentation: run anew with their outputs, and as pages of the site.

    python docs/notebooks.py            runs docs/notebook/*.ipynb and keeps their outputs
    python docs/notebooks.py IN OUT     runs one, and writes it elsewhere

A page is made of the outputs that are kept, so the site needs neither Jupyter nor the time.
"""

from __future__ import annotations

import base64
import hashlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

NOTEBOOKS = Path(__file__).parent / "notebook"
PATIENCE = 600  # (s) for one cell
Cell = dict[str, Any]


def main() -> None:
    """Run all, or one to another place."""
    if len(sys.argv) == 3:
        run(Path(sys.argv[1]), Path(sys.argv[2]))
        return
    for path in sorted(NOTEBOOKS.glob("*.ipynb")):
        run(path, path)


def run(source: Path, target: Path) -> None:
    """Run a notebook from its first cell in an empty kernel; its outputs replace the old ones.

    Raises:
        nbclient.exceptions.CellExecutionError: a cell fails.
    """
    import nbformat
    from nbclient import NotebookClient

    notebook: Any = nbformat.read(source, as_version=4)
    where = {"metadata": {"path": str(source.parent)}}
    NotebookClient(
        notebook, timeout=PATIENCE, resources=where, record_timing=False, coalesce_streams=True
    ).execute()
    notebook.metadata = {"kernelspec": {"name": "python3", "display_name": "Python 3"}}
    notebook.metadata["language_info"] = {"name": "python"}
    for number, cell in enumerate(notebook.cells):
        cell.id = f"cell{number}"  # as long as nothing moves, no difference in the repository
    nbformat.write(notebook, target)


def pages(folder: Path) -> dict[str, str | bytes]:
    """A page, and its pictures, for each notebook of a folder, by file name."""
    made: dict[str, str | bytes] = {}
    for path in sorted(folder.glob("*.ipynb")):
        parts: list[str] = []
        for cell in json.loads(path.read_text("utf-8"))["cells"]:
            parts += _shown(cell, made)
        parts.append(
            f"{{download}}`{path.name} <../{folder.name}/{path.name}>`: this page, to be run."
        )
        made[f"{path.stem}.md"] = "\n\n".join(parts) + "\n"
    return made


def _shown(cell: Cell, pictures: dict[str, str | bytes]) -> Iterator[str]:
    """A cell as Markdown; pictures that it shows are added to the others."""
    source = "".join(cell["source"])
    if cell["cell_type"] == "markdown":
        yield source
        return
    yield f"```python\n{source}\n```"
    for output in cell["outputs"]:
        yield _output(output, pictures)


def _output(output: Cell, pictures: dict[str, str | bytes]) -> str:
    """What a cell printed or showed: the richest form that a page can have."""
    data = output.get("data", {})
    if "image/svg+xml" in data:
        return drawing("".join(data["image/svg+xml"]))
    if "image/png" in data:
        image = base64.b64decode("".join(data["image/png"]))
        name = f"{hashlib.sha256(image).hexdigest()[:12]}.png"
        pictures[name] = image
        return f"![plot]({name})"
    text = "".join(output["text"] if "text" in output else data["text/plain"])
    return f"```{{code-block}} text\n:class: output\n\n{text.rstrip()}\n```"


def drawing(svg: str) -> str:
    """A picture in its own scrolling frame."""
    return f'```{{raw}} html\n<div class="drawing">{svg[svg.index("<svg") :]}</div>\n```'


if __name__ == "__main__":
    main()

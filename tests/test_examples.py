"""Examples run, and say what their first lines promise."""

from __future__ import annotations

import re
import runpy
import sys
from pathlib import Path
from textwrap import dedent

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"


def test_neural_ode(monkeypatch, capsys):
    """A path learned by Newton's iteration on all steps and by a loop: the same losses, falling."""
    words = ["neural_ode.py", "--samples", "50", "--paths", "2", "--steps", "4"]
    monkeypatch.setattr(sys, "argv", words)
    runpy.run_path(str(EXAMPLES / "neural_ode.py"), run_name="__main__")
    told = capsys.readouterr().out
    ends = re.findall(r"loss ([\d.]+) -> ([\d.]+)", told)
    assert len(ends) == 2
    assert all(float(after) < float(before) for before, after in ends)
    apart = re.search(r"the same within (\S+)", told)
    assert apart
    assert float(apart[1]) < 1e-3


PROJECTS = [path for path in sorted((EXAMPLES / "projects").glob("*.py")) if path.stem != "compare"]


@pytest.mark.parametrize("path", PROJECTS, ids=lambda path: path.stem)
def test_projects(path, monkeypatch, capsys):
    """A project's model and the same on elman agree in float64, and both are timed."""
    words = [path.name, "--steps", "7", "--batch", "3", "--units", "8"]
    monkeypatch.setattr(sys, "argv", words)
    monkeypatch.syspath_prepend(str(path.parent))
    runpy.run_path(str(path), run_name="__main__")
    told = capsys.readouterr().out
    agreed = re.search(r"the output and (\d+) gradients agree within (\S+) in float64", told)
    assert agreed
    assert int(agreed[1]) >= 4
    assert float(agreed[2]) < 1e-10
    assert re.search(r"ms in a loop, [\d.]+ ms on elman, [\d.]+x", told)


def test_the_page_on_projects_shows_the_examples():
    """What it prints of a model before and after are lines of the scripts, and all scripts."""
    page = (EXAMPLES.parent / "docs" / "projects.md").read_text("utf-8")
    texts = {path.stem: path.read_text("utf-8").splitlines() for path in PROJECTS}
    blocks = re.findall(r"```python\n(.*?)\n```", page, re.DOTALL)
    assert len(blocks) > 2 * len(texts)
    for lines in (part.splitlines() for block in blocks for part in re.split(r"\n{2,}", block)):
        windows = (
            text[first : first + len(lines)]
            for text in texts.values()
            for first in range(len(text))
        )
        assert any(dedent("\n".join(window)).splitlines() == lines for window in windows), lines
    assert all(f"{name}.py`" in page for name in texts)

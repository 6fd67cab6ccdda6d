"""robustness/random_matrix_cells.py: a tiny run to its end, what it tells."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

import pytest

from helpers import need_engine
from scripts import begin, finished

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "robustness" / "random_matrix_cells.py"


@pytest.mark.slow
def test_a_tiny_run() -> None:
    """A kernel, a module with random numbers, second derivatives and exported C agree."""
    need_engine("c")
    output = finished(begin(str(SCRIPT), "--seeds", "0:3"))
    assert output.endswith("done: 3 cells of seeds 0:3, 0 failed\n"), output


def test_what_is_wrong_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the cell's text, its sizes, and what failed."""
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    script = import_module("random_matrix_cells")
    monkeypatch.delitem(sys.modules, "random_matrix_cells")

    def fail(drawn: object, draw: object) -> None:
        raise AssertionError("dS: RMS error 1")

    monkeypatch.setattr(script, "kernel_agrees", fail)
    cell, wrong = script.checked(4)
    assert "def drawn(" in cell
    assert wrong == "kernel: AssertionError: dS: RMS error 1"

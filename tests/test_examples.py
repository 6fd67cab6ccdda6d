"""Examples run, and say what their first lines promise."""

from __future__ import annotations

import re
import runpy
import sys
from pathlib import Path

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

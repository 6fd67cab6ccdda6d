"""The script that compares the gated delta rule with loops and chunks in torch."""

from __future__ import annotations

from benchmarks.scripts import matrices
from helpers import need_engine


def test_quick(capsys):
    """One tiny case, to its printed end: all three agree before they are timed."""
    need_engine("c")
    matrices.main(["--quick"])
    _, row = capsys.readouterr().out.splitlines()
    assert row.startswith("96     1  2      16")
    assert " of the loop, " in row

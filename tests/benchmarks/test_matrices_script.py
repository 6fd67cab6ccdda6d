"""The script that compares the gated delta rule with loops and chunks in torch."""

from __future__ import annotations

from benchmarks.rows import read_rows
from benchmarks.scripts import matrices
from helpers import need_engine


def test_quick(capsys, tmp_path):
    """One tiny case, to its printed end: all three agree before they are timed."""
    need_engine("c")
    matrices.main(["--quick", "--out", str(tmp_path / "rows.jsonl")])
    _, row = capsys.readouterr().out.splitlines()
    assert row.startswith("96     1  2      16")
    assert " of the loop, " in row
    (case,) = read_rows(tmp_path / "rows.jsonl").values()
    assert case["seconds"].keys() == {"elman", "loop", "chunks"}

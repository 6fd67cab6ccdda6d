"""The script that compares single and merged steps of a cell with a matrix per sample."""

from __future__ import annotations

import math

from benchmarks.rows import read_rows
from benchmarks.scripts import merged_steps
from helpers import need_engine


def test_two_sizes(tmp_path):
    """Tiny ones, to the last row: times of both schedules, and one of them chosen."""
    need_engine("c")
    out = tmp_path / "rows.jsonl"
    sizes = ["--sizes", "4,5", "--steps", "9", "--batch", "2", "--seconds", "0.01"]
    merged_steps.main([*sizes, "--out", str(out)])
    rows = read_rows(out)
    assert rows.keys() == {"gated_delta_net 4, 9", "gated_delta_net 5, 9"}
    for row in rows.values():
        assert any("4-steps" in schedule for schedule in row["seconds"])
        assert row["chosen"] in row["seconds"]
        assert row["off"] >= 0
        assert math.isclose(
            row["seconds"][row["chosen"]], (1 + row["off"]) * min(row["seconds"].values())
        )

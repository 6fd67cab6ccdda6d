"""The script that cuts sequences in time over processes."""

from __future__ import annotations

import pytest

from benchmarks.rows import read_rows
from benchmarks.scripts import time_shards


@pytest.mark.slow
def test_to_the_end(capsys, tmp_path, monkeypatch):
    """Two processes compute what one does; a row for each case."""
    monkeypatch.setattr(time_shards, "CASES", {"gru, 2 units": ("gru", 2)})
    out = tmp_path / "rows.jsonl"
    time_shards.main(["--steps", "90", "--processes", "1,2", "--out", str(out)])
    rows = read_rows(out)
    assert [*rows] == [f"{case}, {n} processes" for case in time_shards.CASES for n in (1, 2)]
    assert all(row["off"] < 1e-4 for row in rows.values())
    assert len(capsys.readouterr().out.splitlines()) == len(rows)

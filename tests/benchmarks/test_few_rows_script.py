"""The script that times linear layers of few rows, in tiny."""

from __future__ import annotations

import json

from benchmarks.rows import read_rows
from benchmarks.scripts import few_rows
from helpers import need_engine


def test_to_the_end(monkeypatch, capsys, tmp_path):
    """A line and a row of each size, with all types of weights."""
    need_engine("c")
    monkeypatch.setattr(few_rows, "SIZES", ((5, 7),))
    monkeypatch.setattr(few_rows, "MEMORY", 0)
    out = tmp_path / "rows.jsonl"
    few_rows.main(["--out", str(out), "--seconds", "0", "--threads", "1"])
    (line,) = capsys.readouterr().out.splitlines()
    assert {*json.loads(line)["times as fast as torch"]["16"]} == {"int8", "bf16", "float32"}
    (row,) = read_rows(out).values()
    assert {*row["seconds"]["1"]} == {"torch", "int8", "bf16", "float32"}

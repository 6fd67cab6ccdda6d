"""The script that averages weights of several processes every so many steps."""

from __future__ import annotations

import pytest

from benchmarks import studied
from benchmarks.rows import read_rows
from benchmarks.scripts import averages
from helpers import need_engine


@pytest.mark.slow
def test_to_the_end(capsys, tmp_path, monkeypatch):
    """Two processes, gradients and weights averaged: rows, the page's table; measured once."""
    need_engine("c")
    text, out = tmp_path / "text.txt", tmp_path / "rows.jsonl"
    text.write_text("".join(f"line {k % 7} of {k % 5}\n" for k in range(900)))
    words = ["--data", str(text), "--out", str(out), "--every", "1,3", "--seeds", "1"]
    words += ["--steps", "6", "--hidden", "8"]
    averages.main(words)
    rows, before = read_rows(out), out.read_text()
    assert [*rows] == ["every 1", "every 3"]
    assert rows["every 1"]["bits"] != rows["every 3"]["bits"]
    assert all(0 < row["step_s"][0] < row["bits"][0] < 20 for row in rows.values())
    averages.main(words)
    assert out.read_text() == before
    assert capsys.readouterr().out.count("bits") == 4
    monkeypatch.setattr(studied, "script_rows", lambda name: rows)
    head, _, *lines = studied.averages().splitlines()
    assert "bits per character" in head
    assert [line.split(" | ")[0] for line in lines] == ["| 1 (gradients)", "| 3"]

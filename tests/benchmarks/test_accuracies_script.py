"""The script that trains small classifiers from several seeds."""

from __future__ import annotations

import sys

import pytest

from benchmarks.rows import read_rows
from benchmarks.scripts import accuracies


@pytest.mark.slow
def test_a_command_has_its_row(tmp_path, monkeypatch):
    """Two steps on two classes: the score of each seed, and that of the baseline."""
    folder = tmp_path / "ucr-worms"
    folder.mkdir()
    for part in ("TRAIN", "TEST"):
        lines = [
            f"{k % 2}\t" + "\t".join(str((k % 2) + t / 10) for t in range(20)) for k in range(8)
        ]
        (folder / f"Worms_{part}.tsv").write_text("\n".join(lines))
    out = tmp_path / "rows.jsonl"
    words = ["--data", str(tmp_path), "--out", str(out), "--only", "worms", "--steps", "2"]
    monkeypatch.setattr(accuracies, "SEEDS", (0,))
    monkeypatch.setattr(sys, "argv", ["accuracies", *words])
    accuracies.main()
    row = read_rows(out)["worms"]
    assert row["baseline"] == 0.5
    assert all(0 <= score <= 1 for score in row["scores"])
    before = out.read_text()
    accuracies.main()
    assert out.read_text() == before

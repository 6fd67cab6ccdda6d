"""The script that trains small classifiers from several seeds."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from benchmarks.rows import read_rows
from benchmarks.scripts import accuracies
from scripts import begin, finished


@pytest.mark.slow
def test_a_command_has_its_row(tmp_path, monkeypatch, capsys):
    """Two steps on two classes: the score of each seed, and that of the baseline; of each cell."""
    folder = tmp_path / "ucr-worms"
    folder.mkdir()
    for part in ("TRAIN", "TEST"):
        lines = [
            f"{k % 2}\t" + "\t".join(str((k % 2) + t / 10) for t in range(20)) for k in range(8)
        ]
        (folder / f"Worms_{part}.tsv").write_text("\n".join(lines))
    out = tmp_path / "rows.jsonl"
    words = ["--data", str(tmp_path), "--out", str(out), "--only", "worms", "--steps", "2"]
    words += ["--cells", "lru,mingru"]
    monkeypatch.setattr(accuracies, "SEEDS", (0,))
    forked = SimpleNamespace(run=lambda command, **options: finished(begin(*command[1:])))
    monkeypatch.setattr(accuracies, "subprocess", forked)
    monkeypatch.setattr(sys, "argv", ["accuracies", *words])
    accuracies.main()
    rows = read_rows(out)
    assert [*rows] == ["worms lru", "worms mingru"]
    for row in rows.values():
        assert row["baseline"] == 0.5
        assert all(0 <= score <= 1 for score in row["scores"])
        assert row["command"].endswith(f"--cell {row['case'].split()[1]}")
    assert capsys.readouterr().out.count("(baseline 50.0%)") == 2
    before = out.read_text()
    accuracies.main()
    assert out.read_text() == before

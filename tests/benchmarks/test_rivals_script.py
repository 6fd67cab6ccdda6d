"""The comparison of classifiers, each with the best of the same settings."""

from __future__ import annotations

import pytest

from benchmarks.rows import read_rows
from benchmarks.scripts import rivals
from benchmarks.scripts.rivals import SPACE, settings
from waves import write_waves


def test_all_cells_try_the_same_settings():
    """Drawn once, none twice, the first ones whatever the number of trials."""
    drawn = settings(12)
    assert drawn[:5] == settings(5)
    assert all(drawn.count(trial) == 1 for trial in drawn)
    for name, values in SPACE.items():
        assert {trial[name] for trial in drawn} == {*values}


@pytest.mark.slow
def test_to_its_end(tmp_path, capsys):
    """Two cells on two classes of waves: rows with every trial and both scores of each seed; what
    has a row is not trained again."""
    write_waves(tmp_path / "fsdd")
    out = tmp_path / "rows.jsonl"
    words = ["--data", str(tmp_path), "--out", str(out), "--tasks", "digits", "--cells", "gru,lru"]
    words += ["--trials", "2", "--steps", "4"]
    rivals.main(words)
    rows = read_rows(out)
    assert list(rows) == ["digits gru", "digits lru"]
    for row in rows.values():
        tried = [trial["score"] for trial in row["tried"]]
        assert len(tried) == 2
        best = row["tried"][tried.index(max(tried))]
        assert row["best"] | {"score": max(tried)} == best
        assert len(row["valid"]) == len(row["test"]) == 3
        assert all(0 <= score <= 1 for score in row["valid"] + row["test"])
    capsys.readouterr()
    rivals.main(words)
    assert capsys.readouterr().out.count("held out") == 2
    assert len(out.read_text().splitlines()) == 2
    with pytest.raises(SystemExit):
        rivals.main([*words, "--tasks", "tea"])

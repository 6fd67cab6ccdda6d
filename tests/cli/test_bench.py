"""`elman bench`, as a user types it."""

from __future__ import annotations

import pytest

from elman.measuring.process import MeasureRequest


def test_a_cell_beside_its_loop(elman, monkeypatch, tmp_path):
    """Sizes by option or by name; the measurement's own text, and no file."""
    asked = []

    def measured(given):
        asked.append(given)
        return "12 times as fast"

    monkeypatch.setattr("elman.cli.bench.measure_in_process", measured)
    monkeypatch.chdir(tmp_path)
    code, said, _ = elman("bench", "ealstm", "--dim=H=32,I=8", "--dim", "S=3", "--steps=7")
    assert (code, said) == (0, "12 times as fast\n")
    assert asked == [MeasureRequest("ealstm", 8, 32, {"H": 32, "I": 8, "S": 3}, steps=7)]
    words = ("--hidden=5", "--no-training", "--engine=c", "--threads=1", "--seconds=3")
    assert elman("bench", "gru", *words)[0] == 0
    rest = {"training": False, "engine": "c", "threads": 1, "seconds": 3.0}
    assert asked[1] == MeasureRequest("gru", 5, 5, {}, **rest)
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize(
    "words, status, said",
    [
        (("lsmt",), 1, "lstm, or my_file.py:my_cell for a cell of your own"),
        (("gru", "--seconds=-1"), 2, "--seconds"),
        (("gru", "--steps=0"), 2, "--steps"),
        (("gru", "--quick"), 2, "No such option: --quick"),
        ((), 2, "Missing argument"),
    ],
)
def test_wrong_calls(elman, words, status, said):
    """A cell that there is not, and numbers that are none."""
    code, _, err = elman("bench", *words)
    assert code == status
    assert said in " ".join(err.replace("│", " ").split())

"""``elman tune``: a table per shape, reasons for refusals, remembered for other processes."""

from __future__ import annotations

import pytest

from elman.cli.app import main


def run(words: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """Exit status and output of a command line."""
    with pytest.raises(SystemExit) as ended:
        main(words)
    out = capsys.readouterr()
    return int(ended.value.code or 0), out.out + out.err


def test_a_table_per_shape(capsys, empty_cache):
    """Candidates by time, the winner marked, the second time remembered."""
    words = ["tune", "gru", "--hidden", "9", "--shape", "5,2", "--shape", "9,2"]
    status, told = run(words, capsys)
    assert status == 0
    assert "gru T=5 B=2: measured now" in told
    assert "gru T=9 B=2: measured now" in told
    assert told.count("runs") == 2
    assert "1.00x" in told
    assert "measured earlier" in run(words, capsys)[1]
    assert "measured now" in run([*words, "--again"], capsys)[1]


def test_refusals_have_reasons(capsys, empty_cache):
    """A cell that torch does not have."""
    status, told = run(["tune", "mgu", "--hidden", "9", "--shape", "5,2"], capsys)
    assert status == 0
    assert "mgu is not the formula of torch's RNN, GRU or LSTM" in told


@pytest.mark.parametrize("shape", ["5", "5,x", "0,2", "5,2,1"])
def test_a_wrong_shape_is_told(shape, capsys):
    """With the form it should have."""
    status, told = run(["tune", "gru", "--shape", shape], capsys)
    assert status == 2
    assert "is not of the form 100,16" in told

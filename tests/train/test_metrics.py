"""metrics.csv: what is appended is read back; what is cut is left out."""

from __future__ import annotations

import math

import pytest

from elman.errors import RunError
from elman.train.loop.metrics import COLUMNS, MetricsFile, Row, read_metrics


def made(step: int) -> Row:
    """Make a row whose numbers need all their digits."""
    score = (step / 3, step / 7) if step % 2 else (None, None)
    return Row(step, step * 10, 1 / 3, 0.1 + 0.2, 1e-3 / 7, *score, 7.0, 1.5, 0)


def test_round_trip(tmp_path):
    """Rows come back exactly, on disk and in the copy for checkpoints."""
    file = MetricsFile(tmp_path / "metrics.csv")
    rows = [made(step) for step in range(5)]
    for row in rows:
        assert file.append(row) is None

    assert read_metrics(file.path) == rows
    assert file.path.read_text() == file.text


@pytest.mark.parametrize("cut", range(1, 60, 7))
def test_cut_line_is_left_out(tmp_path, cut):
    """A file cut anywhere in its last line has all rows but that."""
    file = MetricsFile(tmp_path / "metrics.csv")
    for step in range(4):
        file.append(made(step))
    file.path.write_text(file.text[:-cut])

    assert read_metrics(file.path) == [made(step) for step in range(3)]


def test_a_missing_file_has_no_rows(tmp_path):
    """A run that has just begun."""
    assert read_metrics(tmp_path / "metrics.csv") == []


HEAD = ",".join(COLUMNS).encode() + b"\n"
GOOD = b"1,10,1.5,0.5,1e-3,,,7.0,1.5,0\n"


@pytest.mark.parametrize(
    "content, reason",
    [
        (b"", "it is empty"),
        (b"step,it", "it is empty"),
        (b"\xff\x00 nonsense\n", "it is not text: invalid start byte at offset 0"),
        (b"\0\0\0\n", "there is no column step"),
        (HEAD.replace(b"train_loss,", b""), "there is no column train_loss"),
        (HEAD + GOOD + GOOD[2:], "line 3: 9 values in 10 columns"),
        (HEAD + GOOD.replace(b"0.5", b"half"), "line 2: expected a number, got 'half'"),
        (HEAD + GOOD.replace(b"1,10", b"1.5,10"), "step: expected an integer, got 1.5"),
        (HEAD + GOOD.replace(b"1,10", b"-1,10"), r"line 2: step: -1 is not in \[0, 9.0072e\+15\]"),
        (HEAD + GOOD.replace(b"1.5,0.5", b",0.5"), "train_loss: expected a number, got None"),
        (HEAD + GOOD.replace(b"7.0,1.5", b"7.0,0.0"), "line 2: train_seconds: 0.0 is not in"),
        (HEAD + GOOD.replace(b"7.0,1.5", b"7.0,nan"), "train_seconds: nan is not in"),
        (HEAD + GOOD.replace(b"1,10", b"1,1" + b"0" * 200_000), "line 2: field larger than"),
        (HEAD + GOOD.replace(b"1,10", b"1,1" + b"0" * 5000), "line 2: items: "),
    ],
)
def test_damaged_files(tmp_path, content, reason):
    """Told in one line, with the line's number."""
    path = tmp_path / "metrics.csv"
    path.write_bytes(content)
    with pytest.raises(RunError, match=reason):
        read_metrics(path)


def test_infinite_losses(tmp_path):
    """A loss that is not finite is no damage."""
    path = tmp_path / "metrics.csv"
    path.write_bytes(HEAD + GOOD.replace(b",,,7", b",inf,0.5,7"))
    assert read_metrics(path)[0].valid_loss == math.inf


def test_failed_write_is_made_good(tmp_path):
    """Rows that the disk refused are there after the next one that it takes."""
    folder = tmp_path / "run"
    file = MetricsFile(folder / "metrics.csv")
    assert isinstance(file.append(made(0)), OSError)
    folder.mkdir()
    assert file.append(made(1)) is None

    assert read_metrics(file.path) == [made(0), made(1)]

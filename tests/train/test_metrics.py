"""metrics.csv: what is appended is read back; what is cut is left out."""

from __future__ import annotations

import pytest

from elman.train.metrics import MetricsFile, Row, read_metrics


def made(step: int) -> Row:
    """Make a row whose numbers need all their digits."""
    score = (step / 3, step / 7) if step % 2 else (None, None)
    return Row(step, step * 10, 1 / 3, 0.1 + 0.2, 1e-3 / 7, *score, 7.0, 1.5)


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


def test_nonsense_and_missing_files(tmp_path):
    """What is no metrics file has no rows."""
    path = tmp_path / "metrics.csv"
    assert read_metrics(path) == []
    path.write_bytes(b"\xff\x00 nonsense\n\n1,2\n")
    assert read_metrics(path) == []


def test_failed_write_is_made_good(tmp_path):
    """Rows that the disk refused are there after the next one that it takes."""
    folder = tmp_path / "run"
    file = MetricsFile(folder / "metrics.csv")
    assert isinstance(file.append(made(0)), OSError)
    folder.mkdir()
    assert file.append(made(1)) is None

    assert read_metrics(file.path) == [made(0), made(1)]

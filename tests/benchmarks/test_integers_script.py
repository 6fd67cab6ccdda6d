"""Integers measured: accuracy, training steps and exported C, in tiny."""

from __future__ import annotations

import shutil

import pytest

from benchmarks.rows import read_rows
from benchmarks.scripts import integers
from exported_c import CC
from waves import write_waves

TOOLS = ("arm-none-eabi-gcc", "arm-none-eabi-size", "qemu-system-arm")


@pytest.mark.slow
@pytest.mark.skipif(CC is None, reason="no C compiler")
def test_to_its_end(tmp_path, capsys, monkeypatch):
    """One cell on two classes of waves: a row for each case; what has a row is not run again."""
    monkeypatch.setattr(integers, "STREAMS", (24,))
    monkeypatch.setattr(integers, "SIZES", ((24, 2, 5),))
    write_waves(tmp_path / "fsdd")
    out = tmp_path / "rows.jsonl"
    words = ["--data", str(tmp_path), "--out", str(out), "--cells", "gru", "--steps", "3"]
    words += ["--seconds", "0.01"]
    integers.main(words)
    rows = read_rows(out)
    assert list(rows) == ["digits gru", "step gru 24", "c gru 24"]
    scores = rows["digits gru"]["scores"]
    assert {len(of_seeds) for of_seeds in scores.values()} == {3}
    assert all(0 <= score <= 1 for of_seeds in scores.values() for score in of_seeds)
    assert min(rows["step gru 24"]["seconds"].values()) > 0
    sizes = rows["c gru 24"]["sizes"]
    assert 0 < sizes["int8"]["code"] < sizes["float32"]["code"]
    assert 0 < sizes["int8"]["memory"] < sizes["float32"]["memory"]
    capsys.readouterr()
    integers.main(words)
    assert len(out.read_text().splitlines()) == 3
    for wrong in (["--parts", "tea"], ["--parts", "accuracy", "--out", str(out)]):
        with pytest.raises(SystemExit):
            integers.main(["--out", str(out), *wrong])


@pytest.mark.slow
@pytest.mark.skipif(None in map(shutil.which, TOOLS), reason="no compiler or emulator for ARM")
def test_emulated_core(tmp_path, monkeypatch):
    """Bytes and instructions of both; the same again."""
    monkeypatch.setattr(integers, "STREAMS", (8,))
    for name in ("a", "b"):
        out = tmp_path / f"{name}.jsonl"
        integers.main(["--out", str(out), "--cells", "mingru", "--parts", "cortex"])
    row = read_rows(out)["cortex mingru 8"]["cortex-m4"]
    assert row == read_rows(tmp_path / "a.jsonl")["cortex mingru 8"]["cortex-m4"]
    for values in row.values():
        assert min(values.values()) > 0

"""`elman bench`, as a user types it."""

from __future__ import annotations

import pytest

from elman.bench import running
from elman.bench.results import read_rows

MACHINE = {
    "cpu": "a",
    "cores": 2,
    "threads": 2,
    "torch": "2",
    "compiler": "cc",
    "kernel_isa": "scalar",
    "blas": "none",
}


@pytest.fixture
def fail(monkeypatch):
    """Every case but the peak fails."""

    def measure(case, effort, cache):
        told = {"peak_gflops": {"2": 7.0}} if case.measure == "peak" else {"failed": "cannot"}
        return {**told, "machine": MACHINE}

    monkeypatch.setattr(running, "_measured", measure)


def test_table_and_rows(elman, tmp_path, fail):
    """The chosen case is measured, its row is in the file and in the table."""
    out = tmp_path / "rows.jsonl"
    code, said, _ = elman("bench", "--quick", f"--out={out}", "--rows=peak")
    assert code == 0
    assert list(read_rows(out)) == ["peak"]
    for word in ("[1/1] peak", "GFLOP/s", "7 on 2", "2 threads, scalar", str(out)):
        assert word in said
    code, said, _ = elman("bench", "--quick", f"--out={out}", "--rows=peak")
    assert code == 0
    assert "in the file already" in said


def test_failures_are_told(elman, tmp_path, fail):
    """A case that fails says why, the others go on, and the exit code is 1."""
    out = tmp_path / "rows.jsonl"
    code, said, _ = elman("bench", f"--out={out}", "--rows=lstm*")
    assert code == 1
    assert "lstm_peephole 100,4,128: cannot" in said
    assert len(read_rows(out)) == 3


def test_wrong_calls(elman, tmp_path):
    """An unknown suite, an unknown case, no time: told, and nothing written."""
    out = tmp_path / "rows.jsonl"
    for words, text in (
        (["fly"], "no suite 'fly'"),
        (["--rows=fly"], "has no case 'fly'"),
        (["--seconds=0"], "must be positive"),
    ):
        code, _, err = elman("bench", f"--out={out}", *words)
        assert code == 1
        assert text in err
    assert not out.exists()

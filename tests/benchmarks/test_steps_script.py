"""``benchmarks.steps.measure``: a case in tiny, to its printed end, and the page of its row."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.steps import calls

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_a_case_is_measured(tmp_path):
    rows, page = tmp_path / "rows.jsonl", tmp_path / "page.md"
    words = [
        "--cases",
        "torch_rnncell",
        "--sizes",
        "2x2x3",
        "--engine",
        "reference",
        "--threads",
        "1",
    ]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.steps.measure", *words]
        + ["--out", str(rows), "--table", str(page)],
        cwd=ROOT, capture_output=True, text=True, timeout=150, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "torch_rnncell" in done.stdout
    assert len(rows.read_text().splitlines()) == 1
    assert "torch.nn.RNNCell" in page.read_text()


@pytest.mark.slow
def test_calls_are_measured(monkeypatch, capsys):
    monkeypatch.setattr(calls, "ROUNDS", 1)
    monkeypatch.setattr(calls, "CALLS", 2)
    calls.main()
    said = capsys.readouterr().out
    assert "Recurrent" in said
    assert "first call of GRUCell" in said

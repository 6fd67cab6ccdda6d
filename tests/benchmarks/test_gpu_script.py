"""benchmarks/gpu.py where there is no GPU: tiny cases in the interpreter; what is there is kept."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")

from benchmarks import gpu


def dry(out: Path, *options: str) -> str:
    words = [sys.executable, gpu.__file__, "--dry", "--out", str(out), *options]
    process = subprocess.run(words, capture_output=True, text=True, check=True, timeout=300)
    return process.stdout


@pytest.mark.interpreted
def test_dry_run(tmp_path: Path) -> None:
    """Rows are checked, timed, written and shown; a second run measures what is missing."""
    out = tmp_path / "rows.jsonl"
    output = dry(out, "--only", "*gru dry")
    (row,) = [json.loads(line) for line in out.read_text().splitlines()]
    assert "failed" not in row, row
    assert row["elman"]
    assert row["torch"]
    assert row["machine"]["gpu"].startswith("none")
    assert "layer gru dry" in output
    assert "layer gru dry" in out.with_suffix(".md").read_text()
    dry(out, "--only", "*gru dry")
    assert len(out.read_text().splitlines()) == 1


def test_what_is_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a GPU it says so; with one the tests marked gpu come first, and where one fails, or
    none ran, it ends there."""
    words: list[str] = []

    def ran(command: list[str], **options: object) -> subprocess.CompletedProcess[str]:
        words.extend(command)
        return subprocess.CompletedProcess(command, 1)

    monkeypatch.setattr(gpu.subprocess, "run", ran)
    monkeypatch.setattr(gpu, "Worker", None)
    monkeypatch.setattr(sys, "argv", ["gpu.py"])
    for present, text in ((False, "no GPU"), (True, "pytest -m gpu ended with status 1")):
        monkeypatch.setattr("torch.cuda.is_available", lambda present=present: present)
        with pytest.raises(SystemExit, match=text):
            gpu.main()
    assert words[1:6] == ["-m", "pytest", "-q", "-m", "gpu and not long"]
    assert words[-4:-2] == ["-p", "no:benchmark"]  # it warns under xdist, and warnings are errors


def test_cases() -> None:
    """Every part of the question has cases, each under a name of its own, the first of all kinds
    at once."""
    cases = gpu.cases()
    names = [case.name for case in cases]
    assert len(set(names)) == len(names)
    kinds = {case.kind for case in cases}
    assert kinds == {case.kind for case in gpu.first()} | {"deepbench", "ladder"}
    assert set(gpu.COMPILED) <= set(names)
    for case in cases:
        assert case.kind in gpu.KINDS or gpu.job_of(case, "cpu").spec.dims

"""benchmarks/gpu.py where there is no GPU: tiny cases in the interpreter; what is there is kept."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "gpu.py"
pytest.importorskip("triton")


def dry(out: Path, *more: str) -> str:
    words = [sys.executable, str(SCRIPT), "--dry", "--out", str(out), *more]
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


def test_needs_a_gpu() -> None:
    """Without one, and without --dry, it says so."""
    process = subprocess.run(
        [sys.executable, str(SCRIPT)], capture_output=True, text=True, check=False
    )
    assert process.returncode
    assert "no GPU" in process.stderr


@pytest.fixture
def script() -> Any:
    """The script as a module."""
    spec = importlib.util.spec_from_file_location("gpu_script", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    sys.modules["gpu_script"] = script
    spec.loader.exec_module(script)
    return script


def test_wrong_kernels_are_not_timed(script: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests marked gpu come first; where one fails, or none ran, it ends there."""
    words: list[str] = []

    def ran(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        words.extend(command)
        return subprocess.CompletedProcess(command, 1)

    monkeypatch.setattr(script.subprocess, "run", ran)
    monkeypatch.setattr(script, "Worker", None)
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr(script, "facts", lambda device: {})
    monkeypatch.setattr(sys, "argv", ["gpu.py"])
    with pytest.raises(
        SystemExit, match=r"nothing was measured: pytest -m gpu ended with status 1"
    ):
        script.main()
    assert words[1:6] == ["-m", "pytest", "-q", "-m", "gpu"]


def test_cases(script: Any) -> None:
    """Every part of the question has cases, each under a name of its own, the first of all kinds
    at once."""
    from benchmarks.gpu_worker import job_of

    cases = list(script.cases())
    names = [case.name for case in cases]
    assert len(set(names)) == len(names)
    kinds = {case.kind for case in cases}
    assert kinds == {case.kind for case in script.first()} | {"deepbench", "ladder"}
    assert set(script.COMPILED) <= set(names)
    for case in cases:
        if case.kind not in ("peaks", "barrier", "decoder", *script.MODULES):
            assert job_of(case, "cpu").spec.dims

"""benchmarks/gpu.py where there is no GPU: tiny cases in the interpreter; what is there is kept."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")

from benchmarks import gpu
from benchmarks.on_gpu import cases, kernels, measuring


def dry(out: Path, *options: str) -> str:
    words = [sys.executable, gpu.__file__, "--dry", "--out", str(out), *options]
    process = subprocess.run(words, capture_output=True, text=True, check=True, timeout=300)
    return process.stdout


@pytest.mark.interpreted
@pytest.mark.parametrize("name", ["step dry", "packed dry", "program dry"])
def test_what_users_run(tmp_path: Path, name: str) -> None:
    """Steps in torch's operations, packed rows and whole programs run on the engine."""
    dry(tmp_path / "rows.jsonl", "--only", name)
    (row,) = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    assert "failed" not in row, row


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


def test_what_is_not_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without a GPU it says so. With one the tests marked gpu come first, those of the newest
    kernels before the others, and end in time; where one fails the rows are measured all the same,
    and the script ends with an error."""
    monkeypatch.setattr(sys, "argv", ["gpu.py", "--out", str(tmp_path / "rows.jsonl")])
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(SystemExit, match="no GPU"):
        gpu.main()
    assert all((gpu.ROOT / "tests" / name).exists() for name in gpu.NEWEST)
    stand_in = tmp_path / "pytest.py"
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(gpu, "ROOT", tmp_path)  # pytest is the stand-in: it precedes the installed
    failures = tmp_path / "failures.txt"
    for body, passed, told in (
        ("import sys; print(*sys.argv, file=sys.stderr)", True, ""),
        ("raise SystemExit(1)", False, "ended with status 1"),
        ("import time; time.sleep(60)", False, "longer than 2 s"),
    ):
        stand_in.write_text(body)
        assert gpu.run_tests(failures, 2.0) is passed
        assert told in capsys.readouterr().out
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr(gpu, "run_tests", lambda failures, seconds: False)
    monkeypatch.setattr(gpu, "facts", lambda device: {"gpu": "g", "torch": "t", "triton": "t"})
    monkeypatch.setattr(gpu, "cases", list)
    monkeypatch.setattr(gpu, "working", lambda task, device: [sys.executable, "-c", ""])
    with pytest.raises(SystemExit, match="not all tests marked gpu passed"):
        gpu.main()
    assert "0 rows" in capsys.readouterr().out


def test_cases() -> None:
    """Every part of the question has cases, each under a name of its own, the first of all kinds
    at once; and a tiny case of each kind that the interpreter can run."""
    found = cases.cases()
    names = [case.name for case in found]
    assert len(set(names)) == len(names)
    kinds = {case.kind for case in found}
    assert kinds == {case.kind for case in cases.first()} | {"deepbench", "ladder"}
    assert set(kernels.COMPILED) <= set(names)
    tiny = {case.kind for case in cases.TINY}
    assert set(measuring.KINDS) <= tiny | {"peaks", "barrier"}
    for case in found:
        assert case.kind in measuring.KINDS or kernels.job_of(case, "cpu").spec.dims

"""``benchmarks.steps``: each script with a case in tiny, to its printed end; pages of the rows."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from benchmarks.machine import facts
from benchmarks.steps import calls, reports
from benchmarks.steps.pages import page
from benchmarks.steps.reported import REPORTS, Sizes

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


@pytest.mark.slow
def test_a_report_is_measured(tmp_path):
    rows, text = tmp_path / "rows.jsonl", tmp_path / "page.md"
    words = ["--cases", "decay", "--contestants", "loop; torch scan; elman.scan; JAX lax.scan"]
    words += ["--sizes", "3x2x4", "--seconds", "0", "--threads", "1", "--out", str(rows)]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.steps.reports", *words],
        cwd=ROOT, capture_output=True, text=True, timeout=150, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "elman.scan" in done.stdout
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.steps.measure", "--from", str(rows)]
        + ["--reports", str(rows), "--table", str(text)],
        cwd=ROOT, capture_output=True, text=True, timeout=150, check=False,
    )  # fmt: skip
    assert "#184529" in text.read_text(), done.stderr


@pytest.mark.parametrize("name", REPORTS)
def test_a_reported_step_runs_in_a_loop(name):
    """In float32 it is what it is in float64, so that contestants can be judged."""
    report, found = REPORTS[name], []
    for dtype in (torch.float64, report.dtype):
        problem = reports.values_of(report, Sizes(3, 2, 4), dtype)
        cotangents = reports.cotangents_of(report, problem)
        loop = reports.InTorch(report, problem, cotangents, *reports.IN_TORCH["loop"])
        found.append(reports.results(loop, report.modes[0]))
    off = reports.differences(found[1], found[0])
    assert off["values"]
    assert report.trained == bool(off.get("gradients"))
    assert not reports.verdict(off, reports.CLOSE[report.dtype])


def test_what_is_wrong_or_refused_has_a_note():
    wrong = {"wrong": "wrong gradients: 2 of 7, up to 2.7 off", "first_s": {"train": 1.0}}
    fine = {"first_s": {"train": 0.5}, "ms": {"train": [1.0, 2.0, 3.0]}}
    row = {
        "case": "one", "source": "torch #1", "says": "", "T": 1, "B": 2, "H": 3,
        "dtype": "float32", "machine": facts(), "commit": "", "jax": "",
        "contestants": {"loop": fine, "inductor": wrong},
    }  # fmt: skip
    lines = page({}, {"one": row}).splitlines()
    assert "| one | torch #1 | 1×2×3, float32 | training, ms | 2 | wrong gradients (1) |" in lines
    assert "1. one, inductor: `wrong gradients: 2 of 7, up to 2.7 off`" in lines


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processes are read from /proc")
def test_compilers_that_are_left_are_killed(tmp_path):
    """Those of this process's children alone; others go on."""
    compiler = tmp_path / "cc1plus"
    shutil.copy(shutil.which("sleep") or "", compiler)
    children = [subprocess.Popen([name, "60"]) for name in (str(compiler), "sleep")]
    try:
        time.sleep(0.2)
        reports.end_compilers()
        assert children[0].wait(10) == -signal.SIGKILL
        assert children[1].poll() is None
    finally:
        for child in children:
            child.kill()
            child.wait()

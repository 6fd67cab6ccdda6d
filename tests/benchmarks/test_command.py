"""`python -m benchmarks`, as a user types it."""

from __future__ import annotations

import pytest

from benchmarks import running
from benchmarks.cases import Case, Suite
from benchmarks.claims import Claim, Verdict
from benchmarks.measures.starting import COLD
from benchmarks.rows import read_rows
from benchmarks.suites import SUITES
from benchmarks.worker import PEAK

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
        output = (
            {"peak_gflops": {"2": 7.0}} if case.measure.name == "peak" else {"failed": "cannot"}
        )
        return {**output, "machine": MACHINE}

    monkeypatch.setattr(running, "_measured", measure)


def test_table_and_rows(benchmarks, tmp_path, fail):
    """The chosen case is measured, its row is in the file and in the table."""
    out = tmp_path / "rows.jsonl"
    code, output, _ = benchmarks("--quick", f"--out={out}", "--rows=peak")
    assert code == 0
    assert list(read_rows(out)) == ["peak"]
    for word in ("[1/1] peak", "GFLOP/s", "7 on 2", "2 threads, scalar", str(out)):
        assert word in output
    code, output, _ = benchmarks("--quick", f"--out={out}", "--rows=peak")
    assert code == 0
    assert "in the file already" in output


def test_every_suite_on_one_page(benchmarks, tmp_path):
    """Of rows that are there: nothing is measured, and claims without rows say so."""
    (tmp_path / "cmu.jsonl").write_text('{"case": "elsewhere"}\n')
    code, output, _ = benchmarks("all", f"--out={tmp_path}", "--report")
    assert code == 0
    assert f"page: {tmp_path / 'report.html'}" in output
    page = (tmp_path / "report.html").read_text()
    for suite in SUITES.values():
        assert f'<h1 id="benchmarks-{suite.name}">' in page
    assert "not measured" in page
    code, _, output = benchmarks("all", "--report")
    assert code == 2
    assert "say where the rows are: --out" in output


def test_failures_are_told(benchmarks, tmp_path, fail):
    """A case that fails says why, the others go on, and the exit code is 1."""
    out = tmp_path / "rows.jsonl"
    code, output, _ = benchmarks(f"--out={out}", "--rows=lstm*")
    assert code == 1
    assert "lstm_peephole 100,4,128: cannot" in output
    assert len(read_rows(out)) == 3


def test_wrong_calls(benchmarks, tmp_path):
    """An unknown suite, an unknown case, no time: told, and nothing written."""
    out = tmp_path / "rows.jsonl"
    for words, text in (
        (["fly"], "no suite 'fly'"),
        (["--rows=fly"], "has no case 'fly'"),
        (["--seconds=0"], "must be positive"),
    ):
        code, _, err = benchmarks(f"--out={out}", *words)
        assert code == 1
        assert text in err
    assert not out.exists()


def test_claims_of_several_rows(benchmarks, fail, tmp_path, monkeypatch):
    """In the terminal and on the page; a bracket is text."""
    never = Claim(
        "2", "memory [GB] falls", "", lambda rows: Verdict(False, "0x", facts="<no> reason")
    )
    never_measured = Claim("3", "b", "", lambda rows: Verdict(True, str(rows["b"])))
    cases, claims = (PEAK, Case("b", COLD)), (never, never_measured)
    suite = Suite("probe", "?", cases, 1.0, "A Report, 2016", claims)
    monkeypatch.setitem(SUITES, "probe", suite)
    rows = tmp_path / "rows.jsonl"
    _, out, _ = benchmarks("probe", f"--out={rows}")
    page = rows.with_suffix(".html").read_text()
    for text in ("A Report, 2016", "memory [GB] falls", "does not hold", "b was not measured"):
        assert text in out
        assert text in page
    assert "<no> reason" in out
    assert "&lt;no&gt; reason" in page


@pytest.mark.parametrize(
    "line",
    [
        '{"case": "peak", "machine": 7}',
        '{"case": "peak", "ratio": {"elman": 1}, "asked": []}',
        '{"case": "peak", "ratio": {"aten": {"q1": 3, "median": 2, "q3": 1}}, "asked": 7}',
        '{"case": "peak", "absent": "x", "plots": [{}]}',
    ],
)
def test_rows_of_another_kind(benchmarks, tmp_path, line):
    """Told with file and case; lines that are no rows are left out."""
    out = tmp_path / "rows.jsonl"
    out.write_text(f"{'[' * 100_000}\n{line}\n")
    code, _, err = benchmarks("--report", f"--out={out}")
    assert code == 1
    assert "a row of the file is not what python -m benchmarks writes" in err
    assert str(out) in err

"""`python -m benchmarks`: rows appended as measured, resumed, judged, shown. One test runs real
processes."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from bench_rows import MACHINE, steady
from benchmarks import running, worker
from benchmarks.cases import Case, Effort, Suite
from benchmarks.claims import Claim, Verdict
from benchmarks.contestants import TRAIN
from benchmarks.measures.starting import COLD
from benchmarks.rows import append_row, read_rows
from benchmarks.running import run_suite
from benchmarks.suites import SUITES
from benchmarks.table import reached, words
from benchmarks.worker import PEAK
from elman.errors import RunError

STEP = Case(
    "gru 3,2,5", TRAIN, "gru", 3, 2, 5, contestants=("torch", "elman"), baseline="torch", ratio=2
)
SUITE = Suite("small", "Does it work?", (PEAK, STEP))
EFFORT = Effort(1e-9, 1, 1)


def fake_row(case: Case) -> dict:
    """What a worker would have measured; of cases that are started, nothing."""
    peaks, machine = MACHINE["peak_gflops"], {k: v for k, v in MACHINE.items() if "peak" not in k}
    if case.measure is PEAK.measure:
        return {"peak_gflops": peaks, "machine": machine}
    if case.measure is COLD:
        return {"failed": "cannot", "machine": machine}
    return {
        "seconds": {"torch": steady(3.0), "elman": steady(1.0)},
        "ratio": {"elman": steady(3.0)},
        "error": {"elman": 1e-6},
        "flop": 6_000_000_000,
        "machine": machine,
    }


@pytest.fixture
def measured(monkeypatch) -> list[str]:
    """Names of the cases that were measured, instead of measuring."""
    names = []

    def measure(case, effort, cache):
        names.append(case.name)
        return fake_row(case)

    monkeypatch.setattr(running, "_measured", measure)
    return names


def rows_of(path, suite=SUITE, effort=EFFORT):
    return [row for _, row, _ in run_suite(suite, suite.cases, effort, path)]


def test_rows_tell_what_they_depend_on(tmp_path, measured):
    """Case, effort, commit, code, time, machine with its peak."""
    path = tmp_path / "new" / "rows.jsonl"
    peak, step = rows_of(path)
    assert list(read_rows(path)) == ["peak", STEP.name]
    assert read_rows(path)[STEP.name] == json.loads(json.dumps(step))
    assert read_rows(path)[STEP.name]["asked"] == json.loads(json.dumps(STEP.to_json()))
    assert {"commit", "code", "when", "suite", "effort"} <= step.keys()
    assert step["machine"] == MACHINE
    assert reached(step) is True
    assert reached(peak) is None


def test_a_run_goes_on(tmp_path, measured, monkeypatch):
    """Cases in the file are kept, and so is the peak that it knows; failed ones, other efforts and
    other code are measured again."""
    path = tmp_path / "rows.jsonl"
    next(run_suite(SUITE, SUITE.cases, EFFORT, path))
    ((_, row, _),) = run_suite(SUITE, (STEP,), EFFORT, path)
    assert row["machine"] == MACHINE
    again = rows_of(path)
    assert measured == ["peak", STEP.name]
    assert [row["case"] for row in again] == measured

    append_row(path, {**again[1], "failed": "no"})
    rows_of(path)
    assert measured[2:] == [STEP.name]

    longer = replace(EFFORT, seconds=1.0)
    rows_of(path, effort=longer)
    assert measured[3:] == ["peak", STEP.name]

    monkeypatch.setattr(running, "code", lambda: {"commit": "b", "code": "other"})
    rows_of(path, effort=longer)
    assert measured[5:] == ["peak", STEP.name]


def test_files_of_rows(tmp_path):
    """A line cut short by a stop counts as not measured and does not spoil the next; a file that is
    not there has no rows, one that is a folder is an error."""
    path = tmp_path / "rows.jsonl"
    assert read_rows(path) == {}
    append_row(path, {"case": "a", "n": 1})
    append_row(path, {"case": "b"})
    append_row(path, {"case": "a", "n": 2})
    path.write_bytes(path.read_bytes() + b'{"case": "c", "n')
    assert read_rows(path) == {"a": {"case": "a", "n": 2}, "b": {"case": "b"}}
    append_row(path, {"case": "d"})
    assert read_rows(path).keys() == {"a", "b", "d"}
    with pytest.raises(RunError, match="results cannot be read"):
        read_rows(tmp_path)
    with pytest.raises(RunError, match="results cannot be written"):
        append_row(tmp_path, {"case": "a"})


@pytest.mark.slow
def test_real_processes(tmp_path):
    """A worker measures a case; one whose contestants are unknown fails in its own row."""
    bad = replace(STEP, name="bad", cell="mgu")
    (good,) = rows_of(tmp_path / "rows.jsonl", replace(SUITE, cases=(STEP,)))
    failed = {"case": bad.name, "asked": bad.to_json()} | worker.measure(bad, EFFORT)
    assert good["seconds"].keys() == {"torch", "elman"}
    assert good["first"].keys() == {"torch", "elman"}
    assert good["machine"]["threads"] == STEP.threads
    assert good["wants"][0] == "x"
    assert "torch.nn has no mgu" in failed["failed"]
    assert reached(failed) is False
    assert words(failed)["elman"] == "failed"


def test_table_and_rows(benchmarks, tmp_path, measured):
    """The chosen case is measured, its row is in the file and in the table."""
    out = tmp_path / "rows.jsonl"
    for text in ("GFLOP/s", "in the file already"):
        code, output, _ = benchmarks("--quick", f"--out={out}", "--rows=peak")
        assert code == 0
        assert list(read_rows(out)) == ["peak"]
        for word in (text, "[1/1] peak", "50 on 1; 100 on 2", "2 threads, avx2", str(out)):
            assert word in output


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


def test_wrong_calls(benchmarks, tmp_path):
    """An unknown suite, an unknown case, no time, no file: told, and nothing written."""
    out = tmp_path / "rows.jsonl"
    for words_of_call, text in (
        (["fly"], "no suite 'fly'"),
        (["--rows=fly"], "has no case 'fly'"),
        (["--seconds=0"], "must be positive"),
    ):
        code, _, err = benchmarks(f"--out={out}", *words_of_call)
        assert code == 1
        assert text in err
    assert not out.exists()
    code, _, err = benchmarks("all", "--report")
    assert (code, "say where the rows are: --out" in err) == (2, True)


def test_failures_and_claims(benchmarks, measured, tmp_path, monkeypatch):
    """A case that fails says why, the others go on, and the exit code is 1; claims of several rows
    stand in the terminal and on the page; a bracket is text."""
    never = Claim(
        "2", "memory [GB] falls", "", lambda rows: Verdict(False, "0x", facts="<no> reason")
    )
    never_measured = Claim("3", "b", "", lambda rows: Verdict(True, str(rows["b"])))
    cases, claims = (Case("b", COLD), PEAK), (never, never_measured)
    suite = Suite("probe", "?", cases, 1.0, "A Report, 2016", claims)
    monkeypatch.setitem(SUITES, "probe", suite)
    path = tmp_path / "rows.jsonl"
    code, out, _ = benchmarks("probe", f"--out={path}")
    assert code == 1
    assert "b: cannot" in out
    assert len(read_rows(path)) == 2
    page = path.with_suffix(".html").read_text()
    for text in ("A Report, 2016", "memory [GB] falls", "does not hold", "b was not measured"):
        assert text in out
        assert text in page
    assert "<no> reason" in out
    assert "&lt;no&gt; reason" in page

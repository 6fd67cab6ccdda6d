"""A suite's run: rows appended as measured, resumed, judged. One test runs real processes."""

from __future__ import annotations

import json
from dataclasses import asdict, replace

import pytest

from benchmarks import running
from benchmarks.cases import Case, Effort, Suite
from benchmarks.contestants import TRAIN
from benchmarks.rows import append_row, read_rows
from benchmarks.running import reached, run_suite
from benchmarks.table import words
from benchmarks.worker import PEAK
from elman.errors import RunError
from elman.measuring.timing import Quartiles

STEP = Case(
    "gru 3,2,5", TRAIN, "gru", 3, 2, 5, contestants=("torch", "elman"), baseline="torch", ratio=2
)
SUITE = Suite("small", "Does it work?", (PEAK, STEP))
EFFORT = Effort(1e-9, 1, 1)


def fake_row(case: Case, ratio: float = 3.0) -> dict:
    """What a worker would have measured."""
    machine = {"cpu": "a", "cores": 2, "threads": 2, "torch": "2", "compiler": "cc"}
    machine |= {"kernel_isa": "scalar", "blas": "none"}
    if case.measure.name == "peak":
        return {"peak_gflops": {"1": 5.0, "2": 10.0}, "machine": machine}
    times = {"torch": asdict(Quartiles(ratio, ratio, ratio, 1)), "elman": asdict(quick())}
    return {
        "seconds": times,
        "ratio": {"elman": times["torch"]},
        "error": {"elman": 1e-6},
        "flop": 6_000_000_000,
        "machine": machine,
    }


def quick() -> Quartiles:
    return Quartiles(1.0, 1.0, 1.0, 1)


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
    """Case, effort, commit, code, time, machine with its peak, and whether the aim is reached."""
    path = tmp_path / "new" / "rows.jsonl"
    peak, step = rows_of(path)
    assert list(read_rows(path)) == ["peak", STEP.name]
    assert read_rows(path)[STEP.name] == json.loads(json.dumps(step))
    assert read_rows(path)[STEP.name]["asked"] == json.loads(json.dumps(STEP.to_json()))
    assert {"commit", "code", "when", "suite", "effort"} <= step.keys()
    assert step["machine"]["peak_gflops"] == peak["peak_gflops"]
    assert step["met"] is True
    assert "met" not in peak


def test_a_run_goes_on(tmp_path, measured, monkeypatch):
    """Cases in the file are kept; failed ones, other efforts and other code are measured again."""
    path = tmp_path / "rows.jsonl"
    rows_of(path)
    again = rows_of(path)
    assert measured == ["peak", STEP.name]
    assert [row["case"] for row in again] == measured

    append_row(path, {**again[1], "failed": "no"})
    rows_of(path)
    assert measured[2:] == [STEP.name]

    rows_of(path, effort=replace(EFFORT, seconds=1.0))
    assert measured[3:] == ["peak", STEP.name]

    monkeypatch.setattr(running, "code", lambda: {"commit": "b", "code": "other"})
    rows_of(path, effort=replace(EFFORT, seconds=1.0))
    assert measured[5:] == ["peak", STEP.name]


def test_peak_of_the_file_is_used(tmp_path, measured):
    """A resumed run that measures one more case knows the peak."""
    path = tmp_path / "rows.jsonl"
    next(run_suite(SUITE, SUITE.cases, EFFORT, path))
    ((_, row, _),) = run_suite(SUITE, (STEP,), EFFORT, path)
    assert row["machine"]["peak_gflops"] == {"1": 5.0, "2": 10.0}


def test_torn_line_is_not_a_row(tmp_path):
    """A line cut short by a stop counts as not measured and does not spoil the next."""
    path = tmp_path / "rows.jsonl"
    append_row(path, {"case": "a", "n": 1})
    append_row(path, {"case": "b"})
    append_row(path, {"case": "a", "n": 2})
    path.write_bytes(path.read_bytes() + b'{"case": "c", "n')
    assert read_rows(path) == {"a": {"case": "a", "n": 2}, "b": {"case": "b"}}
    append_row(path, {"case": "d"})
    assert read_rows(path).keys() == {"a", "b", "d"}


def test_no_file_no_rows(tmp_path):
    """A file that is not there has no rows; one that is a folder is an error."""
    assert read_rows(tmp_path / "none") == {}
    with pytest.raises(RunError, match="results cannot be read"):
        read_rows(tmp_path)
    with pytest.raises(RunError, match="results cannot be written"):
        append_row(tmp_path, {"case": "a"})


def test_reached():
    """A ratio at least, seconds at most; a failure reaches nothing, no aim is no answer."""
    row = fake_row(STEP, 3.0)
    assert reached(STEP, row) is True
    assert reached(replace(STEP, ratio=3.5), row) is False
    assert reached(replace(STEP, ratio=None, seconds=1.0), row) is True
    assert reached(replace(STEP, ratio=None, seconds=0.9), row) is False
    assert reached(STEP, {"failed": "no"}) is False
    assert reached(replace(STEP, ratio=None), row) is None
    assert reached(STEP, {**row, "waited": 0.3}) is None
    assert reached(STEP, {**row, "waited": 0.03}) is True
    assert reached(STEP, {"skipped": "no data"}) is None


@pytest.mark.slow
def test_real_processes(tmp_path):
    """A worker measures a case; one whose contestants are unknown fails in its own row."""
    bad = replace(STEP, name="bad", cell="mgu")
    suite = replace(SUITE, cases=(STEP, bad))
    good, failed = rows_of(tmp_path / "rows.jsonl", suite)
    assert good["seconds"].keys() == {"torch", "elman"}
    assert good["first"].keys() == {"torch", "elman"}
    assert good["machine"]["threads"] == STEP.threads
    assert good["wants"][0] == "x"
    assert "torch.nn has no mgu" in failed["failed"]
    assert failed["met"] is False
    assert words(failed)["elman"] == "failed"

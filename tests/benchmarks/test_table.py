"""Rows as words, and the README's table."""

from __future__ import annotations

from dataclasses import asdict, replace

import pytest

from benchmarks.cases import Case, Effort, Suite
from benchmarks.contestants import TRAIN
from benchmarks.measures.phases import PHASES
from benchmarks.measures.starting import IMPORT
from benchmarks.pages import complaints, markdown, rewritten
from benchmarks.studies.convergence import CONVERGENCE, OVER_LENGTHS
from benchmarks.table import CASE, COLUMNS, NOTHING, filled, share_of_peak, warnings_of, words
from benchmarks.worker import PEAK
from benchmarks.workloads.fitting import FIT
from elman.errors import InputError, RunError
from elman.measuring.timing import Quartiles

STEP = Case(
    *("gru 10,1,64", TRAIN, "gru", 10, 1, 64),
    contestants=("torch", "elman", "elman-c"),
    baseline="torch",
    ratio=30.0,
)
START = Case("import elman", IMPORT, seconds=0.3)
SUITE = Suite("small", "Does it work?", (PEAK, STEP, START))
MACHINE = {
    "cpu": "A processor",
    "cores": 2,
    "threads": 2,
    "kernel_isa": "avx2",
    "torch": "2.13.0",
    "blas": "mkl",
    "compiler": "gcc 12",
    "peak_gflops": {"1": 50.0, "2": 100.0},
}


def times(median: float) -> dict:
    return asdict(Quartiles(median, 0.9 * median, 1.1 * median, 9))


def row(case: Case, **found) -> dict:
    common = {"case": case.name, "asked": case.to_json(), "effort": asdict(Effort())}
    return {**common, "code": "c", "commit": "0123", "machine": MACHINE, **found}


def measured() -> dict[str, dict]:
    step = row(
        STEP,
        seconds={"torch": times(800e-6), "elman": times(20e-6), "elman-c": times(22e-6)},
        ratio={"elman": times(40.0), "elman-c": times(36.0), "jax": times(10.0)},
        first={"torch": times(850e-6), "elman": times(34e-6)},
        error={"elman": 4.2e-7},
        flop=600_000,
    )
    start = row(START, seconds={"torch": times(1.0), "elman": times(0.05)})
    rows = [row(PEAK, peak_gflops={"1": 50.0, "2": 100.0}), step, start]
    return {one["case"]: one for one in rows}


def test_words():
    """Times per step, ratio with quartiles, aim, error, speed and share of the peak."""
    peak, step, start = (words(item) for item in measured().values())
    assert step == {
        CASE: "gru 10,1,64",
        "baseline": "80.0 µs",
        "elman": "2.00 µs",
        "ratio": "40.0x (36.0–44.0)",
        "first": "3.40 µs (25.0x)",
        "target": "≥ 30x",
        "c": "36.0x",
        "error": "4.2e-07",
        "speed": "30 (30%)",
        "others": "jax 4.00x",
    }
    assert start == {
        CASE: "import elman",
        "baseline": "1 s",
        "elman": "0.05 s",
        "target": "≤ 0.3 s",
    }
    assert peak == {CASE: "peak", "speed": "50 on 1; 100 on 2"}


def test_a_busy_machine_is_marked():
    """In the row's line, in a line about all rows, and in no table of pages; a quiet one is not."""
    result = measured()
    step, start = result["gru 10,1,64"], result["import elman"]
    step["waited"], start["waited"] = 0.3, 0.05
    assert words(step)["busy"] == "busy (30%)"
    assert "busy" not in words(start)
    (line,) = warnings_of([step, start])
    assert line.startswith("Other programs took the cores for 30% of the time")
    assert "gru 10,1,64, the worst of 1 busy rows" in line
    assert warnings_of([start]) == []
    (complaint,) = complaints(SUITE, result)
    assert complaint.startswith("gru 10,1,64: Other programs")


@pytest.mark.parametrize("cell, told", [("gru", True), ("rlif", False), ("rleaky", False)])
def test_products_with_spikes_are_no_share_of_the_peak(cell, told):
    """Rows are added up where a spike is: they would be more than the processor can do."""
    measured_row = row(
        replace(STEP, cell=cell), seconds={"elman": times(20e-6)}, ratio={}, flop=6_000_000
    )
    assert ("speed" in words(measured_row)) == told
    assert (share_of_peak(measured_row) is not None) == told


def test_data_that_nobody_named():
    """Why a row has no times; nothing failed."""
    result = row(STEP, skipped="no data: set A")
    assert words(result) == {CASE: STEP.name, "refused": "no data: set A"}
    assert f"{STEP.name}: no data: set A" in complaints(SUITE, measured() | {STEP.name: result})


def test_memory():
    """Peak beside what was forecast; who has no forecast has the peak alone."""
    step = measured()["gru 10,1,64"]
    step["memory"] = {
        "torch": {"peak": 5 << 20, "forecast": None},
        "elman-checkpoint": {"peak": 1 << 20, "forecast": 3 << 19},
    }
    assert words(step)["memory"] == "torch 5.00, checkpoint 1.00 (1.50) MiB"


def test_empty_columns_are_left_out():
    """What no row has is no column."""
    result = measured()
    headers, output = filled(list(result.values()))
    assert headers == [COLUMNS[name][0] for name in words(result["gru 10,1,64"])]
    headers, output = filled([result["import elman"]])
    assert headers == ["case (T,B,H)", "torch, per step", "elman, per step", "target"]
    assert output == [["import elman", "1 s", "0.05 s", "≤ 0.3 s"]]


def test_rows_without_first_calls():
    """Rows that were measured before first calls were timed, or whose baseline runs in a process of
    its own, are as readable as all others."""
    result = measured()
    step = result["gru 10,1,64"]
    del step["first"]["torch"]
    assert words(step)["first"] == "3.40 µs"
    del step["first"]
    assert "first" not in words(step)
    assert COLUMNS["first"][0] not in filled(list(result.values()))[0]


def test_table_between_markers():
    """The text around the markers stays; writing twice changes nothing."""
    table = markdown(SUITE, measured())
    assert table.count("\n| ") == 2
    assert (
        "A processor, 2 cores, 2 threads, avx2, fp32 peak 100 GFLOP/s; torch 2.13.0 (mkl), gcc 12"
        in table
    )
    text = "before\n<!-- bench:small -->\nold\n<!-- /bench -->\nafter\n"
    new = rewritten(text, SUITE.name, table)
    assert new.startswith("before\n<!-- bench:small -->\n| case")
    assert new.endswith("commit 0123.\n<!-- /bench -->\nafter\n")
    assert rewritten(new, SUITE.name, table) == new
    with pytest.raises(InputError, match="no place for the table"):
        rewritten("<!-- bench:other --><!-- /bench -->", SUITE.name, table)


def test_only_whole_results_are_shown():
    """Every case, none failed or in a hurry, by one code on one machine."""
    result = measured()
    assert complaints(SUITE, result) == []
    missing = {name: item for name, item in result.items() if name != "peak"}
    assert complaints(SUITE, missing) == ["peak: missing"]
    failed = {**result, START.name: row(START, failed="no")}
    assert complaints(SUITE, failed) == ["import elman: no"]
    hasty = {**result, START.name: {**result[START.name], "effort": asdict(Effort.of(True, None))}}
    assert complaints(SUITE, hasty) == ["import elman: by --quick"]
    other = {**result, START.name: {**result[START.name], "code": "d"}}
    assert complaints(SUITE, other) == ["rows of several machines or versions"]
    with pytest.raises(RunError, match="several machines"):
        markdown(SUITE, other)


def test_studies_in_words():
    """Iterations of each solver, values replaced, what was returned; iterations at each length;
    what a study tells of itself."""
    solvers = {
        "newton": {"iterations": 3, "replaced": 0},
        "picard": {"iterations": None, "replaced": 7},
    }
    study = row(Case("a study", CONVERGENCE), solvers=solvers, solved_by="newton")
    assert (
        words(study)["study"]
        == f"iterations newton 3, picard {NOTHING} (7 values replaced); returned: newton"
    )
    lengths = row(Case("lengths", OVER_LENGTHS), lengths={"untrained": ([10, 100], [3, None])})
    assert words(lengths)["study"] == "iterations untrained 10: 3, 100: None"
    assert words(row(Case("kept", CONVERGENCE), told="so many bytes"))["study"] == "so many bytes"


def test_our_own_baseline():
    """Where engine c is what all are compared with, the others are told even without auto."""
    case = Case(
        "gru 10,1,1", TRAIN, T=10, contestants=("elman-c", "elman-deer"), baseline="elman-c"
    )
    result = row(case, seconds={"elman-c": times(1e-5)}, ratio={"elman-deer": times(0.25)})
    assert words(result)["others"] == "deer 4.00x"


def test_phases_in_words():
    """The largest shares of the time, in a column of their own."""
    some = {f"steps {k}": k / 1000 for k in range(1, 9)}
    result = row(Case("phases", PHASES), phases={**some, "products": 0.875, "waiting": 0.125})
    headers, output = filled([result])
    assert headers == ["case (T,B,H)", "where the time goes"]
    assert output == [["phases", "products 87.5%, waiting 12.5%, steps 8 0.8%, steps 7 0.7%"]]


def test_engine_c_beside_what_it_leaves_out():
    """Where engine c alone runs, others are told beside it."""
    case = Case("switches", FIT, contestants=("serial", "simd", "elman-c"), baseline="serial")
    ratio = {"simd": times(4.0), "elman-c": times(16.0)}
    result = words(row(case, seconds={"serial": times(1.0), "elman-c": times(0.0625)}, ratio=ratio))
    assert result["others"] == "simd 4.00x"
    assert result["baseline"].endswith("by serial code")

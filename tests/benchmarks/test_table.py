"""Rows as words, and the README's table."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

import pytest

from bench_rows import MACHINE
from benchmarks.cases import Case, Effort, Suite
from benchmarks.contestants import TRAIN
from benchmarks.measures.phases import PHASES
from benchmarks.measures.starting import IMPORT
from benchmarks.pages import complaints, markdown, rewritten
from benchmarks.studies.convergence import CONVERGENCE, OVER_LENGTHS
from benchmarks.table import (
    CASE,
    COLUMNS,
    NOTHING,
    filled,
    reached,
    share_of_peak,
    warnings_of,
    words,
)
from benchmarks.worker import PEAK
from benchmarks.workloads.fitting import FIT
from elman.errors import InputError, RunError
from elman.tuning.timing import Quartiles

STEP = Case(
    *("gru 10,1,64", TRAIN, "gru", 10, 1, 64),
    contestants=("torch", "elman", "elman-c"),
    baseline="torch",
    ratio=30.0,
)
START = Case("import elman", IMPORT, seconds=0.3)
SUITE = Suite("small", "Does it work?", (PEAK, STEP, START))


def times(median: float) -> dict:
    return asdict(Quartiles(median, 0.9 * median, 1.1 * median, 9))


def row(case: Case, **measured) -> dict:
    common = {"case": case.name, "asked": case.to_json(), "effort": asdict(Effort())}
    return {**common, "code": "c", "commit": "0123", "machine": MACHINE, **measured}


def measured_step() -> dict[str, Any]:
    return {
        "seconds": {"torch": times(800e-6), "elman": times(20e-6), "elman-c": times(22e-6)},
        "ratio": {"elman": times(40.0), "elman-c": times(36.0), "jax": times(10.0)},
        "first": {"torch": times(850e-6), "elman": times(34e-6)},
        "error": {"elman": 4.2e-7},
        "flop": 600_000,
    }


def measured() -> dict[str, dict]:
    step = row(STEP, **measured_step())
    start = row(START, seconds={"torch": times(1.0), "elman": times(0.05)})
    rows = [row(PEAK, peak_gflops={"1": 50.0, "2": 100.0}), step, start]
    return {row["case"]: row for row in rows}


STEP_WORDS = {
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


def test_words():
    """Times per step, ratio with quartiles, aim, error, speed and share of the peak; what no row
    has is no column; rows without first calls are as readable."""
    rows = measured()
    peak, step, start = (words(item) for item in rows.values())
    assert step == {CASE: STEP.name} | STEP_WORDS
    texts = {"baseline": "1 s", "elman": "0.05 s", "target": "≤ 0.3 s"}
    assert start == {CASE: START.name} | texts
    assert peak == {CASE: "peak", "speed": "50 on 1; 100 on 2"}
    headers, _ = filled([*rows.values()])
    assert headers == [COLUMNS[name][0] for name in step]
    assert filled([rows[START.name]])[1] == [[START.name, *texts.values()]]
    row = rows[STEP.name]
    del row["first"]["torch"]
    assert words(row)["first"] == "3.40 µs"
    del row["first"]
    assert "first" not in words(row)


@pytest.mark.parametrize(
    "asked, measured, verdict",
    [
        ({"ratio": 36.0}, {}, ""),
        ({"ratio": 37.0}, {}, ", not decided"),  # the median, but not three rounds in four
        ({"ratio": 99.0}, {}, ", missed"),
        ({"ratio": None, "seconds": 23e-6}, {}, ""),
        ({"ratio": None, "seconds": 21e-6}, {}, ", not decided"),
        ({"ratio": None, "seconds": 9e-6}, {}, ", missed"),
        ({"ratio": 37.0}, {"ratio": {}}, ", missed"),
        ({"ratio": 37.0}, {"failed": "no"}, ", missed"),
        ({"ratio": None}, {}, None),
        ({"ratio": 37.0}, {"skipped": "no data"}, None),
        ({"ratio": 36.0}, {"waited": 0.03}, ""),
        ({"ratio": 36.0}, {"waited": 0.3}, ", not decided"),
    ],
)
def test_targets_are_judged_by_quartiles(asked, measured, verdict: Any):
    """As claims are: a ratio is reached at least, a time at most, in three rounds of four. A
    failure reaches nothing; no target, no data and a busy machine are no verdict."""
    step = row(replace(STEP, **asked), **measured_step() | measured)
    assert reached(step) is {"": True, ", missed": False}.get(verdict)
    if verdict is not None and "failed" not in measured:
        assert words(step)["target"].endswith(verdict or ("x", "s"))


def test_a_busy_machine_is_marked():
    """In the row's line, in a line about all rows, and in no table of pages; a quiet one is not."""
    result = measured()
    step, start = result[STEP.name], result[START.name]
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


KEPT = {"peak": 1 << 20, "forecast": 3 << 19}
SHARES = {f"steps {k}": k / 1000 for k in range(1, 9)} | {"products": 0.875, "waiting": 0.125}
SOLVERS = {
    "newton": {"iterations": 3, "replaced": 0},
    "picard": {"iterations": None, "replaced": 7},
}
OWN = Case("own", TRAIN, T=10, contestants=("elman-c", "elman-deer"), baseline="elman-c")
SWITCHES = Case("s", FIT, contestants=("serial", "simd", "elman-c"), baseline="serial")
ROWS: list[tuple[Case, dict[str, Any], str, str]] = [  # what was measured, a column, its text
    (
        *(STEP, {"memory": {"torch": {"peak": 5 << 20, "forecast": None}, "elman-save": KEPT}}),
        *("memory", "torch 5.00, save 1.00 (1.50) MiB"),
    ),
    (
        *(Case("a study", CONVERGENCE), {"solvers": SOLVERS, "solved_by": "newton"}),
        *("study", f"iterations newton 3, picard {NOTHING} (7 values replaced); returned: newton"),
    ),
    (
        *(Case("n", OVER_LENGTHS), {"lengths": {"untrained": ([10, 100], [3, None])}}),
        *("study", "iterations untrained 10: 3, 100: None"),
    ),
    (Case("kept", CONVERGENCE), {"told": "so many bytes"}, "study", "so many bytes"),
    (
        *(Case("phases", PHASES), {"phases": SHARES}, "phases"),
        "products 87.5%, waiting 12.5%, steps 8 0.8%, steps 7 0.7%",
    ),
    (
        *(OWN, {"seconds": {"elman-c": times(1e-5)}, "ratio": {"elman-deer": times(0.25)}}),
        *("others", "deer 4.00x"),
    ),
    (
        *(SWITCHES, {"ratio": {"simd": times(4.0), "elman-c": times(16.0)}}),
        *("others", "simd 4.00x"),
    ),
    (SWITCHES, {"seconds": {"serial": times(1.0)}}, "baseline", "1 s by serial code"),
    (STEP, {"skipped": "no data: set A"}, "refused", "no data: set A"),
]


@pytest.mark.parametrize("case, found, column, text", ROWS, ids=[r[3][:30] for r in ROWS])
def test_what_only_some_rows_have(case, found, column, text):
    """Memory beside its forecast, solvers and lengths, the largest phases, others beside our own
    baseline and beside engine c where it alone runs, data that nobody named."""
    assert words(row(case, **{"seconds": {}, **found}))[column] == text


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
    """Every case, none failed, without data or in a hurry, by one code on one machine."""
    result = measured()
    assert complaints(SUITE, result) == []
    missing = {name: item for name, item in result.items() if name != "peak"}
    assert complaints(SUITE, missing) == ["peak: missing"]
    start = result[START.name]
    hasty = start | {"effort": asdict(Effort.of(True, None))}
    for changed, complaint in (
        (row(START, failed="no"), "import elman: no"),
        (row(START, skipped="no data: set A"), "import elman: no data: set A"),
        (hasty, "import elman: by --quick"),
        (start | {"code": "d"}, "rows of several machines or versions"),
    ):
        assert complaints(SUITE, result | {START.name: changed}) == [complaint]
    with pytest.raises(RunError, match="several machines"):
        markdown(SUITE, result | {START.name: start | {"code": "d"}})

"""Agreement with and speed-up over the ordinary loop, of every step of the catalogue.

    python -m benchmarks.steps.measure --out FILE.jsonl
    python -m benchmarks.steps.measure --cases ligru,gru_d --sizes own,100x16x64 --mode eval
    python -m benchmarks.steps.measure --from FILE.jsonl --reports FILE.jsonl --table FILE.md

Each case runs in a process of its own and gives one row, appended when it is finished.
"""

from __future__ import annotations

import argparse
import json
import warnings
from pathlib import Path

import torch

from benchmarks.machine import code, facts
from benchmarks.rows import Row, append_row, read_rows
from benchmarks.steps.agreement import LoopError, compare, reason
from benchmarks.steps.apart import apart
from benchmarks.steps.catalogue import CASES
from benchmarks.steps.laps import race
from benchmarks.steps.pages import line, page

SIZES = "own,100x16x64,1000x1x64"


def agree(name: str, options: argparse.Namespace, row: Row) -> bool:
    """Add the agreement in both modes; whether elman runs the step in float32, as timed."""
    for mode, training in (("train", True), ("eval", False)):
        try:
            row[mode] = compare(CASES[name], training, options.engine, options.through)
        except LoopError as error:
            row["failed"] = f"the loop: {error}"
    timed = row.get(options.mode)
    return timed is not None and "float32" not in timed.get("refused", {})


def measure(name: str, options: argparse.Namespace) -> Row:
    """The row of a case."""
    case = CASES[name]
    row: Row = {
        "case": name,
        "source": case.source,
        "call": case.call,
        "engine": options.engine,
        "mode": options.mode,
        "expected": case.refused,
        "remark": case.remark,
    }
    absent = case.absent()
    if absent:
        return {**row, "absent": absent}
    row |= {"version": case.version(), "machine": facts(), **code()}
    if agree(name, options, row):
        row["times"] = {}
        for size in filter(None, options.sizes.split(",")):
            try:
                row["times"][size] = race(
                    case, size, options.mode == "train", options.engine, options.through
                )
            except Exception as error:
                row["times"][size] = {"failed": reason(error)}
    return row


def alone(name: str, options: argparse.Namespace) -> Row:
    """The row of a case, measured in a process of its own."""
    words = ["benchmarks.steps.measure", "--alone", name]
    for option in ("sizes", "mode", "engine", "through", "threads"):
        words += [f"--{option}", str(getattr(options, option))]
    row = apart(words, options.threads, options.limit)
    return row if isinstance(row, dict) else failed(name, options, row)


def failed(name: str, options: argparse.Namespace, why: str) -> Row:
    """The row of a case whose process gave none."""
    case = CASES[name]
    known = {"source": case.source, "call": case.call, "expected": case.refused}
    return {"case": name, **known, "engine": options.engine, "mode": options.mode, "failed": why}


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    add = parser.add_argument
    add("--cases", default="", help="names, by commas; all without it")
    add("--sizes", default=SIZES, help="own, or TxBxH; empty: agreement only")
    add("--mode", choices=("train", "eval"), default="train", help="of modules, when timed")
    add("--engine", default="c")
    add("--through", choices=("case", "scan"), default="case", help="scan: no elman.Loop")
    add("--threads", type=int, default=2)
    add("--limit", type=float, default=600, help="seconds for a case")
    add("--out", type=Path, help="rows are appended to it")
    add("--from", type=Path, dest="rows", help="measure nothing: show these rows")
    add("--reports", type=Path, help="rows of benchmarks.steps.reports: a section of the page")
    add("--table", type=Path, help="write a page about the rows of --from, --out or this run")
    add("--list", action="store_true", help="show the cases")
    add("--alone", help=argparse.SUPPRESS)
    return parser.parse_args()


def run_all(options: argparse.Namespace) -> dict[str, Row]:
    """Measure the cases, each in its process; rows by name."""
    names = options.cases.split(",") if options.cases else list(CASES)
    unknown = [name for name in names if name not in CASES]
    if unknown:
        raise SystemExit(f"no such cases: {', '.join(unknown)}")
    rows: dict[str, Row] = {}
    for name in names:
        rows[name] = row = alone(name, options)
        if options.out:
            append_row(options.out, row)
        print(line(row), flush=True)
    return rows


def main() -> None:
    """Measure, show, write."""
    options = arguments()
    if options.list:
        for name, case in CASES.items():
            print(f"{name:36}{case.call:20}{case.source}")
    elif options.alone:
        warnings.filterwarnings("ignore")
        torch.set_num_threads(options.threads)
        print(json.dumps(measure(options.alone, options)))
    else:
        rows = read_rows(options.rows) if options.rows else run_all(options)
        if options.rows:
            print("\n".join(map(line, rows.values())))
        if options.table:
            kept = options.rows or options.out
            reported = read_rows(options.reports) if options.reports else {}
            options.table.write_text(page(read_rows(kept) if kept else rows, reported))


if __name__ == "__main__":
    main()

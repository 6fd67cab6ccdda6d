"""Claims and charts of every suite: what committed rows say, and that other rows say otherwise."""

from __future__ import annotations

import math
import random
from pathlib import Path
from typing import Any

import pytest

from benchmarks.cases import Suite
from benchmarks.claims import FAILS, HOLDS, UNDECIDED, VERDICT, Rows, judged
from benchmarks.rows import Row, read_rows
from benchmarks.suites import SUITES

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"
COMMITTED = {  # each claim holds (+), does not (-), is not decided (=), or not tried (?)
    "deer": "----++--++++-++-",
    "memory": "+++-+-++",
    "cmu": "++-+++-++--+--",
    "svail": "-------+--",
    "long": "+--+=+?",
    "decoder": "++",
    "ecornn": "+=++-++-+",
    "minibatch": "+-=",
    "depth": "++=-",
    "persistent": "--+-",
    "users": "-++-+-+++=+?+",
}
TRIES = 200  # mutations of all rows
MUTATED = (  # fields of rows that claims read
    *("seconds", "ratio", "error", "off", "accuracy", "scores", "bits", "perplexities", "memory"),
    *("phases", "operators", "solvers", "lengths", "kept", "cold", "warm", "flop", "curves"),
    "step_s",
)
WITH_CLAIMS = [suite for suite in SUITES.values() if suite.claims]


def rows_of(suite: Suite) -> list[Row]:
    """The committed rows, as of a quiet machine."""
    rows = read_rows(RESULTS / f"{suite.name}.jsonl").values()
    return [row | {"waited": 0.0} for row in rows]


@pytest.mark.parametrize("suite", WITH_CLAIMS, ids=lambda suite: suite.name)
def test_committed_rows(suite: Suite) -> None:
    """Each claim is judged as it was when they were committed, with a figure."""
    lines = judged(suite.claims, Rows(rows_of(suite)))
    marks = {HOLDS: "+", FAILS: "-", UNDECIDED: "="}
    assert "".join(marks.get(line[VERDICT], "?") for line in lines) == COMMITTED[suite.name]
    assert all(line[3] for line in lines if line[VERDICT] in marks)


class Mutation:
    """Another world: each name has a factor, and a power of the size of a case; each row is off by
    some noise, and what did not come to an end may do so, or the other way round."""

    def __init__(self, seed: int) -> None:
        self.source, self.factors = random.Random(seed), dict[str, tuple[float, float]]()
        self.noise = self.source.choice((0.0, 0.01, 0.5))  # of a row, in the logarithm
        self.spread = self.source.choice((0.0, 0.1, 2.0))  # of factors, in decades
        self.flat = self.source.random() < 0.2  # nothing is as it was measured
        self.ends = self.source.random() < 0.3

    def row(self, row: Row) -> Row:
        """A row of that world."""
        sizes = row.get("asked", {})
        size = sizes.get("T", 1) * sizes.get("B", 1) * sizes.get("H", 1)
        return row | {k: self._value(row[k], k, size) for k in MUTATED if k in row}

    def _value(self, value: Any, name: str, size: int) -> Any:
        if isinstance(value, dict) and "median" in value:
            return dict.fromkeys(("median", "q1", "q3"), self._number(value["median"], name, size))
        if isinstance(value, dict):
            return {k: self._value(v, f"{name} {k}", size) for k, v in value.items()}
        if isinstance(value, list):
            return [self._value(v, name, size) for v in value]
        if value is None and self.ends:  # iterations, samples
            return self._number(10_000, name, size)
        if name.endswith("iterations") and self.source.random() < 0.2:
            return None
        return self._number(value, name, size) if isinstance(value, int | float) else value

    def _number(self, value: float, name: str, size: int) -> float:
        draw = self.source
        if name not in self.factors:
            power = draw.choice((0.0, draw.uniform(-1.5, 2.0)))
            self.factors[name] = 10 ** draw.uniform(-self.spread, self.spread), power
        factor, power = self.factors[name]
        noise = math.exp(draw.gauss(0.0, self.noise))
        changed = (1.0 if self.flat else value) * factor * size**power * noise
        return max(1, round(changed)) if isinstance(value, int) else changed


@pytest.mark.parametrize("suite", WITH_CLAIMS, ids=lambda suite: suite.name)
def test_each_claim_may_hold_and_fail(suite: Suite) -> None:
    """Of other rows: no verdict is the same whatever was measured, and none is without a figure."""
    verdicts: list[set[str]] = [set() for _ in suite.claims]
    committed = rows_of(suite)
    for seed in range(TRIES):
        if all({HOLDS, FAILS} <= verdict for verdict in verdicts):
            break
        mutation = Mutation(seed)
        rows = [mutation.row(row) for row in committed]
        for verdict, line in zip(verdicts, judged(suite.claims, Rows(rows)), strict=True):
            verdict.add(line[VERDICT])
    judged_claims = zip(suite.claims, verdicts, COMMITTED[suite.name], strict=True)
    constant = {
        claim.says: verdict
        for claim, verdict, mark in judged_claims
        if mark != "?" and not {HOLDS, FAILS} <= verdict
    }
    assert not constant


@pytest.mark.parametrize(
    "suite", [suite for suite in SUITES.values() if suite.sweep], ids=lambda suite: suite.name
)
def test_sweep(suite: Suite) -> None:
    """A chart of the committed rows has all lines; of no rows there is none."""
    assert suite.sweep is not None
    (plot,) = suite.sweep.plots(Rows(rows_of(suite)))
    assert set(plot["lines"]) == set(map(str, suite.sweep.lines))
    assert max(len(sizes) for sizes, _ in plot["lines"].values()) > 2
    assert suite.sweep.plots(Rows([])) == []

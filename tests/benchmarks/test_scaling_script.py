"""The script that fits power laws over data and compute."""

from __future__ import annotations

import math

import pytest

from benchmarks.rows import read_rows
from benchmarks.scripts import scaling
from helpers import need_engine


@pytest.mark.slow
def test_to_the_end(capsys, tmp_path):
    """Three sizes in a few steps: rows, slopes; measured once."""
    need_engine("c")
    text = tmp_path / "text.txt"
    text.write_text("".join(f"line {k % 7} of {k % 5}\n" for k in range(900)))
    out = tmp_path / "rows.jsonl"
    words = ["--data", str(text), "--out", str(out), "--cells", "gru", "--seeds", "2"]
    words += ["--sizes", "500,1500,3000,90000", "--steps", "20", "--hidden", "8", "--batch", "2"]
    scaling.main(words)
    rows = read_rows(out)
    assert [*rows] == ["gru 500", "gru 1500", "gru 3000"]
    for row in rows.values():
        (first, *_, last), _ = row["curves"]
        assert len(row["bits"]) == 2
        assert last[1] < first[1] < math.log2(scaling.ALPHABET)
        assert last[2] == 20 * first[2]
    printed = capsys.readouterr().out
    assert printed.count("slopes: data -") == 1
    assert printed.count("compute -") == 1
    before = out.read_text()
    scaling.main(words)
    assert out.read_text() == before


def test_slopes_of_an_exact_law():
    """Points on a power law have its exponent, and an interval of nothing."""
    sizes = (100, 1000, 10_000)
    rows = [
        {"size": n, "bits": [4 * n**-0.25], "curves": [[[k, 9 / k, 100 * k] for k in (1, 2, 4)]]}
        for n in sizes
    ]
    assert scaling.slopes(rows) == ("-0.250 (-0.250 to -0.250)", "-1.000")


def test_a_floor_is_found():
    """Of points above one; fewer than four tell nothing."""
    rows = [{"size": 10**n, "bits": [1.5 + 9 * 10 ** (-0.3 * n)]} for n in (4, 5, 6, 7)]
    assert scaling.above_floor(rows) == pytest.approx((1.5, -0.3), rel=0.01)
    assert scaling.above_floor(rows[:3]) is None


@pytest.mark.parametrize(("last", "limited"), [(2.0, True), (2.2, False)])
def test_steps_that_limit_are_told(last, limited):
    """By a best validation that is the last one."""
    assert scaling.limited_by_steps({"curves": [[[1, 3, 1], [2, 2.1, 2], [3, last, 3]]]}) is limited

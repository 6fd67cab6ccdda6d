"""The script that compares language models of LSTM, GRU and layers with matrix states."""

from __future__ import annotations

import math

from benchmarks.rows import read_rows
from benchmarks.scripts import language_cells
from helpers import need_engine

GRU, DELTA = (f"text.txt {name}, seed 5" for name in ("gru:blocks", "gated_delta_net"))


def test_two_cells(tmp_path):
    """A few steps of tiny models, to the last row; sizes are the nearest to the parameters."""
    need_engine("c")
    text, out = tmp_path / "text.txt", tmp_path / "rows.jsonl"
    text.write_text("a rose is a rose is a rose. " * 400)
    cells = ["--cells", "gru:blocks,gated_delta_net", "--parameters", "60000", "--layers", "1"]
    size = [
        "--steps",
        "4",
        "--chunk",
        "2",
        "--batch",
        "4",
        "--bptt",
        "8",
        "--threads",
        "1",
        "--seed",
        "5",
    ]
    language_cells.main(["--data", str(text), "--out", str(out), *cells, *size])
    rows = read_rows(out)
    assert rows.keys() == {GRU, DELTA}
    for row in rows.values():
        results = row["results"]
        assert 0 < results["valid"] < math.log2(32)
        assert results["tokens_s"] > 0
        assert results["curve"][-1] == [4, results["valid"]]
    assert abs(rows[GRU]["results"]["parameters"] / 60000 - 1) < 0.05
    assert rows[DELTA]["results"]["units"] == 64

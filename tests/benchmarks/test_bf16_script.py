"""The script that times products of bfloat16 runs."""

from __future__ import annotations

import pytest

import elman
from benchmarks.rows import read_rows
from benchmarks.scripts import bf16


@pytest.fixture(autouse=True)
def nothing_compiled():
    """What the script says is the point; rounded products of kernels: engines/test_bf16."""
    with elman.using(engine="reference"):
        yield


def test_a_tiny_case(capsys, tmp_path):
    """A row for each cell."""
    bf16.main(["--quick", "--threads", "1", "--out", str(tmp_path / "rows.jsonl")])
    rows = capsys.readouterr().out.splitlines()
    assert [row.split()[0] for row in rows] == [*bf16.GATES, bf16.LOSS]
    assert all("bf16 is " in row for row in rows)
    written = read_rows(tmp_path / "rows.jsonl")
    assert [*written] == [f"{name} 5,3,16" for name in (*bf16.GATES, bf16.LOSS)]
    assert written["GRU 5,3,16"]["seconds"].keys() >= {"float32", "bf16", "torch"}


def test_sizes(capsys):
    """Sizes of layers by argument, in the order given."""
    bf16.main(["--only", "GRU", "--threads", "1", "--seconds", "0", "--sizes", "2,1,8", "3,2,5"])
    rows = capsys.readouterr().out.splitlines()
    assert [row.partition(":")[0] for row in rows] == ["GRU (2,1,8)", "GRU (3,2,5)"]


def test_models_of_users(capsys):
    """A tiny run of each model."""
    bf16.main(["--quick", "--users", "--threads", "1"])
    captured = capsys.readouterr()
    assert len(captured.out.splitlines()) == len(bf16.USERS)
    assert all(line.startswith("torch") for line in captured.err.splitlines())

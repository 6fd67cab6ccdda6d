"""Suite ``decoder``: contestants agree, memory is that of a chunk, claims are judged from rows."""

from __future__ import annotations

import sys

import pytest

from benchmarks.cases import OURS, Case, Effort
from benchmarks.measures.memory import DECODER as STEP
from benchmarks.measures.memory import measure_memory
from benchmarks.measures.training import measure_steps
from benchmarks.suites.decoder import MIB
from benchmarks.workloads.decoding import DECODERS


def case_of(N: int, H: int, V: int, contestants: tuple[str, ...]) -> Case:
    return Case("case", STEP, "rnn", 1, N, H, V, contestants, "torch", threads=1)


def test_all_agree():
    """With torch's two operations in float64; the products are counted."""
    case = case_of(40, 20, 30, tuple(DECODERS))
    row = measure_steps(case, Effort(0.05, 1, 1))

    assert {*row["seconds"], *row["absent"]} == {*DECODERS}
    assert {"torch", OURS, f"{OURS}-reference"} <= {*row["seconds"]}
    assert max(row["error"].values()) < 1e-5
    assert row["flop"] == 6 * 40 * 20 * 30


@pytest.mark.slow
def test_logits_never_stand_in_memory():
    """Beside gradients a step takes logits of 128 rows and little more; torch's all of them."""
    if not sys.platform.startswith("linux"):
        pytest.skip("only Linux counts the peak of resident memory anew")
    N, H, V = 1000, 16, 10_000
    row = measure_memory(case_of(N, H, V, ("torch", OURS, f"{OURS}-reference")), Effort(0.1, 1, 1))
    chunk = 128 * V * 4

    assert row["memory"]["torch"]["peak"] > 2 * N * V * 4
    for name in (OURS, f"{OURS}-reference"):
        assert chunk / 2 < row["memory"][name]["peak"] < 1.4 * chunk + 4 * MIB
        assert row["memory"][name]["forecast"] is None

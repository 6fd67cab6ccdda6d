"""Peak memory of a step: what is measured of a known one, and forecasts."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from benchmarks.cases import OURS, Case, Effort, packed
from benchmarks.contestants import CHECKPOINT, KeptCase
from benchmarks.measures.memory import DECODER, measure_memory
from benchmarks.measures.memory import MEMORY as STEP_OF
from benchmarks.programs import program
from benchmarks.suites.memory import MIB
from elman.engines.c.memory import LARGE
from elman.measuring.process import Program, run_program
from helpers import need_engine

KNOWN = """
import json
import torch
from benchmarks.cases import Case
from benchmarks.measures.memory import MEMORY, take_peak
from benchmarks.problem import Problem

class Known(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(1))

    def forward(self, x):
        wide = x.sum().expand(4 << 20 if len(x) == 16 else 1) * self.weight  # 16 MiB
        kept = wide * wide * self.weight  # keeps wide and their product
        return x * kept.sum(), None

case = Case("step", MEMORY, "gru", 16, 1, 8, contestants=("torch",), baseline="torch")
problem = Problem(case, torch.ones(16, 1, 8), torch.ones(16, 1, 8), {})
print(json.dumps(take_peak(problem, Known(), "auto")))
"""


@pytest.mark.slow
def test_a_known_step():
    """What is held (32 MiB) and the most (16 more), beside x and weights; the steps before do not
    count. In a process of its own: freed memory of other tests would be taken again."""
    root = Path(__file__).parents[2]
    result = json.loads(run_program(Program(("-c", KNOWN), folders=(root,)), 100))
    assert result["held"] == pytest.approx(32 * MIB, abs=2 * MIB)
    assert result["peak"] >= 48 * MIB - 2 * MIB
    assert result["weights"] == 4


@pytest.mark.slow
def test_results_that_are_kept_count_as_taken():
    """Engine c has memory of earlier results for further ones of their size, those of a forecast
    too: a step takes it."""
    need_engine("c")
    case = Case("c", STEP_OF, "gru", 4000, 4, 128, contestants=("elman-c",), baseline="elman-c")
    text = packed(case, "elman-c", {})
    result = json.loads(run_program(program("measures.memory", text=text), 300))
    assert result["forecast"] > 4 * LARGE
    assert result["peak"] == pytest.approx(result["forecast"], rel=0.1)


@pytest.mark.slow
@pytest.mark.parametrize(
    "sizes", [(150, 16, 32), pytest.param((600, 16, 32), marks=pytest.mark.long), (20_000, 16, 4)]
)
def test_forecasts_of_all_steps_at_once(sizes):
    """Jacobians of a window, and what is computed beside them where they are small."""
    case = Case("case", STEP_OF, "gru", *sizes, contestants=("elman-deer",), baseline="elman-deer")
    memory = measure_memory(case, Effort(0.1, 1, 1))["memory"]["elman-deer"]
    assert memory["forecast"] == pytest.approx(memory["peak"], rel=0.25)


@pytest.mark.slow
@pytest.mark.parametrize("sizes, checkpoint", [((1600, 16, 64), 40), ((30_000, 1, 32), 75)])
def test_forecasts(sizes, checkpoint):
    """Measured in processes of their own: explain is within a tenth, with and without kept states,
    which take less; also where there are many spans, of many small tensors."""
    need_engine("c")
    torchs = ("torch",) * (sizes[0] < 10_000)
    case = KeptCase(
        *("case", STEP_OF, "gru", *sizes),
        contestants=(*torchs, "elman-c", CHECKPOINT),
        baseline=(*torchs, "elman-c")[0],
        threads=1,
        checkpoint=checkpoint,
    )
    row = measure_memory(case, Effort(0.1, 1, 1))
    memory = row["memory"]
    assert [name for name, item in memory.items() if item["forecast"] is None] == [*torchs]
    for name in ("elman-c", CHECKPOINT):
        assert memory[name]["forecast"] == pytest.approx(memory[name]["peak"], rel=0.1, abs=MIB)
    assert memory[CHECKPOINT]["peak"] < 0.6 * memory["elman-c"]["peak"]
    assert all(memory["elman-c"]["peak"] < memory[name]["peak"] for name in torchs)


@pytest.mark.slow
def test_logits_never_stand_in_memory():
    """Beside gradients a decoder's step takes logits of 128 rows and little more; torch's all."""
    if not sys.platform.startswith("linux"):
        pytest.skip("only Linux counts the peak of resident memory anew")
    N, H, V = 1000, 16, 10_000
    names = ("torch", OURS, f"{OURS}-reference")
    case = Case("case", DECODER, "rnn", 1, N, H, V, names, "torch", threads=1)
    row = measure_memory(case, Effort(0.1, 1, 1))
    chunk = 128 * V * 4

    assert row["memory"]["torch"]["peak"] > 2 * N * V * 4
    for name in names[1:]:
        assert chunk / 2 < row["memory"][name]["peak"] < 1.4 * chunk + 4 * MIB
        assert row["memory"][name]["forecast"] is None

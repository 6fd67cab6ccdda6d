"""Peak memory of a step: what is measured of a known one, and forecasts."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from benchmarks.cases import OURS, Case, packed
from benchmarks.contestants import CHECKPOINT, KeptCase
from benchmarks.measures.memory import DECODER
from benchmarks.measures.memory import MEMORY as STEP_OF
from benchmarks.programs import Program, program
from benchmarks.suites.memory import MIB
from elman.engines.c.process.memory import LARGE
from helpers import need_engine
from scripts import run_program_forked

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
    result = json.loads(run_program_forked(Program(("-c", KNOWN), folders=(root,)), 100))
    assert result["held"] == pytest.approx(32 * MIB, abs=2 * MIB)
    assert result["peak"] >= 48 * MIB - 2 * MIB
    assert result["weights"] == 4


def taken(case: Case, name: str) -> dict[str, int]:
    """What a step of a contestant takes, in a process of its own."""
    text = packed(case, name, {})
    return json.loads(run_program_forked(program("measures.memory", threads=1, text=text), 300))


def case_of(engine: str, *sizes: int) -> Case:
    names = (f"{OURS}-{engine}",)
    return Case("case", STEP_OF, "gru", *sizes, contestants=names, baseline=names[0], threads=1)


@pytest.mark.slow
@pytest.mark.parametrize(
    "engine, sizes, off",
    [
        ("c", (4000, 4, 128), 0.1),
        ("deer", (150, 16, 32), 0.25),
        pytest.param("deer", (600, 16, 32), 0.25, marks=pytest.mark.long),
        ("deer", (20_000, 16, 4), 0.25),
    ],
)
def test_forecasts_by_engine(engine, sizes, off):
    """Engine c has memory of earlier results for further ones of their size: a step takes it.
    Engine deer: Jacobians of a window, and what is computed beside them where they are small."""
    need_engine(engine)
    case = case_of(engine, *sizes)
    result = taken(case, case.baseline)
    assert engine != "c" or result["forecast"] > 4 * LARGE
    assert result["forecast"] == pytest.approx(result["peak"], rel=off)


@pytest.mark.slow
@pytest.mark.parametrize(
    "sizes, checkpoint",
    [
        ((1600, 16, 64), 40),
        pytest.param((30_000, 1, 32), 75, marks=pytest.mark.long),
    ],
)
def test_forecasts(sizes, checkpoint):
    """Measured in processes of their own: explain is within a tenth, with and without kept states,
    which take less; also where there are many spans, of many small tensors."""
    need_engine("c")
    torchs = ("torch",) * (sizes[0] < 10_000)
    names = (*torchs, "elman-c", CHECKPOINT)
    options = {"contestants": names, "baseline": names[0], "checkpoint": checkpoint}
    case = KeptCase("case", STEP_OF, "gru", *sizes, threads=1, **options)
    memory = {name: taken(case, name) for name in names}
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
    N, H, V = 500, 16, 10_000
    names = ("torch", OURS, f"{OURS}-reference")
    case = Case("case", DECODER, "rnn", 1, N, H, V, names, "torch", threads=1)
    memory, chunk = {name: taken(case, name) for name in names}, 128 * V * 4
    assert memory["torch"]["peak"] > 2 * N * V * 4
    for name in names[1:]:
        assert chunk / 2 < memory[name]["peak"] < 1.4 * chunk + 4 * MIB
        assert memory[name]["forecast"] is None

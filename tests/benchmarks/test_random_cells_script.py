"""robustness/random_cells.py: a tiny run to its end, what it tells."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from helpers import need_engine
from scripts import begin, finished

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "robustness" / "random_cells.py"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The script as a module."""
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    spec = importlib.util.spec_from_file_location("random_cells_script", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "random_cells_script", module)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
def test_a_tiny_run() -> None:
    """All formulas agree."""
    need_engine("c")
    output = finished(begin(str(SCRIPT), "--formulas", "3", "--seeds", "0:1"))
    assert output.endswith("done: 3 formulas of seeds 0:1, 0 failed\n"), output


def test_a_formula_is_the_same_alone(script: Any) -> None:
    """Its arguments do not depend on what stands beside it."""
    draw = script.Draw(5)
    formulas = [draw.formula(number) for number in range(4)]
    together, alone = script.trial_of(formulas, 5), script.trial_of(formulas[2:3], 5)
    names = [leaf.name for leaf in together.job.graph.leaves]
    values = dict(zip(names, together.call.tensors, strict=True))
    for leaf, value in zip(alone.job.graph.leaves, alone.call.tensors, strict=True):
        torch.testing.assert_close(value, values[leaf.name], rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("kind", ["number", "infinity", "error"])
def test_what_is_wrong_is_told(script: Any, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By seed, formula, engine and result."""
    real, runs = script.Trial.run, []

    def by(job: Any, engine: str) -> Any:
        if kind == "error":
            raise ValueError("min() arg is an empty sequence")
        return script.kernel_of(job, "reference")

    def run(trial: Any, kernel: Any) -> Any:
        results = dict(real(trial, kernel))
        runs.append(kernel)
        if len(runs) == 2:  # what is judged, after the reference
            results["output"] = results["output"].clone()
            results["output"][0, 0, 0] = 1e3 if kind == "number" else float("-inf")
        return results

    monkeypatch.setattr(script, "by", by)
    monkeypatch.setattr(script.Trial, "run", run)
    draw = script.Draw(3)
    formula = draw.formula(0)
    output = script.failures([formula], 3, ("c",))
    assert len(output) == 1, output
    assert output[0].startswith("c: ValueError: min()" if kind == "error" else "c: output: 1 of")

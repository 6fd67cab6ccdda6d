"""robustness/random_options.py: a tiny run to its end, what it tells."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import elman
from elman.errors import InputError
from scripts import begin, finished

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "robustness" / "random_options.py"
MODULES = "random_options", "random_layers", "random_equivalents", "forking"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The script as a module."""
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    for name in MODULES:
        monkeypatch.delitem(sys.modules, name, raising=False)
    module = importlib.import_module("random_options")
    for name in MODULES:
        monkeypatch.setitem(sys.modules, name, sys.modules[name])
    return module


@pytest.mark.slow
def test_a_tiny_run() -> None:
    """All combinations run or are refused by name."""
    output = finished(begin(str(SCRIPT), "--seeds", "1:6"))
    assert output.endswith("done: 5 combinations of seeds 1:6, 0 failed\n"), output


def drawn(script: Any, **options: Any) -> Any:
    """A combination of a GRU."""
    rest = {"T": 3, "B": 2, "seed": 1, "I": 4, "H": 4}
    called = {name: options.pop(name) for name in script.CALLS if name in options}
    return script.Drawn("GRU", options, called, rest)


def judged(script: Any, monkeypatch: pytest.MonkeyPatch, **options: Any) -> tuple[str, str]:
    """The verdict on a combination."""
    monkeypatch.setattr(script, "draw", lambda seed: drawn(script, **options))
    return script.verdict(1)


def test_a_combination_is_that_of_its_seed(script: Any) -> None:
    """Drawn again it is the same; every class and function is drawn."""
    combinations = [script.draw(seed) for seed in range(300)]
    assert [str(script.draw(seed)) for seed in range(300)] == [*map(str, combinations)]
    targets = {combination.target for combination in combinations}
    assert targets >= {"Recurrent", "RNN", "GRU", "LSTM", *elman.layers.__all__, "gla", "kda"}


@pytest.mark.parametrize(
    "error, kind",
    [
        (InputError("zoneout: gru has no state 'c'"), "refused"),
        (InputError("gru cannot do this"), "fails"),
        (ValueError("zoneout_of"), "fails"),
        (RuntimeError("zoneout: shapes cannot be multiplied"), "fails"),
        (KeyError("zoneout"), "fails"),
    ],
)
def test_refusals_name_an_option(script: Any, error: Any, kind: str, monkeypatch: Any) -> None:
    """Any other exception is a failure, told with its seed and its place."""

    def build(_: Any) -> Any:
        raise error

    monkeypatch.setattr(script, "build", build)
    found, text = judged(script, monkeypatch, zoneout={"c": 0.1})
    assert found == kind
    told = ("seed 1: GRU(", f"{type(error).__name__} at ", "test_random_options_script.py:")
    assert not text if kind == "refused" else all(part in text for part in told)


@pytest.mark.parametrize("wrong", ["values", "gradients", "memory", "nothing"])
def test_differences_are_told(script: Any, wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the way in which the results came."""
    forward, calls = elman.GRU.forward, []

    def off(net: Any, *given: Any, **options: Any) -> Any:
        out, *states, last = forward(net, *given, **options)
        calls.append(out)
        if wrong == "memory":
            states = [out for _ in states]
        if wrong != "nothing" and len(calls) > 1:
            by = 1e-3 * given[0].sum() if wrong == "gradients" else torch.tensor(1e-3)
            out = out + (by - by.detach() if wrong == "gradients" else by)
        return (out, *states, last)

    monkeypatch.setattr(elman.GRU, "forward", off)
    found, text = judged(script, monkeypatch, outputs="states", batch_first=True)
    told = {"memory": "two results share memory", "values": "output 0 differs by 1.00e-03"}
    assert found == ("compared by 3" if wrong == "nothing" else "differs")
    assert told.get(wrong, "gradient of " if wrong == "gradients" else "") in text

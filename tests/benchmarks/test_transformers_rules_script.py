"""The script that times functions beside those of transformers: loops stand in for the package."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

from benchmarks import studied
from benchmarks.rows import read_rows
from benchmarks.scripts import transformers_rules
from elman import functional
from helpers import need_engine


@pytest.fixture
def tiny(monkeypatch):
    """Two cases of two heads; what transformers runs is elman's own function, wrapped."""
    need_engine("c")
    cases = {
        "token": transformers_rules.Case("gated_delta_rule", 1, 1),
        "training": transformers_rules.Case("kda", 2, 3, True),
        "mamba2": transformers_rules.Case("mamba2_scan", 1, 3, True),
        "mamba": transformers_rules.Case("selective_scan", 1, 2),
    }
    monkeypatch.setattr(transformers_rules, "CASES", cases)
    sizes = dict.fromkeys(transformers_rules.MODELS, (2, 4, 4))
    monkeypatch.setattr(transformers_rules, "SIZES", sizes)
    monkeypatch.setattr(transformers_rules.metadata, "version", lambda name: "0")
    for function, (folder, *names) in transformers_rules.MODELS.items():
        module = ModuleType(folder)
        for name in names:
            setattr(module, name, getattr(functional, function))
        monkeypatch.setitem(sys.modules, f"transformers.models.{folder}.modeling_{folder}", module)


def test_to_the_end(tiny, capsys, tmp_path, monkeypatch):
    """A line and a row of each case, and the table of the page."""
    out = tmp_path / "transformers_rules.jsonl"
    transformers_rules.main(["--seconds", "0", "--out", str(out)])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split('"')[3] for line in lines] == ["token", "training", "mamba2", "mamba"]
    rows = read_rows(out)
    assert all(row["error"] == 0.0 for row in rows.values())
    monkeypatch.setattr(studied, "script_rows", lambda name: rows)
    assert studied.transformers_rules().count(" ms ") == 8


def test_results_that_differ_are_not_timed(tiny, monkeypatch):
    """The largest error is named."""
    right = functional.kda

    def wrong(*given, **options):
        out, last = right(*given, **options)
        return 1.01 * out, last

    monkeypatch.setattr(transformers_rules.functional, "kda", wrong)
    with pytest.raises(AssertionError, match="differs by"):
        transformers_rules.compare(transformers_rules.CASES["training"], 0.0)


def test_without_the_package(monkeypatch, capsys):
    """What to install is said."""

    def absent(name):
        raise transformers_rules.metadata.PackageNotFoundError

    monkeypatch.setattr(transformers_rules.metadata, "version", absent)
    transformers_rules.main([])
    assert "pip install transformers" in capsys.readouterr().out

"""Layers compared with torch's, one shape in tiny."""

from __future__ import annotations

import json
import sys

import pytest

from benchmarks.scripts import never_slower
from benchmarks.scripts.never_slower import Shape, measured, shapes, table


@pytest.mark.parametrize("how", ["train", "infer", "step", "onehot"])
def test_a_shape(how):
    shape = Shape("GRU", 1 if how == "step" else 3, 2, 3, 4, how)
    run = measured(shape, 0.0)
    assert run["auto"] > 0
    assert {*run["by_name"]} == {"auto", "c", "aten", "twin"}
    row = {"shape": shape.name, "empty": run, "full": {**run, "auto": 0.5}}
    said = table([row])
    assert f"| {shape.name} | {run['auto']:.2f} | 0.50 |" in said
    assert f"{shape.name} 0.50" in said.splitlines()[-2]
    run |= {"engine": "c:batch", "by_name": {"auto": 1.0, "c": 2.0, "aten": 1.2, "twin": 1.0}}
    assert "wrong choices: 2 of 2" in table([{**row, "empty": run, "full": run}])
    run["by_name"]["aten"] = 1.0  # a faster run of the engine that was chosen is noise
    assert "wrong choices: 0 of 2" in table([{**row, "empty": run, "full": run}])


def test_each_shape_runs_in_processes_of_its_own(monkeypatch, tmp_path, capsys):
    tiny = [Shape("RNN", 2, 2, 3, 4)]
    monkeypatch.setattr(never_slower, "shapes", lambda: tiny)
    caches = []

    def alone(number, seconds, cache):
        caches.append(cache)
        return measured(tiny[number], seconds)

    monkeypatch.setattr(never_slower, "alone", alone)
    rows = tmp_path / "rows.jsonl"
    monkeypatch.setattr(sys, "argv", ["never_slower", "--seconds", "0", "--out", str(rows)])
    never_slower.main()
    assert caches[0] == caches[1]
    assert json.loads(rows.read_text())["shape"] == tiny[0].name
    monkeypatch.setattr(sys, "argv", ["never_slower", "--from", str(rows)])
    said = capsys.readouterr().out
    never_slower.main()
    assert capsys.readouterr().out.strip() in said


def test_sixty_shapes_each_once():
    assert len({shape.name for shape in shapes()}) == len(shapes()) == 60

"""What `elman resume` takes over from `elman train`: every option, which the run folder holds."""

from __future__ import annotations

import itertools
import json

import pytest

from elman.cli.train import parameters
from elman.train.loop.loop import StopRequest
from elman.train.tasks.registry import TASKS
from run_folders import SMALL

FACTS = {"compare": "comparing"}  # options that facts.json holds -> their names there
NOT_RELEVANT = {"out"}  # the folder of new run folders: what is resumed has one


@pytest.mark.parametrize("task", TASKS)
def test_every_option_is_stored_or_not_relevant(task):
    """A new option is a field of the configuration, which config.json holds, or stands here."""
    options = {parameter.name for parameter in parameters(TASKS[task])} - {"context"}
    stored = TASKS[task].config(data="x").to_json().keys() - {"task"}
    assert stored <= options
    assert options - stored == {*FACTS} | NOT_RELEVANT


@pytest.mark.parametrize(
    ("began", "resumed", "compared"),
    [
        ("--no-compare", (), False),
        ("--compare", (), True),
        ("--no-compare", ("--compare",), True),
        ("--compare", ("--no-compare",), False),
    ],
)
@pytest.mark.slow
def test_comparison(elman, without_charts, tmp_path, monkeypatch, began, resumed, compared):
    """A run compares its speed as it was told when it began, unless `elman resume` says otherwise;
    one of before that was stored compares."""
    text, out = tmp_path / "text.txt", tmp_path / "runs"
    text.write_text("the cat\n" * 300)
    steps = itertools.count(1)
    monkeypatch.setattr(StopRequest, "__bool__", lambda self: next(steps) == 2)
    assert elman("train", f"--data={text}", f"--out={out}", *SMALL, began)[0] >= 128
    monkeypatch.undo()
    (folder,) = out.iterdir()
    facts = json.loads((folder / "facts.json").read_text())
    assert facts[FACTS["compare"]] is (began == "--compare")
    assert elman("resume", str(folder), *resumed)[0] == 0
    speed = json.loads((folder / "result.json").read_text())["speed"]
    assert speed.get("skipped") == (None if compared else "not asked for")

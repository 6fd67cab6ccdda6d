"""benchmarks/robustness/hostile_files.py: what it sees, and a case of each kind."""

from __future__ import annotations

import importlib
import os
import signal
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not hasattr(os, "fork"), reason="each case is forked"),
    pytest.mark.filterwarnings("ignore"),
]


@pytest.fixture
def script(monkeypatch):
    """The file, as Python runs it."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks" / "robustness"))
    return importlib.import_module("hostile_files")


def test_a_case_of_each_kind(script, tmp_path, empty_cache, capsys):
    """None fails."""
    selected = script.cases(0)[: len(script.KINDS)]
    assert len({case.kind for case in selected}) == len(script.KINDS)
    counts = script.campaign(tmp_path / "all", selected, 0, 60.0)
    assert (counts["cases"], counts["failed"]) == (len(selected), 0), capsys.readouterr().out


def test_what_fails_is_seen(script, tmp_path, empty_cache, monkeypatch, capsys):
    """Code that runs, a wait, a signal, a traceback and a changed file of the user's."""
    ways = {
        "code": lambda place: place.mark.touch(),
        "wait": lambda place: os.read(os.open(place.run / "pipe", os.O_RDONLY), 1),
        "signal": lambda place: os.kill(os.getpid(), signal.SIGKILL),
        "traceback": lambda place: 1 // 0,
        "change": lambda place: (place.home / "letter.txt").write_text(""),
    }
    monkeypatch.setattr(script, "open_by", lambda way, place: ways.get(way, int)(place))
    monkeypatch.setattr(script, "prepare", prepare)
    none = lambda place, draw: None  # noqa: E731
    selected = [script.Case("links", way, none, (way,)) for way in ways]
    counts = script.campaign(tmp_path, selected, 0, 1.0)
    said = capsys.readouterr().out
    assert counts["failed"] == len(ways), said
    for words in ("code of the folder ran", "hung", "status -9", "ZeroDivision", "have changed"):
        assert words in said


def prepare(root: Path) -> Path:
    """A place with nothing but a letter."""
    for name in ("run", "home"):
        (root / "clean" / name).mkdir(parents=True)
    (root / "clean" / "home" / "letter.txt").write_text("a letter")
    return root / "clean"

"""robustness/kills.py: it strikes where it says, and sees what differs; a kill of two processes."""

from __future__ import annotations

import dataclasses
import importlib
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from elman.engines.c.compilation.build import find_compiler
from elman.train.run import checkpoint
from forked import Forked
from scripts import begin

TWO = ("torchrun", "devices")  # how kills.py starts two processes
SCRIPTS = Path(__file__).parents[2] / "benchmarks" / "robustness"
if not Path("/proc/self/task").exists():
    pytest.skip("the scripts find processes in /proc", allow_module_level=True)


@pytest.fixture
def scripts(monkeypatch):
    """The two files, as Python runs them."""
    monkeypatch.syspath_prepend(str(SCRIPTS))
    return importlib.import_module("kills"), importlib.import_module("killed_run")


@pytest.fixture
def killed_run(scripts):
    return scripts[1]


@pytest.fixture
def fired(killed_run, monkeypatch) -> list[str]:
    """Where a strike would have killed."""
    told: list[str] = []
    monkeypatch.setattr(killed_run.Strike, "fire", lambda self, where: told.append(where))
    monkeypatch.setattr(killed_run.Strike, "fire_later", lambda self, where: told.append(where))
    return told


def test_every_place_is_there(killed_run):
    """What a strike takes the place of."""
    for place in killed_run.PLACES.values():
        if place.owner:
            module, _, name = place.owner.partition(":")
            owner = importlib.import_module(module)
            assert callable(getattr(getattr(owner, name) if name else owner, place.function))


@pytest.mark.parametrize("name", ["step", "validate", "write", "rename", "remove", "metrics"])
def test_strikes_where_it_says(small_config, train, killed_run, fired, monkeypatch, name):
    """At the given call of a run, once, and what was written for it does not stay."""
    place = killed_run.PLACES[name]
    module, _, kind = place.owner.partition(":")
    owner = importlib.import_module(module)
    owner = getattr(owner, kind) if kind else owner
    monkeypatch.setattr(owner, place.function, getattr(owner, place.function))  # to be put back
    killed_run.arm(killed_run.Strike(name, 0, 2, 0.5, 0.0, False, ""))
    assert train(small_config).complete
    assert len(fired) == 1
    assert fired[0].startswith(f"{name} 2")


def test_a_strike_kills_once(killed_run, tmp_path):
    """The mark is there before the process is gone; the next one lives."""
    mark = tmp_path / "mark"
    text = killed_run.Strike("start", 0, 1, 0.0, 0.0, False, str(mark)).text()
    words = f"import json, killed_run; killed_run.Strike(**json.loads({text!r})).fire('here')"
    for status in (-signal.SIGKILL, 0):
        ended = subprocess.run([sys.executable, "-c", words], cwd=SCRIPTS, check=False)
        assert ended.returncode == status
        assert mark.read_text() == "here"


def test_it_sees_what_differs(small_config, train, scripts):
    """One bit of one weight; a row of metrics."""
    kills, _ = scripts
    left, right = (train(small_config).folder for _ in range(2))
    assert kills.difference(left, right) == ""
    point, _ = checkpoint.load_latest(right.checkpoints)
    tensors = {name: value.clone() for name, value in point.tensors.items()}
    tensors["model.embedding.weight"][0, 0] = torch.nextafter(
        tensors["model.embedding.weight"][0, 0], torch.tensor(9.0)
    )
    checkpoint.save(right.checkpoints, dataclasses.replace(point, tensors=tensors))
    assert "model.embedding.weight" in kills.difference(left, right)
    checkpoint.save(right.checkpoints, point)
    assert kills.difference(left, right) == ""
    right.metrics.write_text("".join(right.metrics.read_text().splitlines(True)[:-1]))
    assert kills.difference(left, right)


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.skipif(not torch.distributed.is_available(), reason="torch without distributed")
@pytest.mark.skipif(isinstance(find_compiler(), str), reason="there is no C compiler")
@pytest.mark.parametrize(
    "launch", ["alone", *(pytest.param(one, marks=pytest.mark.long) for one in TWO)]
)
def test_a_kill(tmp_path, launch, scripts, monkeypatch, capsys):
    """The script itself; fifty take ten minutes, and one of two processes twice as long as one of
    one. What torchrun starts again is killed in test_workers, too."""
    words = [str(SCRIPTS / "kills.py"), f"--out={tmp_path / 'runs'}", "--kills=1", "--seed=3"]
    words += (
        ["--engine=aten"] if launch == "alone" else []
    )  # else engine c may win in one run alone
    kills, _ = scripts
    monkeypatch.setattr(sys, "argv", [*words, "--only=write", f"--started-by={launch}"])
    if launch == "alone":
        monkeypatch.setattr(kills, "subprocess", SimpleNamespace(Popen=forked))
    with pytest.raises(SystemExit) as ended:
        kills.main()
    assert not ended.value.code
    assert "1 of 1 runs equal an undisturbed one to the bit" in capsys.readouterr().out


def forked(command: list[str], *, env: dict[str, str], stdout: Any, **_: Any) -> Forked:
    """A process as kills.py starts one, but with torch imported; when this returns it has ended."""
    process = begin(*command[1:], **env)
    said = "".join(process.communicate(timeout=150.0))
    stdout.write(said.encode())
    stdout.flush()
    return process

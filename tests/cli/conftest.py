"""The command line in this process."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from elman.cli import main
from run_folders import SMALL


@pytest.fixture
def elman(capsys):
    """Run a command: elman("train", …) -> (exit code, output, errors)."""

    def run(*words: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as left:
            main(words)
        out, err = capsys.readouterr()
        return int(left.value.code or 0), out, err

    return run


@pytest.fixture
def without_charts(monkeypatch) -> None:
    """Reports without plots, most of their time, where what stands around these is the point."""
    monkeypatch.setattr("elman.report.page.draw_charts", lambda *_: [])


@pytest.fixture(scope="session")
def whole(tmp_path_factory) -> Path:
    """A complete run with a comparison."""
    root = tmp_path_factory.mktemp("whole")
    text = root / "text.txt"
    text.write_text("".join(random.Random(0).choices("the cat\n", k=2000)))
    with pytest.raises(SystemExit, match="0"):
        main(("train", f"--data={text}", f"--out={root / 'runs'}", *SMALL))
    (folder,) = (root / "runs").iterdir()
    shutil.rmtree(folder / "checkpoints")
    return folder


@pytest.fixture
def root(whole, tmp_path) -> Path:
    """A folder of two equal runs, "bad" and "good"."""
    for name in ("bad", "good"):
        shutil.copytree(whole, tmp_path / "runs" / name)
    return tmp_path / "runs"

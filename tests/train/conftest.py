"""A small text, a small model, and whole runs of it in this process."""

from __future__ import annotations

import io
import os
import random
import signal
from pathlib import Path

import pytest
from rich.console import Console

from elman.train.loop.config import Config
from elman.train.loop.stepper import Stepper
from elman.train.run import run as running
from elman.train.run.outcome import Outcome
from elman.train.tasks.text.config import TextConfig
from workers import Common

WORDS = ("quick", "brown", "fox", "jumps", "over", "lazy", "dog", "seven", "wizards", "brew")


def sentences(count: int, seed: int = 0) -> str:
    """Make lines of a few random words each."""
    draw = random.Random(seed)
    return "".join(" ".join(draw.choices(WORDS, k=6)) + ".\n" for _ in range(count))


@pytest.fixture(scope="session")
def small_text(tmp_path_factory) -> Path:
    """A text file of some 10 000 characters."""
    path = tmp_path_factory.mktemp("text") / "words.txt"
    path.write_text(sentences(300), encoding="utf-8")
    return path


@pytest.fixture
def common(tmp_path_factory, small_text, tmp_path) -> Common:
    """Runs of other processes that several tests begin with: common("--steps=12", processes=2)."""
    base = tmp_path_factory.getbasetemp()
    shared = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "common-runs"
    shared.mkdir(exist_ok=True)
    return Common(shared, small_text, tmp_path)


@pytest.fixture(scope="session")
def small_config(small_text) -> TextConfig:
    """A run of 12 steps of a tiny model, with dropout, several rows per epoch and all intervals."""
    return TextConfig(
        data=str(small_text),
        hidden=12,
        embedding=6,
        dropout=0.1,
        batch=40,
        bptt=24,
        steps=14,
        validate_every=5,
        checkpoint_every=4,
        log_every=3,
        validation_chars=600,
        engine="aten",
        accelerator="cpu",
        threads=1,
    )


@pytest.fixture
def console() -> Console:
    """A console that writes to memory: console.file.getvalue()."""
    return Console(file=io.StringIO(), width=200)


@pytest.fixture
def train(tmp_path, console):
    """Run a configuration: train(config) -> Outcome; each run in a folder of its own."""

    def run(config: Config, **options) -> Outcome:
        return running.start(config, tmp_path / "runs", console, **{"comparing": False} | options)

    return run


@pytest.fixture
def resume(console):
    """Go on with a run: resume(path) -> Outcome."""

    def run(path: Path, **options) -> Outcome:
        return running.resume(path, console, **options)

    return run


@pytest.fixture
def interrupt_at(monkeypatch):
    """Make the n-th training step from now on end with a Ctrl-C."""
    plain = Stepper.train

    def arrange(step: int, number: int = signal.SIGINT) -> None:
        left = [step]

        def counted(self, *args):
            taken = plain(self, *args)
            left[0] -= 1
            if left[0] == 0:
                signal.raise_signal(number)
            return taken

        monkeypatch.setattr(Stepper, "train", counted)

    return arrange

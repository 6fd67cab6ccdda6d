"""The commands of the benchmarks in this process."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from benchmarks.__main__ import bench
from benchmarks.scripts.speakers import join_recordings
from elman.cli.app import run_command

HALVES = ("train", "test")


@pytest.fixture
def run(capsys, monkeypatch):
    """Run a command: run(bench, "cpu", …) -> (exit code, output, errors)."""

    def run(command: Callable[..., Any], *words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["benchmarks", *words])
        with pytest.raises(SystemExit) as exit_info:
            run_command(command, "python -m benchmarks")
        out, err = capsys.readouterr()
        return int(exit_info.value.code or 0), out, err

    return run


@pytest.fixture
def benchmarks(run):
    """Run suites: benchmarks("cpu", …) -> (exit code, output, errors)."""
    return lambda *words: run(bench, *words)


@pytest.fixture
def without_charts(monkeypatch) -> None:
    """Pages without plots, most of their time, where what stands around these is the point."""
    monkeypatch.setattr("benchmarks.report._charts", lambda page: [])


@pytest.fixture
def two_classes(tmp_path, monkeypatch) -> None:
    """Images [3, 4, 3] of two classes that differ in their colour; voices of two pitches."""
    draw, y = np.random.default_rng(0), np.arange(20) % 2
    waves = [np.sin(np.arange(9) * (1 + speaker)) * 999 for speaker in y]
    voices = {"audio": np.concatenate(waves).astype(np.int16), "length": np.full(20, 9)}
    halves: dict[str, Any] = {
        f"{k}_{half}": v for k, v in (voices | {"speaker": y}).items() for half in HALVES
    }
    recordings: dict[str, Any] = join_recordings(halves, 12)
    np.savez(tmp_path / "audio.npz", **recordings)
    monkeypatch.setenv("ELMAN_BENCH_AUDIO", str(tmp_path / "audio.npz"))
    arrays: dict[str, Any] = {}
    for half in HALVES:
        x = draw.integers(0, 99, (20, 3, 4, 3)) + 150 * y[:, None, None, None]
        arrays |= {f"x_{half}": x.astype(np.uint8), f"y_{half}": y}
    np.savez(tmp_path / "images.npz", **arrays)
    monkeypatch.setenv("ELMAN_BENCH_IMAGES", str(tmp_path / "images.npz"))

"""The commands of the benchmarks in this process."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest

from benchmarks.__main__ import bench
from benchmarks.scaling.__main__ import scale
from elman.cli.app import run_command


@pytest.fixture
def run(capsys, monkeypatch):
    """Run a command: run(bench, "cpu", …) -> (exit code, output, errors)."""

    def run(command: Callable[..., Any], *words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["benchmarks", *words])
        with pytest.raises(SystemExit) as left:
            run_command(command, "python -m benchmarks")
        out, err = capsys.readouterr()
        return int(left.value.code or 0), out, err

    return run


@pytest.fixture
def benchmarks(run):
    """Run suites: benchmarks("cpu", …) -> (exit code, output, errors)."""
    return lambda *words: run(bench, *words)


@pytest.fixture
def scaling(run):
    """Forecast workers: scaling("gru", …) -> (exit code, output and errors)."""

    def scaling(*words: str) -> tuple[int, str]:
        code, out, err = run(scale, *words)
        return code, out + err

    return scaling


@pytest.fixture
def without_charts(monkeypatch) -> None:
    """Pages without plots, most of their time, where what stands around these is the point."""
    monkeypatch.setattr("benchmarks.report._charts", lambda page: [])

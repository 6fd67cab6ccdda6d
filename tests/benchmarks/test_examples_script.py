"""Rows of the examples: what they print is read, to the end, in tiny sizes."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from benchmarks.rows import read_rows
from benchmarks.scripts import examples


@pytest.fixture
def recordings(tmp_path):
    """A file of noise that is called digits."""
    random = np.random.default_rng(0)
    arrays = {}
    for half in ("train", "test"):
        arrays[f"audio_{half}"] = random.integers(-999, 999, 40 * 900).astype(np.int16)
        arrays[f"length_{half}"] = np.full(40, 900)
        arrays[f"digit_{half}"] = random.integers(0, 10, 40)
        arrays[f"speaker_{half}"] = np.zeros(40, int)
    np.savez(tmp_path / "digits.npz", **arrays)
    return tmp_path / "digits.npz"


def test_rows_of_each_example(recordings, tmp_path, monkeypatch, capsys):
    """One of each kind; a second call runs nothing again."""
    kept = ("digits, elman", "ode, hamiltonian", "turned, elman", "bodies, scan")
    commands = {case: examples.COMMANDS[case] for case in kept}
    commands[kept[0]] += " --hidden 8 --test 2 --batch 2"
    commands[kept[1]] += " --samples 20"
    commands[kept[2]] += " --hidden 8 --batch 4"
    commands[kept[3]] += " --paths 2 --samples 20 --batch 2"
    pixels = np.random.default_rng(0).integers(0, 255, (6, 32, 32, 3), np.uint8)
    np.savez(tmp_path / "images.npz", x_train=pixels, x_test=pixels)
    monkeypatch.setattr(examples, "COMMANDS", commands)
    rows_file = tmp_path / "rows.jsonl"
    words = ["examples", "--data", str(recordings), "--out", str(rows_file), "--steps", "2"]
    words += ["--images", str(tmp_path / "images.npz")]
    monkeypatch.setattr(sys, "argv", words)
    examples.main()
    rows = read_rows(rows_file)
    assert rows[kept[0]]["steps"] == 2
    assert rows[kept[0]]["word_error"] >= 0
    assert rows[kept[0]]["gflops"] > 0
    assert rows[kept[1]]["ways"].keys() == {"c", "deer", "in turn"}
    assert rows[kept[2]]["loss"] > 0
    assert rows[kept[2]]["r2"].keys() == {"prediction", "repeated input"}
    assert all(len(values) == 10 for values in rows[kept[2]]["r2"].values())
    assert rows[kept[3]]["distance"].keys() == {"of the network", "straight on"}
    assert rows[kept[3]]["drift"] > 0
    assert rows[kept[1]]["command"].startswith("python examples/neural_ode.py --field hamiltonian")
    capsys.readouterr()
    examples.main()
    assert not capsys.readouterr().out

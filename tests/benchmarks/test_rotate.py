"""Images that turn, as a task of the trainer: turned right, and a model that learns it."""

from __future__ import annotations

import io

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from benchmarks.workloads.rotate import RotateConfig, prepare, turned
from elman.errors import RunError
from elman.train.run.run import start


@given(st.integers(2, 9), st.integers(1, 3), st.integers(1, 6), st.integers(0, 99))
def test_right_angles(side, count, turns, seed):
    """Anti-clockwise as an eye sees it: what numpy's rot90 does."""
    images = torch.randint(256, (count, side, side), generator=torch.Generator().manual_seed(seed))
    for k, frame in enumerate(turned(images.byte(), turns, 90)):
        torch.testing.assert_close(frame, torch.rot90(images / 255, k, (1, 2)), atol=1e-4, rtol=0)


@pytest.mark.slow
def test_learns(tmp_path):
    """Better than repeating the input, on half planes at random angles."""
    angles = np.random.default_rng(0).uniform(0, 2 * np.pi, 300)[:, None, None]
    y, x = np.mgrid[-5.5:6, -5.5:6]
    images = (127.5 * (1 + np.tanh(np.cos(angles) * x + np.sin(angles) * y))).astype(np.uint8)
    path = tmp_path / "bars.npz"
    np.savez(path, x_train=images[:200], x_test=images[200:])
    sizes = {"hidden": 48, "batch": 20, "turns": 4, "pixels": 140, "steps": 300}
    config = RotateConfig(data=str(path), accelerator="cpu", threads=1, engine="aten", **sizes)
    console = Console(file=io.StringIO())
    result = start(config, tmp_path, console, comparing=False).result
    assert result["valid_loss"] < 0.8 * result["baseline"]["loss"]
    assert result["valid_score"] > result["baseline"]["score"]


def test_no_images(tmp_path):
    """What is no data set is refused by the array's name."""
    np.savez(tmp_path / "a.npz", x_train=np.zeros((2, 4, 4), np.uint8), x_test=np.zeros((2, 4, 4)))
    with pytest.raises(RunError, match="no images in x_test"):
        prepare(RotateConfig(data=str(tmp_path / "a.npz")))

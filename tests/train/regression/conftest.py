"""Small sequences with targets per step and per sequence."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from elman.train.tasks.regression.data import RegressionConfig


def arrays(per_step: bool, count: int = 60, steps: int = 8, seed: int = 0) -> dict[str, np.ndarray]:
    """Random sequences; targets are a running sum, with an offset and a large unit."""
    draw = np.random.default_rng(seed)
    made = {}
    for half, rows in (("train", count), ("test", count // 2)):
        x = draw.normal(5, 2, (rows, steps, 2))
        sums = np.cumsum(x - 5, 1) @ np.array([[1.0, 0.3], [-1.0, 0.5]]) * 1e3 + 1e5
        made |= {f"x_{half}": x, f"y_{half}": sums if per_step else sums[:, -1]}
    return made


@pytest.fixture(params=[True, False], ids=["per-step", "per-sequence"])
def config(request, tmp_path) -> RegressionConfig:
    """A short run."""
    path: Path = tmp_path / "sums.npz"
    np.savez(path, **arrays(request.param))
    return RegressionConfig(
        data=str(path),
        hidden=12,
        batch=16,
        steps=14,
        validate_every=5,
        checkpoint_every=4,
        log_every=3,
        accelerator="cpu",
        threads=1,
    )

"""Audio of two classes for programs that learn to tell spoken digits apart."""

from __future__ import annotations

from pathlib import Path

import numpy as np


def write_waves(folder: Path) -> None:
    """Make a folder of a data set: waves of two frequencies, 20 to learn and 10 to read."""
    folder.mkdir()
    draw = np.random.default_rng(0)
    halves = {}
    for half, count in (("train", 20), ("test", 10)):
        y = np.arange(count) % 2
        x = np.sin(np.arange(64) * (0.2 + 0.5 * y[:, None]) + draw.uniform(0, 6, (count, 1)))
        halves |= {
            f"audio_{half}": (9000 * x).astype(np.int16).ravel(),
            f"length_{half}": np.full(count, 64),
            f"label_{half}": y,
        }
    np.savez(folder / "waves.npz", **halves)

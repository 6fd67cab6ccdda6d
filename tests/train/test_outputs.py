"""Cells with outputs of their own in every task: read-outs take the first output, as layers do."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from elman.errors import InputError
from elman.train.tasks.registry import TASKS
from products import some_of

CELLS = """
from elman import cell
from elman.ops import concat, mean, outer, tanh

GIVEN = {"input": "x[I]", "state": "h[H]", "weights": "W[H, I], R[H, H]"}

@cell(**GIVEN, output="y[H]")
def one(x, h, W, R):
    h = tanh(W @ x + R @ h)
    return 0.5 * h, h

@cell(**GIVEN, output="y[H], z[2H], s")
def several(x, h, W, R):
    h = tanh(W @ x + R @ h)
    return 0.5 * h, concat(h, -h), mean(h), h

@cell(**GIVEN, output="y[2H]")
def wide(x, h, W, R):
    h = tanh(W @ x + R @ h)
    return concat(h, -h), h

@cell(**GIVEN, output="s")
def scalar(x, h, W, R):
    h = tanh(W @ x + R @ h)
    return mean(h), h

@cell(**GIVEN, output="S[H, H]")
def matrix(x, h, W, R):
    h = tanh(W @ x + R @ h)
    return outer(h, h), h

@cell(input="x[I]", state="h[H]", weights="W[H, I], R[H, H], Q[P, H]", output="y[P]")
def free(x, h, W, R, Q):
    h = tanh(W @ x + R @ h)
    return Q @ h, h
"""
SHAPES = {"series": (8, 2), "images": (3, 3), "per step": (8, 2), "per sequence": (8, 2)}
PLACES: dict[str, tuple[str, dict[str, Any]]] = {  # where a cell runs -> the task, its options
    "text": ("text", {"data": None, "embedding": 12, "bptt": 8, "validation_chars": 300}),
    "norm": ("text", {"data": None, "embedding": 12, "norm": True, "bptt": 8}),
    "per step": ("regression", {"layers": 1}),
    "per sequence": ("regression", {}),
    "series": ("series", {}),
    "both directions": ("series", {"bidirectional": True}),
    "strides": ("series", {"strides": 2}),
    "heads": ("series", {"heads": 2}),
    "blocks": ("images", {"residual": True}),
}


@pytest.fixture
def run(train, tmp_path, small_text):
    """Run a cell somewhere: run("wide", "strides") -> Outcome."""
    (tmp_path / "own.py").write_text(CELLS)

    def run(cell: str, place: str):
        name, options = PLACES[place]
        if "data" not in options:
            draw, halves = np.random.default_rng(0), {}
            for half in ("train", "test"):
                x = draw.normal(size=(12, *SHAPES.get(place, SHAPES.get(name, (8, 2)))))
                y = x if place == "per step" else x[:, -1] if name == "regression" else None
                x = (99 + 50 * x).astype(np.uint8) if name == "images" else x
                halves |= {f"x_{half}": x, f"y_{half}": np.arange(12) % 2 if y is None else y}
            np.savez(path := tmp_path / "arrays.npz", **halves)
        every = {"hidden": 12, "batch": 4, "steps": 2, "validate_every": 1, "log_every": 1}
        every |= {"accelerator": "cpu", "threads": 1, "engine": "reference", "checkpoint_every": 2}
        every |= {"data": str(small_text if name == "text" else path)} | {
            key: value for key, value in options.items() if value is not None
        }
        return train(TASKS[name].config.of(every | {"cell": f"{tmp_path / 'own.py'}:{cell}"}))

    return run


def places(*left_out: str) -> list[Any]:
    """Texts take longer: their losses are kernels, and their baselines n-grams."""
    return [
        pytest.param(place, marks=pytest.mark.slow if PLACES[place][0] == "text" else ())
        for place in PLACES
        if place not in left_out
    ]


@pytest.mark.parametrize("place", places())
def test_the_first_of_several_outputs_is_read(run, place):
    """A run is the same as if the cell had its first output alone, but for the order of sums."""
    results = [run(cell, place).result for cell in ("one", "several")]
    for name in ("valid_loss", "valid_score"):
        assert results[0][name] == pytest.approx(results[1][name]), name


@pytest.mark.parametrize("place", places("norm", "blocks"))
def test_outputs_of_another_size_than_the_state(run, place):
    """Read-outs, and layers of strides, are as wide as what they read."""
    assert run("wide", place).complete


@pytest.mark.parametrize(
    ("cell", "place"), some_of(["wide", "scalar", "matrix"], ["norm", "blocks"], together=2)
)
def test_outputs_that_do_not_fit(run, tmp_path, cell, place):
    """They are refused before a run folder is made."""
    message = {"wide": "the output of wide has 24 units, its input 12"}
    with pytest.raises(InputError, match=message.get(cell, f"the first output of {cell} is")):
        run(cell, place)
    assert not (tmp_path / "runs").exists()


def test_dims_that_no_option_sizes(run, tmp_path):
    """A cell with further dims of its own is refused before a run folder is made."""
    with pytest.raises(InputError, match="free has a dim P of its own, which no option of a run"):
        run("free", "per step")
    assert not (tmp_path / "runs").exists()

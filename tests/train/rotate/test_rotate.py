"""The task rotate: images turned right, a model that learns it, pictures in its report."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import elman
from elman.cli._reporting import report_run
from elman.errors import InputError
from elman.train.loop.objective import SQUARES, judged
from elman.train.loop.task import Frames, unpacked
from elman.train.run.record import read_record
from elman.train.tasks.regression.task import predictions
from elman.train.tasks.rotate.data import RotateConfig, prepare, turned
from elman.train.tasks.rotate.task import build_model, pixels_of
from runs import assert_equal_runs


@pytest.fixture(scope="session")
def bars(tmp_path_factory):
    """Images of 12 x 12 with a bright half plane at a random angle."""
    draw = np.random.default_rng(0)
    angles = draw.uniform(0, 2 * np.pi, 300)
    y, x = np.mgrid[-5.5:6, -5.5:6]
    sides = np.cos(angles)[:, None, None] * x + np.sin(angles)[:, None, None] * y
    images = (127.5 * (1 + np.tanh(sides))).astype(np.uint8)
    path = tmp_path_factory.mktemp("bars") / "bars.npz"
    np.savez(path, x_train=images[:200], x_test=images[200:])
    return path


@pytest.fixture
def config(bars):
    """A short run."""
    return RotateConfig(
        data=str(bars),
        hidden=24,
        batch=20,
        turns=4,
        pixels=140,
        steps=14,
        validate_every=5,
        checkpoint_every=4,
        log_every=3,
        accelerator="cpu",
        threads=1,
    )


@given(st.integers(2, 9), st.integers(1, 3), st.integers(1, 6), st.integers(0, 99))
def test_right_angles(side, count, turns, seed):
    """Anti-clockwise as an eye sees it: what numpy's rot90 does."""
    images = torch.randint(256, (count, side, side), generator=torch.Generator().manual_seed(seed))
    frames = turned(images.byte(), turns, 90)
    for k, frame in enumerate(frames):
        torch.testing.assert_close(frame, torch.rot90(images / 255, k, (1, 2)), atol=1e-4, rtol=0)


@given(st.integers(3, 9), st.integers(3, 9), st.floats(-180, 180))
def test_any_angle_and_shape(height, width, degrees):
    """Each pixel comes from where the angle says, as the four pixels around there have it."""
    images = torch.randint(256, (1, height, width), dtype=torch.uint8)
    frame = turned(images, 1, degrees)[1, 0]
    sine, cosine = np.sin(np.radians(degrees)), np.cos(np.radians(degrees))
    padded = np.pad(images[0].numpy() / 255, 2)
    for row in range(height):
        for column in range(width):
            right, up = column - (width - 1) / 2, (height - 1) / 2 - row
            source = (right * cosine + up * sine, up * cosine - right * sine)
            x, y = source[0] + (width - 1) / 2 + 2, (height - 1) / 2 - source[1] + 2
            if not (0 <= x < width + 3 and 0 <= y < height + 3):
                assert frame[row, column] == pytest.approx(0, abs=1e-4)
                continue
            (left, a), (top, b) = (int(x), x % 1), (int(y), y % 1)
            four = padded[top : top + 2, left : left + 2]
            value = np.array([1 - b, b]) @ four @ np.array([1 - a, a])
            assert frame[row, column] == pytest.approx(value, abs=1e-3)


def test_batches(config):
    """The target is the next input, of the first pixels, in [-1, 1]; the same for the same step."""
    data = prepare(config)
    batch = data.batch(3, slice(5, 20))
    assert batch.inputs.shape == batch.targets.shape == (4, 15, 140)
    torch.testing.assert_close(batch.targets[:-1], batch.inputs[1:])
    assert -1 <= batch.inputs.min() < -0.9 < 0.9 < batch.inputs.max() <= 1
    torch.testing.assert_close(data.batch(3, slice(5, 20)).targets, batch.targets)
    assert prepare(dataclasses.replace(config, pixels=1000)).inputs == 144


def test_baseline_repeats_the_input(config):
    """Its loss is the mean square between an image and the next."""
    data = prepare(config)
    batch = data.cut(data.held)
    error = (batch.inputs - batch.targets).square().mean()
    assert data.baseline().name == "repeated input"
    assert data.baseline().loss == pytest.approx(float(error), rel=1e-5)


def test_model_is_the_formula(config):
    """No biases: h = tanh(W x + R h), y = tanh(V h)."""
    data = prepare(config)
    model = build_model(config, data)
    weights = dict(model.named_parameters())
    assert {tuple(value.shape) for value in weights.values()} == {(24, 140), (24, 24), (140, 24)}
    assert isinstance(model.layers, elman.RNN)
    w, r, v = weights.values()
    x = data.batch(0, slice(0, 3)).inputs
    h = torch.zeros(3, 24)
    for step, output in zip(x, model(x)[0], strict=True):
        h = torch.tanh(step @ w.T + h @ r.T)
        torch.testing.assert_close(output, torch.tanh(h @ v.T), atol=1e-5, rtol=1e-4)


def test_loaded_model_has_the_loss_of_the_trained_one(config, train):
    """A loaded model is the trained one: its loss on the whole held-out half."""
    config = dataclasses.replace(config, engine="reference", steps=2)
    outcome, data = train(config), prepare(config)
    run = elman.load(outcome.folder.path)
    with torch.no_grad():
        pairs = [*predictions(run.model, data.all_held_out())]
    assert judged(SQUARES, pairs).loss == pytest.approx(outcome.result["valid_loss"], rel=1e-6)
    assert not run.model.training


def test_learns(config, train, console):
    """Better than repeating the input; pictures in the report."""
    longer = dataclasses.replace(config, steps=300, hidden=48)
    outcome = train(longer, comparing=True)
    result = outcome.result
    record = read_record(outcome.folder)

    assert result["valid_loss"] < 0.8 * result["baseline"]["loss"]
    assert result["valid_r2"] > result["baseline"]["r2"]
    assert "better than the repeated input" in console.file.getvalue()
    assert result["speed"]["largest_logit_difference"] < 1e-4
    assert set(result["table"]) == {f"after turn {k}" for k in (1, 2, 3, 4)}
    assert not record.damages
    assert len(record.result.shown) == 3
    page = report_run(record).read_text(encoding="utf-8")
    assert page.count('xlink:href="data:image/png;base64,') == 3


def test_shown_frames(config, train):
    """The true ones are the held-out image turned; pixels that were cut off are black."""
    outcome = train(config)
    (first, *_) = read_record(outcome.folder).result.shown
    assert isinstance(first, Frames)
    true = np.frombuffer(unpacked(first.true_pixels), np.uint8).reshape(4, 144)
    data = prepare(config)
    right = turned(data.held[:1], 4, 10)[1:, 0].flatten(1) * 255
    assert np.abs(true[:, :140] - right.numpy()[:, :140]).max() <= 1
    assert not true[:, 140:].any()


def test_pixels_of_any_number(config):
    """A model that diverged has pictures too."""
    frames = torch.full((2, 140), torch.nan)
    frames[0, 0] = torch.inf
    assert len(unpacked(pixels_of(frames, prepare(config)))) == 2 * 144


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"momentum": 0.0, "schedule": "constant"},
        {"nesterov": True},
        {"cell": "gru", "layers": 2},
    ],
)
def test_resumed_equals_uninterrupted(config, train, resume, interrupt_at, options):
    """Bit for bit, with the optimizer's momentum and the schedule."""
    config = dataclasses.replace(config, **options)
    whole = train(config)
    interrupt_at(6)
    stopped = train(config)
    assert not stopped.complete
    assert_equal_runs(resume(stopped.folder.path).folder, whole.folder)


@pytest.mark.parametrize("name", ["turns", "pixels"])
def test_nonsense_is_refused(name):
    """Counts are at least 1, angles finite."""
    with pytest.raises(InputError, match=f"{name} must be at least 1, not 0"):
        RotateConfig(**{name: 0})
    with pytest.raises(InputError, match="degrees must be"):
        RotateConfig(degrees=float("nan"))

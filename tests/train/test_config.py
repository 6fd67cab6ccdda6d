"""The configuration: JSON and back, refused nonsense, what is measured."""

from __future__ import annotations

import json

import pytest

from elman.errors import InputError, RunError
from elman.train.loop.optimizer import SCHEDULES, learning_rate
from elman.train.loop.pace import LEAST_STEPS, settle
from elman.train.tasks.registry import TASKS, read_config
from elman.train.tasks.sequences.config import ImagesConfig, SeriesConfig
from elman.train.tasks.text.config import TextConfig


@pytest.mark.parametrize("task", TASKS)
def test_round_trip(task):
    """Through JSON text and back, equal, and of the same task."""
    config = TASKS[task].config(data="x.txt", lr=1e-3 / 3, steps=7)
    assert read_config(json.loads(json.dumps(config.to_json()))) == config


@pytest.mark.parametrize(
    "options, message",
    [
        ({"batch": 0}, "batch must be positive, not 0"),
        ({"lr": float("nan")}, "lr must be positive, not nan"),
        ({"steps": 0}, "steps must be at least 1"),
        ({"minutes": float("inf")}, "minutes must be finite, not inf"),
        ({"dropout": 1.0}, r"dropout must be in \[0, 1\)"),
        ({"temperature": -1.0}, "temperature"),
        ({"bptt": 0}, "bptt must be positive, not 0"),
        ({"optimizer": "rmsprop"}, "^optimizer must be one of adamw, sgd, not rmsprop$"),
        (
            {"schedule": "step"},
            "^schedule must be one of cosine, linear, constant, or as in stairs",
        ),
        ({"schedule": "stairs:4/0:2"}, r"as in stairs:4/13:2, not stairs:4/0:2$"),
        ({"level": "line"}, "^level must be one of char, word, not line$"),
        ({"preset": "huge"}, "^preset must be one of small, medium, large, not huge$"),
        ({"vocabulary": 1}, "^vocabulary must be at least 2, not 1$"),
        ({"uniform": 0.0}, "^uniform must be positive, not 0.0$"),
        ({"embedding_dropout": 1.0}, r"^embedding_dropout must be in \[0, 1\), not 1.0$"),
        ({"tie": True}, "embedding 64 is not hidden 256: --embedding 256$"),
        ({"momentum": 1.0, "optimizer": "sgd"}, r"momentum must be in \[0, 1\), not 1.0"),
        ({"momentum": 0.9}, "^adamw has no momentum to set: leave --momentum out, or"),
        ({"on_nonfinite": "pray"}, "^on_nonfinite must be stop or skip, not pray$"),
        ({"timeout": 0.0}, "^timeout must be positive"),
        ({"nesterov": True, "optimizer": "sgd"}, "nesterov needs a momentum above 0"),
        ({"window": 512.0}, "^adamw has no momentum that follows a window"),
        ({"window": 16.0, "optimizer": "sgd"}, "^window 16 is shorter than batch 32$"),
        ({"step_size": 0.1, "optimizer": "sgd"}, "^step_size needs a window, as in --window 512"),
        (
            {"window": 64.0, "optimizer": "sgd", "momentum": 0.9},
            "^window sets momentum to 0.5, which was given as 0.9$",
        ),
        (
            {"window": 64.0, "step_size": 0.1, "optimizer": "sgd", "lr": 1.0},
            "^step_size sets lr to 1.6, which was given as 1$",
        ),
        ({"batch": 3, "devices": 2}, "batch 3 does not divide among 2 devices$"),
        ({"batch": 6, "devices": 2, "nodes": 2}, "does not divide among 2 devices on 2 nodes$"),
    ],
)
def test_nonsense_is_refused(options, message):
    """Each with the field's name and value."""
    with pytest.raises(InputError, match=message):
        TextConfig(**options)


def test_momentum_and_rate_follow_the_minibatch():
    """momentum = 1 - B / W, rate = step size * (1 - momentum) * B; stored, and read again."""
    config = TextConfig(window=512.0, step_size=0.25, optimizer="sgd", batch=64)
    assert (config.momentum, config.lr) == (0.875, 2.0)
    assert TextConfig.from_json(config.to_json()) == config


@pytest.mark.parametrize(
    "options", [*({name: 0} for name in ("patch", "heads", "epochs", "validation_sequences"))]
)
def test_nonsense_about_sequences_is_refused(options):
    """As of every task, with the field's name."""
    (name,) = options
    with pytest.raises(InputError, match=f"{name} must be at least 1, not 0"):
        SeriesConfig(**options)


@pytest.mark.parametrize(
    "stored, reason",
    [
        ({"learning": 1}, "unknown fields: learning"),
        ({"batch": "many"}, "batch: expected an integer, got 'many'"),
        ({"batch": True}, "batch: expected an integer, got True"),
        ({"batch": -1}, "batch must be positive, not -1"),
        ({"steps": 2.5}, "steps: expected an integer, got 2.5"),
        ({"lr": 10**400}, "lr: expected a number, got 1000000"),
        ({"cell": None}, "cell: expected text, got None"),
        ({"task": "chess"}, "an unknown task: 'chess', not one of text, series, images, "),
        ({"task": None}, "an unknown task: None"),
    ],
)
def test_damaged_configuration(stored, reason):
    """Unknown tasks, unknown fields, values of the wrong kind or range: in one line."""
    with pytest.raises(RunError, match=reason):
        read_config({"task": "text"} | stored)


def test_a_whole_number_may_stand_for_another():
    """`minutes=2` from Python comes back as it was stored."""
    assert read_config({"task": "text", "minutes": 3, "steps": None}) == TextConfig(minutes=3.0)


def test_stairs_fall_after_some_stages():
    """Four of thirteen epochs at the peak, then half of it from epoch to epoch."""
    rates = [learning_rate(step, 13 * 7, 8.0, 0.0, "stairs:4/13:2") for step in range(13 * 7)]
    assert rates == [8.0 * 2.0 ** -max(0, epoch - 3) for epoch in range(13) for _ in range(7)]
    odd = [learning_rate(step, 10, 1.0, 0.2, "stairs:1/3:1.5") for step in range(10)]
    assert odd == pytest.approx([0.5, 1, 1, 1, 1, 2 / 3, 2 / 3, 2 / 3, 4 / 9, 4 / 9])


def test_steps_follow_from_the_time_of_one():
    """72 % of two minutes is training, 85 % of fifteen; given steps stay; gaps are filled."""
    config = settle(TextConfig(minutes=2), step_s=0.1, threads=3)
    assert config.steps == 864
    assert config.threads == 3
    assert settle(ImagesConfig(minutes=15), step_s=0.1, threads=3).steps == 7620
    assert config.validate_every == 144
    assert settle(TextConfig(minutes=0.01), step_s=1.0, threads=1).steps == LEAST_STEPS
    assert settle(TextConfig(steps=5, log_every=2), step_s=1.0, threads=1).log_every == 2
    assert settle(TextConfig(steps=5), step_s=1.0, threads=1).steps == 5


def test_validation_leaves_time_to_train():
    """A slow machine validates rarer and on fewer characters; a fast one as often as it may."""
    slow, fast = (settle(TextConfig(), step_s=step_s, threads=1) for step_s in (0.4, 0.04))

    assert fast.validation_chars == TextConfig().validation_chars > slow.validation_chars
    assert fast.steps // fast.validate_every >= 5
    spent = slow.validation_chars * (slow.steps / slow.validate_every) / 3 / (32 * 64 / 0.4)
    assert spent < 0.15 * 120


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_learning_rate_rises_and_falls(schedule):
    """Up to the peak at the end of the warm-up, then never up again, always positive."""
    rates = [learning_rate(step, 100, 0.5, 0.1, schedule) for step in range(100)]

    assert rates[9] == 0.5
    assert rates[:10] == sorted(rates[:10])
    assert rates[10:] == sorted(rates[10:], reverse=True)
    assert rates[-1] == 0.5 if schedule == "constant" else 0 < rates[-1] < 0.02
    assert learning_rate(0, 1, 0.5, 0.0, schedule) == 0.5

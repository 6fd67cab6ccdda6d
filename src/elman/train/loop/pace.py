"""The speed of a training step: how many fit into a run, and how many torch.nn does beside it."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from lightning_fabric import Fabric

import elman.nn
from elman.train.loop.config import Config
from elman.train.loop.layers import refuse_twin
from elman.train.loop.stepper import Stepper, make_stepper
from elman.train.loop.task import Data, Task, predictions
from elman.tuning.machine import Waiting
from elman.tuning.timing import time_interleaved

ASIDE_SHARE = 0.16  # of the whole time for reading, measuring, comparing, at most …
ASIDE_S = 30.0  # … so many seconds
VALIDATION_SHARE = 0.12  # of the whole time, at most
VALIDATIONS = 6  # at most
INFERENCE_GAIN = 3  # predicting takes about a third of the time of training
CHECKPOINTS = 4
LOG_ROWS = 400
ROUNDS = 3, 50  # of timed steps: at least, at most
LEAST_STEPS = 20


def next_step(stepper: Stepper, data: Data, rows: slice, lr: float) -> Callable[[], object]:
    """Return a callable that does one training step, each time on the next batch."""
    steps = itertools.count()
    return lambda: stepper.train(data.batch(next(steps), rows), lr)


def time_aside(config: Config) -> float:
    """Seconds of a run with a duration in which nothing is trained, at most."""
    return min(ASIDE_S, ASIDE_SHARE * 60 * config.minutes)


def settle(config: Config, step_s: float, threads: int) -> Config:
    """Fix what was left open: the number of steps from the time of one, and the intervals.

    On a slow machine validation becomes rarer and shorter, so that training keeps its share.

    Args:
        step_s: measured time of one training step (s).
        threads: torch's threads per process.
    """
    steps, validations = config.steps, VALIDATIONS
    predicted = getattr(config, config.VALIDATED)
    if steps is None:
        total = 60 * config.minutes
        training = total * (1 - VALIDATION_SHARE) - time_aside(config)
        steps = max(LEAST_STEPS, round(training / step_s))
        speed = INFERENCE_GAIN * config.items_per_step / step_s
        affordable = VALIDATION_SHARE * total * speed  # items in all
        predicted = max(config.LEAST_VALIDATED, min(predicted, round(affordable / 3)))
        validations = max(1, min(validations, round(affordable / predicted)))

    return replace(
        config,
        steps=steps,
        threads=threads,
        validate_every=config.validate_every or -(-steps // validations),
        checkpoint_every=config.checkpoint_every or -(-steps // CHECKPOINTS),
        log_every=config.log_every or max(1, steps // LOG_ROWS),
        **{config.VALIDATED: predicted},
    )


BUDGET_SHARE = 0.06  # of the whole time


def compare(stepper: Stepper, task: Task, config: Config, data: Data) -> dict[str, Any]:
    """Time training steps of a trained model and of its twin on torch.nn's layer.

    Both start from the trained weights; the trained model itself stays as it is.

    Returns:
        Items per second (median, quartiles) of both, the ratio of the medians, the share of the
        time that threads waited for a core, and by how much the two models' outputs differ; or a
        text under "skipped".
    """
    if reason := refuse_twin(config):
        return {"skipped": reason}
    if stepper.fabric.world_size > 1:
        return {"skipped": "measured on one device only"}
    weights = stepper.plain.state_dict()
    choices = elman.nn.choices(stepper.plain)
    twins = {
        name: twin(stepper.fabric, task, config, data, weights, baseline=baseline)
        for name, baseline in (("elman", False), ("torch", True))
    }
    elman.nn.pin(twins["elman"].plain, choices)
    outputs = [first_outputs(twin, data).double() for twin in twins.values()]
    runs = {
        name: next_step(twin, data, slice(0, config.batch), 0.0) for name, twin in twins.items()
    }
    waiting = Waiting()
    budget_s = min(10.0, BUDGET_SHARE * 60 * config.minutes)
    timings = time_interleaved(runs, budget_s, *ROUNDS, single=True)
    share = waiting.share()
    speeds = {name: quartiles(config, seconds) for name, seconds in timings.items()}
    return {
        "items_per_s": speeds,
        "ratio": speeds["elman"]["median"] / speeds["torch"]["median"],
        "waited": share,
        "largest_logit_difference": float((outputs[0] - outputs[1]).abs().max()),
    }


@torch.no_grad()
def first_outputs(stepper: Stepper, data: Data) -> torch.Tensor:
    """Return the outputs (logits of a classifier) for a batch, without dropout."""
    stepper.model.eval()
    outputs, _ = next(predictions(stepper.model, data.held_out()))
    stepper.model.train()
    return outputs


def twin(
    fabric: Fabric, task: Task, config: Config, data: Data, weights: dict[str, Any], baseline: bool
) -> Stepper:
    """Build a model with given weights and a fresh optimizer."""
    with torch.random.fork_rng():
        model = task.build(config, data.spec, baseline=baseline)
    model.load_state_dict(weights)
    return make_stepper(fabric, model, config, task.objective)


def quartiles(config: Config, seconds: list[float]) -> dict[str, float]:
    """Turn durations of a step into items per second: their quartiles and median."""
    speeds = [config.items_per_step / duration for duration in seconds]
    return dict(zip(("q1", "median", "q3"), statistics.quantiles(speeds, method="inclusive")))

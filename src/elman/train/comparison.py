"""The speed of a run's training step beside the same model on torch.nn, interleaved."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import torch
from lightning_fabric import Fabric

import elman.nn
from elman.train.config import Config
from elman.train.layers import without_twin
from elman.train.pace import Timing, next_step, time_interleaved
from elman.train.stepper import Stepper, make_stepper
from elman.train.task import Data, Task
from elman.tuning.waiting import Waiting

BUDGET_SHARE = 0.06  # of the whole time


def compare(stepper: Stepper, task: Task, config: Config, data: Data) -> dict[str, Any]:
    """Time training steps of a trained model and of its twin on torch.nn's layer.

    Both start from the trained weights; the trained model itself stays as it is.

    Returns:
        Items per second (median, quartiles) of both, the ratio of the medians, the share of the
        time that threads waited for a core, and by how much the two models' outputs differ; or a
        text under "skipped".
    """
    if reason := without_twin(config):
        return {"skipped": reason}
    if stepper.fabric.world_size > 1:
        return {"skipped": "measured on one device only"}
    weights = stepper.plain.state_dict()
    chosen = elman.nn.choices(stepper.plain)
    twins = {
        name: twin(stepper.fabric, task, config, data, weights, baseline=baseline)
        for name, baseline in (("elman", False), ("torch", True))
    }
    elman.nn.pin(twins["elman"].plain, chosen)
    outputs = [first_outputs(twin, data).double() for twin in twins.values()]
    runs = {
        name: next_step(twin, data, slice(0, config.batch), 0.0) for name, twin in twins.items()
    }
    waiting = Waiting()
    timings = time_interleaved(runs, budget_s=min(10.0, BUDGET_SHARE * 60 * config.minutes))
    waited = waiting.share()
    return {
        "items_per_s": {name: speed(config, timing) for name, timing in timings.items()},
        "timings": {name: asdict(timing) for name, timing in timings.items()},
        "ratio": timings["torch"].median_s / timings["elman"].median_s,
        "waited": waited,
        "largest_logit_difference": float((outputs[0] - outputs[1]).abs().max()),
    }


@torch.no_grad()
def first_outputs(stepper: Stepper, data: Data) -> torch.Tensor:
    """Return the outputs (logits of a classifier) for a batch, without dropout."""
    inputs = stepper.fabric.to_device(next(data.held_out()).inputs)
    stepper.model.eval()
    outputs, _ = stepper.model(inputs)
    stepper.model.train()
    return outputs


def twin(
    fabric: Fabric, task: Task, config: Config, data: Data, weights: dict[str, Any], baseline: bool
) -> Stepper:
    """Build a model with given weights and a fresh optimizer."""
    with torch.random.fork_rng():
        model = task.build(config, data, baseline=baseline)
    model.load_state_dict(weights)
    return make_stepper(fabric, model, config, task.objective)


def speed(config: Config, timing: Timing) -> dict[str, float]:
    """Turn durations of a step into items per second, slowest quartile first."""
    items = config.items_per_step
    return {
        "q1": items / timing.q3_s,
        "median": items / timing.median_s,
        "q3": items / timing.q1_s,
    }

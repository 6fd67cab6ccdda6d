"""The speed of a run's training step beside the same model on torch.nn, in turn."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import torch
from lightning_fabric import Fabric

import elman.nn
from elman.train.config import Config
from elman.train.model import BUILT_IN, build_model
from elman.train.pace import Timing, one_step, time_in_turn
from elman.train.stepper import Stepper, make_stepper
from elman.train.stream import Stream

BUDGET_SHARE = 0.06  # of the whole time


def compare(stepper: Stepper, config: Config, size: int, stream: Stream) -> dict[str, Any]:
    """Time training steps of a trained model and of its twin on torch.nn's layer.

    Both start from the trained weights; the trained model itself stays as it is.

    Returns:
        Characters per second (median, quartiles) of both, the ratio of the medians, and by how
        much the two models' logits differ; or a text under "skipped".
    """
    if config.cell not in BUILT_IN:
        return {"skipped": f"torch.nn has no cell like {config.cell}"}
    if stepper.fabric.world_size > 1:
        return {"skipped": "measured on one device only"}
    weights = stepper.plain.state_dict()
    chosen = elman.nn.choices(stepper.plain)
    twins = {
        "elman": twin(stepper.fabric, config, size, weights, baseline=False),
        "torch": twin(stepper.fabric, config, size, weights, baseline=True),
    }
    elman.nn.pin(twins["elman"].plain, chosen)
    logits = [first_logits(twin, stream).double() for twin in twins.values()]
    runs = {name: one_step(twin, stream, slice(None), 0.0) for name, twin in twins.items()}
    timings = time_in_turn(runs, budget_s=min(10.0, BUDGET_SHARE * 60 * config.minutes))
    return {
        "chars_per_s": {name: speed(config, timing) for name, timing in timings.items()},
        "timings": {name: asdict(timing) for name, timing in timings.items()},
        "ratio": timings["torch"].median_s / timings["elman"].median_s,
        "largest_logit_difference": float((logits[0] - logits[1]).abs().max()),
    }


@torch.no_grad()
def first_logits(stepper: Stepper, stream: Stream) -> torch.Tensor:
    """Return the logits [T, B, V] for the first segment, without dropout."""
    inputs, _ = stepper.fabric.to_device(stream.segment(0))
    stepper.model.eval()
    logits, _ = stepper.model(inputs)
    stepper.model.train()
    return logits


def twin(
    fabric: Fabric, config: Config, size: int, weights: dict[str, Any], baseline: bool
) -> Stepper:
    """Build a model with given weights and a fresh optimizer."""
    with torch.random.fork_rng():
        model = build_model(config, size, baseline=baseline)
    model.load_state_dict(weights)
    return make_stepper(fabric, model, config)


def speed(config: Config, timing: Timing) -> dict[str, float]:
    """Turn durations of a step into characters per second, slowest quartile first."""
    chars = config.chars_per_step
    return {
        "q1": chars / timing.q3_s,
        "median": chars / timing.median_s,
        "q3": chars / timing.q1_s,
    }

"""The result of a run: numbers, the task's results, and their text."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import Any

import torch

from elman.train.loop.config import Config
from elman.train.loop.loop import Loop
from elman.train.loop.objective import Score
from elman.train.loop.task import Baseline, Labels
from elman.train.run import snapshot
from elman.train.run.folder import RunFolder
from elman.train.run.record import Comparison, Skipped
from elman.train.run.stored import convert, decode
from elman.train.tasks.registry import task_of
from elman.tuning.machine import describe_waiting


@dataclass(frozen=True)
class Outcome:
    """The end of a run in this process.

    Attributes:
        first: whether this process is the one that writes.
        signal: the signal that interrupted it, if one did.
        result: the content of result.json; empty if the run is not complete.
    """

    folder: RunFolder
    complete: bool
    first: bool
    signal: int | None
    result: dict[str, Any]


def conclude(
    loop: Loop, facts: dict[str, Any], speed: dict[str, Any], began: float, earlier: float
) -> Outcome:
    """Evaluate the trained model by its task, write result.json, and print a summary.

    Args:
        began: when this process began (perf_counter).
        earlier: seconds of training steps done by earlier processes of the run (s).
    """
    config, tally, model = loop.config, loop.tally, loop.stepper.plain
    if loop.best is not None and loop.best.step != tally.step:
        snapshot.restore_weights(loop.stepper, loop.best.weights)
        tally.valid_loss, tally.valid_score = loop.best.score.loss, loop.best.score.score
    model.eval()
    with torch.no_grad():
        task_facts = task_of(config).conclude(model, loop.data, config)
    model.train()
    total = time.perf_counter() - began
    result = {
        "steps": tally.step,
        "best_step": loop.best.step if loop.best else tally.step,
        "valid_loss": tally.valid_loss,
        "valid_score": tally.valid_score,
        "baseline": facts["baseline"],
        "train_seconds": tally.seconds,
        "total_seconds": total + earlier,
        "items_per_s": tally.step * config.items_per_step / tally.seconds,
        "fallbacks": tally.all_fallbacks,
        "skipped": tally.skipped,
        "speed": speed,
        "choices": loop.choices(),
        **task_facts,
    }
    if loop.first:
        loop.folder.write("result", result)
    loop.display.say(format_result(result, config, loop.labels))
    return Outcome(loop.folder, True, loop.first, signal=None, result=result)


def format_result(result: dict[str, Any], config: Config, labels: Labels) -> str:
    """Format a result for the terminal."""
    baseline = decode(Baseline, result["baseline"])
    speed = convert(Skipped | Comparison, result["speed"])
    score = Score(result["valid_loss"], result["valid_score"])
    better = labels.better(score, baseline)
    relation = "better" if better else "NOT better"
    share = result["train_seconds"] / result["total_seconds"]
    best, steps, epochs = result["best_step"], result["steps"], getattr(config, "epochs", None)
    walked = f" (epoch {math.ceil(best * epochs / steps)} of {epochs})" if epochs else ""
    table = result.get("table", {})
    width = max(map(len, table), default=0)
    lines = [
        "",
        *("  | " + line for line in result.get("sample", "").splitlines()),
        *(f"  {name:<{width}}  {value}" for name, value in table.items()),
        "",
        f"validation: {labels.describe(score)}, {relation} than the "
        f"{describe_baseline(baseline, labels)}"
        + "; longer runs (--minutes, --steps) learn more"
        * (not better),
        f"weights:    the best in validation, of step {best} of {steps}{walked}",
        f"training:   {result['items_per_s']:,.0f} {labels.items}/s; "
        f"{result['train_seconds']:.0f} s of {result['total_seconds']:.0f} s in all ({share:.0%})",
        f"speed:      {describe_speed(speed, config.cell, labels)}",
    ]
    if result.get("skipped"):
        text = f"{result['skipped']} steps were skipped: loss or gradient was not finite"
        lines.append(f"beware:     {text}")
    return "\n".join(lines)


def describe_baseline(baseline: Baseline, labels: Labels) -> str:
    """Write a baseline on one line."""
    text = f"{baseline.name}: {labels.with_unit(baseline.loss)}"
    return text if baseline.score is None else f"{text}, {labels.score.text(baseline.score)}"


def describe_speed(speed: Skipped | Comparison, cell: str, labels: Labels) -> str:
    """Write the comparison with torch.nn on one line."""
    if isinstance(speed, Skipped):
        return f"not compared with torch.nn: {speed.skipped}"
    ours, baseline = speed.items_per_s.elman, speed.items_per_s.torch
    busy = describe_waiting(speed.waited)
    return (
        f"{speed.ratio:.2f} times as fast as torch.nn.{cell.upper()}: "
        f"{ours.median:,.0f} {labels.items}/s ({ours.q1:,.0f} to {ours.q3:,.0f}), torch.nn "
        f"{baseline.median:,.0f} ({baseline.q1:,.0f} to {baseline.q3:,.0f}); "
        f"outputs agree to {speed.largest_logit_difference:.1e}{busy and f'. {busy}'}"
    )

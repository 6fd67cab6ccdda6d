"""What came out of a run: numbers, what the task shows, and the words for them."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import Any

import torch

from elman.train.loop.config import Config
from elman.train.loop.loop import Loop
from elman.train.loop.metrics import Tally
from elman.train.loop.objective import Score
from elman.train.loop.task import Baseline, Words
from elman.train.run import snapshot
from elman.train.run.folder import RunFolder
from elman.train.run.record import Compared, Skipped
from elman.train.run.stored import filled, typed
from elman.train.tasks.registry import task_of
from elman.tuning.waiting import waiting_in_words


@dataclass(frozen=True)
class Outcome:
    """How a run ended in this process.

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
    """Let the task look at its model, write result.json, and say how it went.

    Args:
        began: when this process began (perf_counter).
        earlier: seconds of training steps done by earlier processes of the run (s).
    """
    config = loop.config
    tally = with_best(loop)
    task_facts = looked_at(loop)
    total = time.perf_counter() - began
    result = {
        "steps": tally.step,
        "best_step": loop.best.step if loop.best else tally.step,
        "valid_loss": tally.valid_loss,
        loop.words.score.column: getattr(tally, loop.words.score.column),
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
    loop.display.say(told_at_end(result, config, loop.words))
    return Outcome(loop.folder, True, loop.first, signal=None, result=result)


def with_best(loop: Loop) -> Tally:
    """Give the model the weights that did best in validation; what the run has come to, with what
    was found of them."""
    best = loop.best
    if best is None or best.step == loop.tally.step:
        return loop.tally
    snapshot.restore_weights(loop.stepper, best.weights)
    return loop.tally.validated(best.found, loop.words.score.column)


def looked_at(loop: Loop) -> dict[str, Any]:
    """Return what the task has to say of the trained model."""
    model = loop.stepper.plain
    was_training = model.training
    model.eval()
    with torch.no_grad():
        facts = task_of(loop.config).conclude(model, loop.data, loop.config)
    model.train(was_training)
    return facts


def told_at_end(result: dict[str, Any], config: Config, words: Words) -> str:
    """Write a result for the terminal."""
    baseline = filled(Baseline, result["baseline"])
    speed = typed(Skipped | Compared, result["speed"])
    found = Score(result["valid_loss"], result[words.score.column])
    better = words.better(found, baseline.found(words.score))
    verdict = "better" if better else "NOT better"
    share = result["train_seconds"] / result["total_seconds"]
    lines = [
        "",
        *("  | " + line for line in result.get("sample", "").splitlines()),
        *table_in_words(result.get("table", {})),
        "",
        f"validation: {words.in_words(found)}, {verdict} than the {in_words(baseline, words)}",
        f"weights:    {best_in_words(result, config)}",
        f"training:   {result['items_per_s']:,.0f} {words.items}/s; "
        f"{result['train_seconds']:.0f} s of {result['total_seconds']:.0f} s in all ({share:.0%})",
        f"speed:      {speed_in_words(speed, config.cell, words)}",
    ]
    if result.get("skipped"):
        text = f"{result['skipped']} steps were skipped: loss or gradient was not finite"
        lines.append(f"beware:     {text}")
    return "\n".join(lines)


def best_in_words(result: dict[str, Any], config: Config) -> str:
    """Write on one line which weights all of a result is of."""
    best, steps = result["best_step"], result["steps"]
    epochs = getattr(config, "epochs", None)
    walked = f" (epoch {math.ceil(best * epochs / steps)} of {epochs})" if epochs else ""
    return f"the best in validation, of step {best} of {steps}{walked}"


def table_in_words(table: dict[str, Any]) -> list[str]:
    """Write a task's table, a row per line."""
    width = max((len(name) for name in table), default=0)
    return [f"  {name:<{width}}  {value}" for name, value in table.items()]


def in_words(baseline: Baseline, words: Words) -> str:
    """Write a baseline on one line."""
    text, score = f"{baseline.name}: {words.with_unit(baseline.loss)}", baseline.score(words.score)
    return text if score is None else f"{text}, {words.score.text(score)}"


def speed_in_words(speed: Skipped | Compared, cell: str, words: Words) -> str:
    """Write the comparison with torch.nn on one line."""
    if isinstance(speed, Skipped):
        return f"not compared with torch.nn: {speed.skipped}"
    ours, other = speed.items_per_s.elman, speed.items_per_s.torch
    busy = waiting_in_words(speed.waited)
    return (
        f"{ours.median:,.0f} {words.items}/s ({ours.q1:,.0f} to {ours.q3:,.0f}) beside "
        f"torch.nn.{cell.upper()}'s {other.median:,.0f} ({other.q1:,.0f} to "
        f"{other.q3:,.0f}): {speed.ratio:.2f}x, "
        f"outputs within {speed.largest_logit_difference:.1e}{busy and f'. {busy}'}"
    )

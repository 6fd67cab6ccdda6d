"""What came out of a run: numbers, a sample, and the words for them."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from elman.train.folder import RunFolder
from elman.train.loop import Loop
from elman.train.sample import generate
from elman.train.vocabulary import Vocabulary

SAMPLE_CHARS = 500


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
    loop: Loop,
    vocabulary: Vocabulary,
    facts: dict[str, Any],
    speed: dict[str, Any],
    began: float,
    earlier: float,
) -> Outcome:
    """Generate a sample, write result.json, and say how it went.

    Args:
        began: when this process began (perf_counter).
        earlier: seconds of training steps done by earlier processes of the run (s).
    """
    config, tally = loop.config, loop.tally
    sample = generate(loop.stepper.plain, vocabulary, SAMPLE_CHARS, config.temperature, config.seed)
    total = time.perf_counter() - began
    result = {
        "steps": tally.step,
        "valid_bpc": tally.valid_bpc,
        "trigram_bpc": facts["trigram_bpc"],
        "train_seconds": tally.seconds,
        "total_seconds": total + earlier,
        "chars_per_s": tally.step * config.chars_per_step / tally.seconds,
        "speed": speed,
        "choices": loop.choices(),
        "sample": sample,
    }
    if loop.first:
        loop.folder.write("result", result)
    loop.display.say(in_words(result, config.cell))
    return Outcome(loop.folder, True, loop.first, signal=None, result=result)


def in_words(result: dict[str, Any], cell: str) -> str:
    """Write a result for the terminal."""
    model, trigram = result["valid_bpc"], result["trigram_bpc"]
    verdict = "below" if model < trigram else "NOT below"
    share = result["train_seconds"] / result["total_seconds"]
    lines = [
        "",
        *("  | " + line for line in result["sample"].splitlines()),
        "",
        f"validation: {model:.3f} bits per character, {verdict} the trigram's {trigram:.3f}",
        f"training:   {result['chars_per_s']:,.0f} characters/s; {result['train_seconds']:.0f} s "
        f"of {result['total_seconds']:.0f} s in all ({share:.0%})",
        f"speed:      {speed_in_words(result['speed'], cell)}",
    ]
    return "\n".join(lines)


def speed_in_words(speed: dict[str, Any], cell: str) -> str:
    """Write the comparison with torch.nn on one line."""
    if "skipped" in speed:
        return f"not compared with torch.nn: {speed['skipped']}"
    own, other = speed["chars_per_s"]["elman"], speed["chars_per_s"]["torch"]
    return (
        f"{own['median']:,.0f} characters/s ({own['q1']:,.0f} to {own['q3']:,.0f}) beside "
        f"torch.nn.{cell.upper()}'s {other['median']:,.0f} ({other['q1']:,.0f} to "
        f"{other['q3']:,.0f}): {speed['ratio']:.2f}x, "
        f"logits within {speed['largest_logit_difference']:.1e}"
    )

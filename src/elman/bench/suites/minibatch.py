"""Suite ``minibatch``: how many samples does learning take as the minibatch grows?"""

from __future__ import annotations

from typing import Any

from elman.bench.cases import Case, Suite
from elman.bench.claims import Claim, Rows, UnmeasuredError, Verdict, curve
from elman.bench.learning_studies import STEP_SIZE, TARGET, WINDOW

SIZES = (4, 8, 16, 32, 64, 128, 256, 512)
BUDGET = 40_000  # samples in all, at most
_TWICE = 2.0  # times the fewest samples from which a minibatch is too large


def name_of(minibatch: int) -> str:
    """The case of a minibatch."""
    return f"minibatch {minibatch}"


def samples(rows: Rows) -> dict[int, float]:
    """Samples to the target by minibatch, of those that came to it.

    Raises:
        UnmeasuredError: none did.
    """
    found = {B: rows[name_of(B)]["samples"] for B in SIZES if name_of(B) in rows}
    found = {B: count for B, count in found.items() if count is not None}
    if not found:
        raise UnmeasuredError("no minibatch came to the target")
    return found


def bound(rows: Rows) -> int:
    """The largest minibatch that takes less than twice as many samples as the best one."""
    found = samples(rows)
    return max(B for B, count in found.items() if count < _TWICE * min(found.values()))


def _bounded(rows: Rows) -> Verdict:
    most, tried = bound(rows), max(B for B in SIZES if name_of(B) in rows)
    return Verdict(
        most < tried,
        f"{most} samples",
        f"beyond it a loss of {TARGET} bits per character takes at least {_TWICE:g} times as many "
        "samples as at best: fewer, larger steps",
    )


def _followed(rows: Rows) -> Verdict:
    found = samples(rows)
    below = {B: count for B, count in found.items() if bound(rows) >= B}
    spread = max(below.values()) / min(below.values())
    widest = max(below) / min(below)
    return Verdict(
        widest >= 4 and spread <= _TWICE,
        f"{spread:.2f}x over minibatches {min(below)} to {max(below)}",
        f"momentum 1 - minibatch / {WINDOW:g}, learning rate {STEP_SIZE:g} (1 - momentum) "
        "minibatch, nothing else tuned",
    )


def _plots(rows: Rows) -> list[dict[str, Any]]:
    """Samples and steps by minibatch."""
    try:
        found = samples(rows)
    except UnmeasuredError:
        return []
    steps = {B: count / B for B, count in found.items()}
    return [
        curve("to the same loss", "minibatch", "samples", "xy", {"samples": [*found.items()]}),
        curve("to the same loss", "minibatch", "training steps", "xy", {"steps": [*steps.items()]}),
    ]


MINIBATCH = Suite(
    "minibatch",
    "How many samples does learning take as the minibatch grows?",
    tuple(
        Case(name_of(B), "samples", "lstm", 32, B, 128, steps=BUDGET // B, quick=B in (64, 256))
        for B in SIZES
    ),
    source="Diamos, Persistent RNNs: 30 times faster RNN layers at small minibatches (Baidu, 2016)",
    claims=(
        Claim("minibatch", "optimization sets an upper bound, found empirically", "", _bounded),
        Claim("minibatch", "momentum and learning rate follow the minibatch", "", _followed),
    ),
    plots=_plots,
)

"""Suite ``minibatch``: how many samples does learning take as the minibatch grows?"""

from __future__ import annotations

import math
from contextlib import suppress
from statistics import mean

from benchmarks.cases import Suite, TrainedCase
from benchmarks.claims import Claims, Rows, UnmeasuredError, fit_trend
from benchmarks.studies import SAMPLES, STEP_SIZE, STEP_SIZES, TARGET, WINDOW
from benchmarks.sweeps import Sweep

SIZES = (4, 8, 16, 32, 64, 128, 256, 512)
BUDGET = 40_000  # samples in all, at most
_TWICE = 2.0  # times the fewest samples from which a minibatch is too large
CLAIMS = Claims()


def name_of(minibatch: int) -> str:
    """The case of a minibatch."""
    return f"minibatch {minibatch}"


Counts = dict[int, list[int | None]]  # samples of each seed to the target, by minibatch


def samples(rows: Rows, step_size: str = "") -> Counts:
    """Samples to the target by minibatch: without a warm-up, or with one and a step size.

    Raises:
        UnmeasuredError: no seed came to the target.
    """
    measured = {B: rows[name_of(B)] for B in SIZES if name_of(B) in rows}
    by_size = {
        B: row["warm"].get(step_size, []) if step_size else row.get("each", [row["samples"]])
        for B, row in measured.items()
        if "warm" in row or not step_size
    }
    if not any(count is not None for counts in by_size.values() for count in counts):
        raise UnmeasuredError("no minibatch came to the target")
    return by_size


def fitted(by_size: Counts) -> dict[int, float]:
    """Samples by minibatch, of those to which most seeds came: the curve that never falls and is
    closest to all seeds in the logarithm. Minibatches between which it would fall share a value."""
    blocks: list[tuple[list[int], list[float]]] = []
    for B, counts in by_size.items():
        successes = [count for count in counts if count is not None]
        if 2 * len(successes) < len(counts) or not successes:
            continue
        sizes, values = [B], [math.log(count) for count in successes]
        while blocks and mean(blocks[-1][1]) > mean(values):
            sizes, values = blocks[-1][0] + sizes, blocks[-1][1] + values
            blocks.pop()
        blocks.append((sizes, values))
    return {B: math.exp(mean(values)) for sizes, values in blocks for B in sizes}


def bound(by_size: Counts) -> int:
    """The largest minibatch for which the fitted curve is below twice its least value.

    Raises:
        UnmeasuredError: most seeds came to the target with no minibatch.
    """
    fit = fitted(by_size)
    if not fit:
        raise UnmeasuredError("most seeds came to the target with no minibatch")
    return max(B for B, count in fit.items() if count < _TWICE * min(fit.values()))


@CLAIMS(
    *("minibatch", "optimization sets an upper bound, found empirically"),
    holds="larger steps are fewer, and no step makes up for two",
    fails="no minibatch that was tried is large enough",
)
def bounded(rows: Rows):
    by_size = samples(rows)
    most = bound(by_size)
    if len(by_size) < 3:
        raise UnmeasuredError("fewer than three minibatches were measured")
    facts = (
        f"beyond it a loss of {TARGET} bits per character takes at least {_TWICE:g} times as many "
        f"samples as at best, or is not reached, by the rising curve through {len(by_size[most])} "
        f"of each minibatch; {max(by_size)} tried"
    )
    return most < max(by_size), f"{most} samples", facts


def _reach(by_size: Counts) -> tuple[bool, str]:
    """Whether learning is alike over a range of minibatches that is wide enough, and the range."""
    most = bound(by_size)
    points = [
        (float(B), float(count))
        for B, counts in by_size.items()
        if most >= B
        for count in counts
        if count is not None
    ]
    least = min(B for B, _ in points)
    if most < 4 * least:
        return False, f"alike from {least:g} to {most} alone"
    trend = fit_trend(points)
    return not trend.rises, f"samples grow with B^({trend}) over minibatches {least:g} to {most}"


_ASKED = "asked for is a minibatch four times as large that needs no more samples"


@CLAIMS(
    *("minibatch", "momentum and learning rate follow the minibatch"),
    holds="a sample moves the weights by as much in every minibatch",
    fails="a sample moves the weights by as much in every minibatch, but small ones move them in "
    "directions that the next sample corrects",
)
def followed(rows: Rows):
    facts = (
        f"momentum 1 - minibatch / {WINDOW:g}, learning rate {STEP_SIZE:g} (1 - momentum) "
        f"minibatch, nothing else tuned; {_ASKED}"
    )
    return (*_reach(samples(rows)), facts)


@CLAIMS(
    *("minibatch", "… behind a warm-up, with the best of some step sizes"),
    holds="the first steps, which large minibatches take too far, are short ones",
    fails="samples of a minibatch are summed before any of them moves the weights: a step as long "
    "as those of many small minibatches is no longer downhill, early or late",
)
def warm_up(rows: Rows):
    by_step = {}
    for size in map("{:g}".format, STEP_SIZES):
        with suppress(UnmeasuredError):
            by_size = samples(rows, size)
            by_step[size] = min(fitted(by_size).values(), default=math.inf), by_size
    if not by_step:
        raise UnmeasuredError("no minibatch came to the target behind a warm-up")
    size, (least, by_size) = min(by_step.items(), key=lambda item: item[1][0])
    facts = f"step size {size}, which needs {least:.0f} samples at best; {_ASKED}"
    return (*_reach(by_size), facts)


def _fit_at(rows: Rows, name: str, B: int) -> float:
    fit = fitted(samples(rows, "" if name == "fit" else f"{STEP_SIZE:g}"))
    if B not in fit:
        raise UnmeasuredError(f"few seeds came to the target with a minibatch of {B}")
    return fit[B]


def _case(B: int) -> TrainedCase:
    name, quick = name_of(B), B in (16, 64, 256)
    return TrainedCase(name, SAMPLES, "lstm", 32, B, 128, steps=BUDGET // B, quick=quick)


MINIBATCH = Suite(
    "minibatch",
    "How many samples does training need as the minibatch grows?",
    tuple(map(_case, SIZES)),
    source="Diamos, Persistent RNNs: 30 times faster RNN layers at small minibatches (Baidu, 2016)",
    claims=CLAIMS,
    sweep=Sweep(
        f"samples to {TARGET} bits per character, the rising curve through all seeds",
        *("minibatch", "samples", SIZES, ("fit", "behind a warm-up")),
        _fit_at,
    ),
)

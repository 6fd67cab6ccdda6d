"""Suite ``minibatch``: how many samples does learning take as the minibatch grows?"""

from __future__ import annotations

import math
from statistics import mean, median_low
from typing import Any

from benchmarks.cases import Suite, TrainedCase
from benchmarks.claims import Answer, Claims, Rows, UnmeasuredError, fit_trend, opposite
from benchmarks.studies import SAMPLES, TARGET, WINDOW
from benchmarks.sweeps import Sweep

SIZES = (4, 8, 16, 32, 64, 128, 256, 512)
BUDGET = 40_000  # samples in all, at most
_TWICE = 2.0  # times the fewest samples from which a minibatch is too large
SERIES = {"fit": "cold", "behind a warm-up": "warm"}
CLAIMS = Claims()


def name_of(minibatch: int) -> str:
    """The case of a minibatch."""
    return f"minibatch {minibatch}"


Counts = dict[int, list[int | None]]  # samples of each seed to the target, by minibatch


def counts_of(rows: Rows, series: str) -> dict[str, Counts]:
    """Samples to the target by step size and minibatch, "cold" or "warm" (behind a warm-up).

    Raises:
        UnmeasuredError: no seed came to the target.
    """
    measured = {B: rows[name_of(B)][series] for B in SIZES if name_of(B) in rows}
    sizes = dict.fromkeys(size for counts in measured.values() for size in counts)
    by_step = {
        size: {B: counts[size] for B, counts in measured.items() if size in counts}
        for size in sizes
    }
    if not any(map(fitted, by_step.values())):
        raise UnmeasuredError("no minibatch came to the target")
    return by_step


def best_of(by_step: dict[str, Counts]) -> tuple[str, Counts]:
    """The step size with which the best minibatch needs the fewest samples."""
    least = {
        size: min(fitted(counts).values(), default=math.inf) for size, counts in by_step.items()
    }
    size = min(least, key=least.__getitem__)
    return size, by_step[size]


def tuned(by_step: dict[str, Counts]) -> Counts:
    """Of each minibatch the counts with the step size with which it needs the fewest samples."""
    minibatches = dict.fromkeys(B for counts in by_step.values() for B in counts)
    return {
        B: min((counts[B] for counts in by_step.values() if B in counts), key=_typical)
        for B in minibatches
    }


def _typical(counts: list[int | None]) -> float:
    """The median over seeds, those that did not come to the target being beyond all."""
    return median_low(math.inf if count is None else count for count in counts)


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
    by_size = tuned(counts_of(rows, "cold"))
    most = bound(by_size)
    if len(by_size) < 3:
        raise UnmeasuredError("fewer than three minibatches were measured")
    facts = (
        f"beyond it a loss of {TARGET} bits per character takes at least {_TWICE:g} times as many "
        "samples as at best, or is not reached, with the best step size of each minibatch, by the "
        f"rising curve through {len(by_size[most])} seeds of each; {max(by_size)} tried"
    )
    return most < max(by_size), f"{most} samples", facts


def _reach(by_size: Counts) -> tuple[Answer, str]:
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
    text = f"samples grow with B^({trend}) over minibatches {least:g} to {most}"
    return opposite(trend.rises), text


def _followed(rows: Rows, series: str) -> tuple[Answer, str, str]:
    """The rule with one step size for all minibatches."""
    by_step = counts_of(rows, series)
    size, by_size = best_of(by_step)
    facts = (
        f"step size {size}, of {', '.join(by_step)} the one that needs the fewest samples at best; "
        f"momentum 1 - minibatch / {WINDOW:g}, learning rate step size (1 - momentum) minibatch; "
        "asked for is a minibatch four times as large that needs no more samples"
    )
    return (*_reach(by_size), facts)


@CLAIMS(
    *("minibatch", "momentum and learning rate follow the minibatch"),
    holds="a sample moves the weights by as much in every minibatch",
    fails="a sample moves the weights by as much in every minibatch, but small ones move them in "
    "directions that the next sample corrects",
)
def followed(rows: Rows):
    return _followed(rows, "cold")


@CLAIMS(
    *("minibatch", "… behind a warm-up"),
    holds="the first steps, which large minibatches take too far, are short ones",
    fails="samples of a minibatch are summed before any of them moves the weights: a step as long "
    "as those of many small minibatches is no longer downhill, early or late",
)
def warm_up(rows: Rows):
    return _followed(rows, "warm")


def _fit_at(rows: Rows, name: str, B: int) -> float:
    fit = fitted(best_of(counts_of(rows, SERIES[name]))[1])
    if B not in fit:
        raise UnmeasuredError(f"few seeds came to the target with a minibatch of {B}")
    return fit[B]


def _case(B: int) -> TrainedCase:
    name, quick = name_of(B), B in (16, 64, 256)
    options: dict[str, Any] = {"steps": BUDGET // B, "threads": 1, "quick": quick}
    return TrainedCase(name, SAMPLES, "lstm", 32, B, 128, **options)


MINIBATCH = Suite(
    "minibatch",
    "How many samples does training need as the minibatch grows?",
    tuple(map(_case, SIZES)),
    source="Diamos, Persistent RNNs: 30 times faster RNN layers at small minibatches (Baidu, 2016)",
    claims=CLAIMS,
    sweep=Sweep(
        f"samples to {TARGET} bits per character, the rising curve through all seeds",
        *("minibatch", "samples", SIZES, tuple(SERIES)),
        _fit_at,
    ),
)

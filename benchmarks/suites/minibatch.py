"""Suite ``minibatch``: how many samples does learning take as the minibatch grows?"""

from __future__ import annotations

import math
from statistics import mean

from benchmarks.cases import Suite, TrainedCase
from benchmarks.claims import Claims, Rows, UnmeasuredError, fit_trend
from benchmarks.rows import Row
from benchmarks.studies import SAMPLES, STEP_SIZE, TARGET, WINDOW
from benchmarks.sweeps import Sweep

SIZES = (4, 8, 16, 32, 64, 128, 256, 512)
BUDGET = 40_000  # samples in all, at most
_TWICE = 2.0  # times the fewest samples from which a minibatch is too large
CLAIMS = Claims()


def name_of(minibatch: int) -> str:
    """The case of a minibatch."""
    return f"minibatch {minibatch}"


def samples(rows: Rows) -> dict[int, list[int]]:
    """Samples to the target by minibatch, of the seeds that came to it.

    Raises:
        UnmeasuredError: none did.
    """
    by_size = {B: counts(rows[name_of(B)]) for B in SIZES if name_of(B) in rows}
    if not any(by_size.values()):
        raise UnmeasuredError("no minibatch came to the target")
    return by_size


def counts(row: Row) -> list[int]:
    """Samples of the seeds that came to the target."""
    by_seed = row.get("each", [row["samples"]])  # rows of one seed have no more than that
    return [count for count in by_seed if count is not None]


def fitted(rows: Rows) -> dict[int, float]:
    """Samples by minibatch, of those to which most seeds came: the curve that never falls and is
    closest to all seeds in the logarithm. Minibatches between which it would fall share a value."""
    blocks: list[tuple[list[int], list[float]]] = []
    for B, samples_to_target in samples(rows).items():
        if 2 * len(samples_to_target) < _seeds(rows, B) or not samples_to_target:
            continue
        sizes, values = [B], [math.log(count) for count in samples_to_target]
        while blocks and mean(blocks[-1][1]) > mean(values):
            sizes, values = blocks[-1][0] + sizes, blocks[-1][1] + values
            blocks.pop()
        blocks.append((sizes, values))
    return {B: math.exp(mean(values)) for sizes, values in blocks for B in sizes}


def _seeds(rows: Rows, B: int) -> int:
    return len(rows[name_of(B)].get("each", [0]))


def bound(rows: Rows) -> int:
    """The largest minibatch for which the fitted curve is below twice its least value.

    Raises:
        UnmeasuredError: most seeds came to the target with no minibatch.
    """
    fit = fitted(rows)
    if not fit:
        raise UnmeasuredError("most seeds came to the target with no minibatch")
    return max(B for B, count in fit.items() if count < _TWICE * min(fit.values()))


@CLAIMS(
    *("minibatch", "optimization sets an upper bound, found empirically"),
    holds="larger steps are fewer, and no step makes up for two",
    fails="no minibatch that was tried is large enough",
)
def bounded(rows: Rows):
    most, tried = bound(rows), [B for B in SIZES if name_of(B) in rows]
    if len(tried) < 3:
        raise UnmeasuredError("fewer than three minibatches were measured")
    facts = (
        f"beyond it a loss of {TARGET} bits per character takes at least {_TWICE:g} times as many "
        f"samples as at best, or is not reached, by the rising curve through {_seeds(rows, most)} "
        f"of each minibatch; {max(tried)} tried"
    )
    return most < max(tried), f"{most} samples", facts


@CLAIMS(
    *("minibatch", "momentum and learning rate follow the minibatch"),
    holds="a sample moves the weights by as much in every minibatch",
    fails="a sample moves the weights by as much in every minibatch, but small ones move them in "
    "directions that the next sample corrects",
)
def followed(rows: Rows):
    by_size, most = samples(rows), bound(rows)
    points = [(float(B), float(count)) for B in by_size if most >= B for count in by_size[B]]
    least = min(B for B, _ in points)
    facts = (
        f"momentum 1 - minibatch / {WINDOW:g}, learning rate {STEP_SIZE:g} (1 - momentum) "
        "minibatch, nothing else tuned; asked for is a minibatch four times as large that needs no "
        "more samples"
    )
    if most < 4 * least:
        return False, f"alike from {least:g} to {most} alone", facts
    trend = fit_trend(points)
    text = f"samples grow with B^({trend}) over minibatches {least:g} to {most}"
    return not trend.rises, text, facts


def _fit_at(rows: Rows, name: str, B: int) -> float:
    fit = fitted(rows)
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
        *("minibatch", "samples", SIZES, ("fit",)),
        _fit_at,
    ),
)

"""Suite ``depth``: do residual layers let deep recurrent networks learn?"""

from __future__ import annotations

from statistics import mean
from typing import Any

from benchmarks.cases import Suite, TrainedCase
from benchmarks.claims import (
    Answer,
    Claims,
    Rows,
    UnmeasuredError,
    difference,
    every,
    opposite,
    some,
)
from benchmarks.studies import RESIDUAL
from benchmarks.sweeps import Sweep

LAYERS = (1, 3, 10, 30, 100)
STEPS = 2000
_DEEP = 10  # layers from which a stack is deep
_LOSS = 0.02  # bits per character that a deeper stack may lose
Losses = dict[int, list[float]]  # bits per character of each seed, by layers
CLAIMS = Claims()


def name_of(layers: int) -> str:
    """The case of a depth."""
    return f"{layers} layers"


def measured(rows: Rows) -> list[int]:
    """The depths that were trained.

    Raises:
        UnmeasuredError: no deep stack was.
    """
    rows.among(map(name_of, (n for n in LAYERS if n >= _DEEP)), "no deep stack was trained")
    return [n for n in LAYERS if name_of(n) in rows]


def bits(rows: Rows, kind: str) -> Losses:
    """Losses at the end of one kind of stacks."""
    return {n: rows[name_of(n)]["bits"][kind] for n in measured(rows)}


def bits_at_equal_time(rows: Rows, kind: str) -> Losses:
    """Losses when as much time is over as the fastest of all stacks takes for all its steps: of the
    last validation before."""
    depths = measured(rows)
    rows.timed.update(map(name_of, depths))
    times = {n: mean(rows[name_of(n)]["step_s"][kind]) for n in depths}
    budget = STEPS * min(times.values())
    return {
        n: [_before(curve, budget / times[n]) for curve in rows[name_of(n)]["curves"][kind]]
        for n in depths
    }


def _before(curve: list[tuple[int, float]], steps: float) -> float:
    """The loss at the last validation before a step; at the first one if there is none."""
    return next((loss for step, loss in reversed(curve) if step <= steps), curve[0][1])


@CLAIMS(
    *("residual", "residual skip connections apply to RNNs"),
    holds="with its input added, the gradient of a layer's output reaches the layers below whole",
    fails="the sum of all layers' outputs grows with their number, and nothing in these stacks "
    "brings it back",
)
def applies(rows: Rows):
    plain, residual = bits(rows, "plain"), bits(rows, "residual")
    gains = {n: difference(plain[n], residual[n]) for n in plain if n >= _DEEP}
    text = ", ".join(f"{gain} at {n}" for n, gain in gains.items())
    seeds = min(map(len, plain.values()))
    facts = f"gained over plain stacks, means over {seeds} seeds with their standard errors"
    return every(gain.exceeds(0) for gain in gains.values()), f"{text} layers", facts


def _beside_one(by_layers: Losses, facts: str) -> tuple[Answer, str, str]:
    """Whether stacks that are deep learn at least as well as one layer does."""
    if 1 not in by_layers:
        raise UnmeasuredError("one layer was not trained")
    losses = {n: difference(by_layers[n], by_layers[1]) for n in by_layers if n >= _DEEP}
    text = ", ".join(f"{mean(values):.3f} at {n}" for n, values in by_layers.items())
    differences = ", ".join(f"{loss} at {n}" for n, loss in losses.items())
    facts = (
        f"{facts}; possible is what learns as well as one layer to {_LOSS:g} bits, and the "
        f"differences are {differences}"
    )
    answer = opposite(some(loss.exceeds(_LOSS) for loss in losses.values()))
    return answer, f"{text} (bits per character)", facts


_NORMS = "a norm in front of each layer and behind the last"
_READS = "each layer reads numbers of size one, however many layers were added before"


@CLAIMS(
    *("residual", "models with more layers become possible"),
    holds=_READS,
    fails="deep stacks have not learned as much after as many steps",
)
def deeper(rows: Rows):
    facts = f"after {STEPS} steps of the same optimizer, with {_NORMS}"
    return _beside_one(bits(rows, "norms"), facts)


@CLAIMS(
    *("residual", "… with as many parameters"),
    holds=_READS,
    fails="deep stacks of few units have not learned as much after as many steps",
)
def equal_parameters(rows: Rows):
    units = ", ".join(f"{rows[name_of(n)]['units']} at {n}" for n in measured(rows))
    return _beside_one(bits(rows, "equal"), f"after {STEPS} steps, with {_NORMS}; units: {units}")


@CLAIMS(
    *("residual", "… and in as much time"),
    holds=f"{_READS}, and what depth costs in steps it gains in each",
    fails="a step of a deep stack takes as long as many steps of a shallow one",
)
def equal_time(rows: Rows):
    facts = "the time of all steps of the fastest stack, on one core, with as many parameters"
    return _beside_one(bits_at_equal_time(rows, "equal"), facts)


_SIZES: dict[str, Any] = {"cell": "gru", "T": 32, "B": 8, "H": 64, "steps": STEPS, "threads": 1}
DEPTH = Suite(
    "depth",
    "Do residual layers let deep recurrent networks learn?",
    tuple(
        TrainedCase(name_of(n), RESIDUAL, layers=n, quick=n in (1, 10), **_SIZES) for n in LAYERS
    ),
    source="Diamos, Persistent RNNs: 30 times faster RNN layers at small minibatches (Baidu, 2016)",
    claims=CLAIMS,
    sweep=Sweep(
        f"after {STEPS} training steps",
        *("layers", "bits per character", LAYERS, ("plain", "residual", "norms", "equal")),
        lambda rows, name, n: mean(rows[name_of(n)]["bits"][name]),
        log="x",
    ),
)

"""Suite ``persistent``: what recurrent weights gain that stay on the chip over all steps."""

from __future__ import annotations

from typing import Any

from benchmarks.cases import Suite, sized
from benchmarks.claims import (
    Answer,
    Claims,
    Rows,
    UnmeasuredError,
    at_least,
    every,
    fit_trend,
    some,
)
from benchmarks.contestants import FORWARD
from benchmarks.measures.phases import PHASES
from benchmarks.sweeps import Sweep
from elman.engines.base import WAITING

T, INPUTS = 64, 16  # as the paper's program for its kernels; few inputs, so that R is the work
UNITS = (512, 1152)  # weights of 1 MiB, half of them in each core's cache; the paper's layer
SIZES = (1, 2, 4, 8, 16, 32, 64)
SMALL = 4  # the paper's minibatch
RESIDENT, STEPPED, COLD = "elman-c", "stepped", "reloaded"
WAYS = {RESIDENT: "resident", STEPPED: "a product per step", COLD: "weights from memory"}
_BARRIER = 500 / (430 + 320 + 315 + 500)  # of a step
_MARGIN = 0.02  # by which shares of a time differ from run to run
_QUICK = tuple((512, B) for B in (1, 4, 64))
CLAIMS = Claims()


def name_of(H: int, B: int) -> str:
    """The case of a layer and a minibatch."""
    return f"resident {T},{B},{H}"


def phases_of(H: int) -> str:
    """The case that parts a step's time."""
    return f"phases {T},{SMALL},{H}"


def _sizes(rows: Rows, H: int) -> list[int]:
    return [B for B in SIZES if name_of(H, B) in rows]


def _measured_units(rows: Rows) -> list[int]:
    """The layers that were measured."""
    rows.among((name_of(H, B) for H in UNITS for B in SIZES), "no layer was measured")
    return [H for H in UNITS if _sizes(rows, H)]


@CLAIMS(
    *("title", "30 times as fast at a minibatch of 4", "30, TitanX"),
    holds="to load the weights takes many times as long as to multiply by them",
    fails="memory is slower than arithmetic by less here than on that GPU",
)
def faster(rows: Rows):
    ratios = {
        H: rows.ratio(name_of(H, SMALL), RESIDENT, COLD)
        for H in _measured_units(rows)
        if SMALL in _sizes(rows, H)
    }
    if not ratios:
        raise UnmeasuredError(f"a minibatch of {SMALL} was not measured")
    warm = [f"{rows.faster(name_of(H, SMALL), RESIDENT, STEPPED):.1f} ({H})" for H in ratios]
    facts = (
        "beside weights that come from memory in each step; beside those that a product per step "
        f"finds in a cache, as a program without a kernel of its own does: {', '.join(warm)}"
    )
    figure = ", ".join(f"{ratio.median:.1f} ({H})" for H, ratio in ratios.items())
    return some(ratio.reaches(30) for ratio in ratios.values()), figure, facts


@CLAIMS(
    *("pipelining", "kept full with a minibatch of 4", "2.8 TFLOP/s from 5"),
    holds="a row of weights in a register serves as many samples as there are",
    fails="from a cache a row of weights is loaded once for a tile of samples, which few do not "
    "fill",
)
def saturates(rows: Rows):
    texts, full = list[str](), list[Answer]()
    for H in _measured_units(rows):
        rates = {B: rows.rate(name_of(H, B), RESIDENT) for B in _sizes(rows, H)}
        if SMALL in rates and len(rates) > 1:
            best = max(rates, key=rates.__getitem__)
            small, most = (rows.time(name_of(H, B), RESIDENT) for B in (SMALL, best))
            work = rows[name_of(H, SMALL)]["flop"] / rows[name_of(H, best)]["flop"]
            full.append(most.over(small).reaches(0.9 / work))
            share = rates[SMALL] / rates[best]
            texts.append(f"{share:.0%} of {rates[best]:.0f} GFLOP/s at {best} ({H})")
    if not full:
        raise UnmeasuredError(f"a minibatch of {SMALL} and another one were not measured")
    return some(full), ", ".join(texts), f"throughput at a minibatch of {SMALL}"


@CLAIMS(
    *("caching", "loading weights in each step is wasteful"),
    holds="loading the weights is shared by all samples, so that few samples gain most",
    fails="loading the weights hides behind the products of all minibatches alike",
)
def closes(rows: Rows):
    texts, falling = [], []
    for H in _measured_units(rows):
        gains = {B: rows.faster(name_of(H, B), RESIDENT, COLD) for B in _sizes(rows, H)}
        if len(gains) > 2:
            least, most, trend = min(gains), max(gains), fit_trend(gains.items())
            falling.append(trend.falls)
            ends = f"{gains[least]:.1f} at {least}, {gains[most]:.1f} at {most}"
            texts.append(f"{ends} ({H}; B^({trend}))")
    if not falling:
        raise UnmeasuredError("three minibatches of a layer were not measured")
    facts = "resident beside weights from memory, with the fit through all minibatches"
    return every(falling), ", ".join(texts), facts


@CLAIMS(
    *("pipelining", "a barrier is a third of a step", f"{_BARRIER:.0%}, TitanX"),
    holds="what threads do between two barriers is as short as a barrier",
    fails="the state goes through caches that the cores share: a barrier takes well under a "
    "microsecond",
)
def barriers(rows: Rows):
    rows.among(map(phases_of, UNITS), "no step was parted")
    cases = {H: name for H in UNITS if (name := phases_of(H)) in rows}
    waiting = {H: rows[name]["phases"].get(WAITING, 0.0) for H, name in cases.items()}
    figure = ", ".join(f"{share:.0%} ({H})" for H, share in waiting.items())
    facts = "of a training step, half of the paper's share being enough"
    return at_least(max(waiting.values()), 0.5 * _BARRIER, _MARGIN), figure, facts


_LAYER: dict[str, Any] = {"cell": "rnn", "I": INPUTS}
_BESIDE: dict[str, Any] = {"baseline": "torch", **_LAYER}
PERSISTENT = Suite(
    "persistent",
    "What do recurrent weights that stay on the chip over all steps gain?",
    (
        *(
            sized(name_of(H, B), FORWARD, *WAYS, "torch", quick=(H, B) in _QUICK, **_BESIDE)
            for H in UNITS
            for B in SIZES
        ),
        *(sized(phases_of(H), PHASES, quick=H == 512, **_LAYER) for H in UNITS),
    ),
    seconds=3.0,
    source="Diamos, Persistent RNNs: 30 times faster RNN layers at small minibatches (Baidu, 2016)",
    claims=CLAIMS,
    sweep=Sweep(
        f"{UNITS[-1]} units, T = {T}",
        *("minibatch", "GFLOP/s", SIZES, WAYS),
        lambda rows, name, B: rows.rate(name_of(UNITS[-1], B), name),
    ),
)

"""Suite ``persistent``: what recurrent weights gain that stay on the chip over all steps."""

from __future__ import annotations

from typing import Any

from benchmarks.cases import Case, Suite
from benchmarks.claims import Claim, Reasons, Rows, UnmeasuredError, Verdict, curve, fit_trend
from elman.engines.base import WAITING

T, INPUTS = 64, 16  # as the paper's program for its kernels; few inputs, so that R is the work
UNITS = (512, 1152)  # weights of 1 MiB, half of them in each core's cache; the paper's layer
SIZES = (1, 2, 4, 8, 16, 32, 64)
SMALL = 4  # the paper's minibatch
RESIDENT, STEPPED, COLD = "elman-c", "stepped", "reloaded"
WAYS = {RESIDENT: "resident", STEPPED: "a product per step", COLD: "weights from memory"}
THERE = {1: 0.7, 3: 2.05, 5: 2.8}  # TFLOP/s of the assembly kernel, TitanX, read off the figure
_BARRIER = 500 / (430 + 320 + 315 + 500)  # of a step
_QUICK = tuple((512, B) for B in (1, 4, 64))


def name_of(H: int, B: int) -> str:
    """The case of a layer and a minibatch."""
    return f"resident {T},{B},{H}"


def phases_of(H: int) -> str:
    """The case that parts a step's time."""
    return f"phases {T},{SMALL},{H}"


def rates(rows: Rows, way: str, H: int) -> dict[int, float]:
    """GFLOP/s by minibatch.

    Raises:
        UnmeasuredError: none was measured.
    """
    cases = {B: name for B in SIZES if (name := name_of(H, B)) in rows}
    if not cases:
        raise UnmeasuredError(f"no minibatch of {H} units was measured")
    return {B: rows[name]["flop"] / rows.seconds(name, way) / 1e9 for B, name in cases.items()}


def _each(rows: Rows) -> list[int]:
    found = [H for H in UNITS if any(name_of(H, B) in rows for B in SIZES)]
    if not found:
        raise UnmeasuredError("no layer was measured")
    return found


def _faster(rows: Rows) -> Verdict:
    found = {
        H: rows.faster(name_of(H, SMALL), RESIDENT, COLD)
        for H in _each(rows)
        if name_of(H, SMALL) in rows
    }
    if not found:
        raise UnmeasuredError(f"a minibatch of {SMALL} was not measured")
    warm = [f"{rows.faster(name_of(H, SMALL), RESIDENT, STEPPED):.1f} ({H})" for H in found]
    return Verdict(
        max(found.values()) >= 30,
        ", ".join(f"{times:.1f} ({H})" for H, times in found.items()),
        facts="beside weights that come from memory in each step; beside those that a product per "
        "step "
        f"finds in a cache, as a program without a kernel of its own does: {', '.join(warm)}",
        reasons=Reasons(
            "to load the weights takes many times as long as to multiply by them",
            "memory is slower than arithmetic by less here than on that GPU",
        ),
    )


def _saturates(rows: Rows) -> Verdict:
    texts, shares = [], []
    for H in _each(rows):
        found = rates(rows, RESIDENT, H)
        if SMALL in found and len(found) > 1:
            shares.append(found[SMALL] / max(found.values()))
            best = max(found, key=found.__getitem__)
            texts.append(f"{shares[-1]:.0%} of {max(found.values()):.0f} GFLOP/s at {best} ({H})")
    if not shares:
        raise UnmeasuredError(f"a minibatch of {SMALL} and another one were not measured")
    return Verdict(
        max(shares) >= 0.9,
        ", ".join(texts),
        facts=f"throughput at a minibatch of {SMALL}",
        reasons=Reasons(
            "a row of weights in a register serves as many samples as there are",
            "from a cache a row of weights is loaded once for a tile of samples, which few do not "
            "fill",
        ),
    )


def _closes(rows: Rows) -> Verdict:
    texts, falling = [], []
    for H in _each(rows):
        gains = {
            B: rows.faster(name_of(H, B), RESIDENT, COLD) for B in SIZES if name_of(H, B) in rows
        }
        if len(gains) > 2:
            least, most = min(gains), max(gains)
            trend = fit_trend(gains.items())
            falling.append(trend.falls)
            texts.append(
                f"{gains[least]:.1f} at {least}, {gains[most]:.1f} at {most} ({H}; B^({trend}))"
            )
    if not falling:
        raise UnmeasuredError("three minibatches of a layer were not measured")
    return Verdict(
        all(falling),
        ", ".join(texts),
        facts="resident beside weights from memory, with the fit through all minibatches",
        reasons=Reasons(
            "loading the weights is shared by all samples, so that few samples gain most",
            "loading the weights hides behind the products of all minibatches alike",
        ),
    )


def _barriers(rows: Rows) -> Verdict:
    found = {H: name for H in UNITS if (name := phases_of(H)) in rows}
    if not found:
        raise UnmeasuredError("no step was parted")
    waiting = {H: rows[name]["phases"].get(WAITING, 0.0) for H, name in found.items()}
    return Verdict(
        max(waiting.values()) >= 0.5 * _BARRIER,
        ", ".join(f"{share:.0%} ({H})" for H, share in waiting.items()),
        facts="of a training step, half of the paper's share being enough",
        reasons=Reasons(
            "what threads do between two barriers is as short as a barrier",
            "the state goes through caches that the cores share: a barrier takes well under a "
            "microsecond",
        ),
    )


def _plots(rows: Rows) -> list[dict[str, Any]]:
    """Throughput over minibatch, for each layer."""
    plots = []
    for H in UNITS:
        lines = {}
        for way, name in WAYS.items():
            try:
                lines[name] = [*rates(rows, way, H).items()]
            except UnmeasuredError:
                continue
        if lines:
            plots.append(curve(f"{H} units, T = {T}", "minibatch", "GFLOP/s", "xy", lines))
    return plots


PERSISTENT = Suite(
    "persistent",
    "What do recurrent weights gain that stay on the chip over all steps?",
    (
        *(
            Case(
                name_of(H, B),
                "forward",
                "rnn",
                *(T, B, H, INPUTS),
                contestants=(*WAYS, "torch"),
                baseline="torch",
                quick=(H, B) in _QUICK,
            )
            for H in UNITS
            for B in SIZES
        ),
        *(Case(phases_of(H), "phases", "rnn", T, SMALL, H, INPUTS, quick=H == 512) for H in UNITS),
    ),
    seconds=3.0,
    source="Diamos, Persistent RNNs: 30 times faster RNN layers at small minibatches (Baidu, 2016)",
    claims=(
        Claim("title", "30 times as fast at a minibatch of 4", "30, TitanX", _faster),
        Claim("pipelining", "kept full with a minibatch of 4", "2.8 TFLOP/s from 5", _saturates),
        Claim("caching", "loading weights in each step is wasteful", "", _closes),
        Claim("pipelining", "a barrier is a third of a step", f"{_BARRIER:.0%}, TitanX", _barriers),
    ),
    plots=_plots,
)

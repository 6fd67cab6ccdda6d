"""Suite ``memory``: what does a training step take, beside torch.nn and as forecast?"""

from __future__ import annotations

from typing import Any

from benchmarks.cases import OURS, Case, Suite
from benchmarks.claims import Claim, Reasons, Rows, UnmeasuredError, Verdict, curve
from benchmarks.contestants import CHECKPOINT

MIB = 1 << 20
BATCHES, STEPS = (4, 16, 64), (250, 1000, 4000)
STACKS = (2, 20, 100)
MINIBATCHES = (4, 64)
_STEPS_OF_ALL = 5000  # of all layers of a stack together, so that all keep as much
LONG = 100_000
EVERY = (32, 316, 3162)  # steps between two kept states, of LONG
_EXACT = 0.10  # share that a forecast may be off
_NOISE = 1 * MIB  # of small allocations, and of pages that are taken in part


def _case(cell: str, T: int, B: int, H: int, checkpoint: int, quick: bool = False) -> Case:
    """torch's layer, elman's, and elman's with kept states."""
    return Case(
        f"{cell} {T},{B},{H}",
        "memory",
        cell,
        *(T, B, H),
        contestants=("torch", OURS, CHECKPOINT),
        baseline="torch",
        quick=quick,
        threads=1,
        checkpoint=checkpoint,
    )


def _long(checkpoint: int) -> Case:
    """A sequence of which torch takes minutes: elman's engine c, with and without kept states."""
    return Case(
        f"gru {LONG},1,32 every {checkpoint}",
        "memory",
        "gru",
        *(LONG, 1, 32),
        contestants=("elman-c", CHECKPOINT),
        baseline="elman-c",
        threads=1,
        checkpoint=checkpoint,
    )


def _stack(layers: int, B: int) -> Case:
    """Layers of the seed's cell, without what lies between them."""
    return Case(
        f"rnn x {layers}, {B} samples",
        "memory",
        "rnn",
        *(_STEPS_OF_ALL // layers, B, 128),
        contestants=("torch", "elman-c"),
        baseline="torch",
        threads=1,
        layers=layers,
        quick=(layers, B) == (min(STACKS), min(MINIBATCHES)),
    )


def _bytes(rows: Rows, case: str, contestant: str, which: str = "peak") -> int:
    """A figure of a contestant.

    Raises:
        UnmeasuredError: it was not measured.
    """
    found = rows[case].get("memory", {}).get(contestant)
    if found is None or found[which] is None:
        raise UnmeasuredError(f"{contestant} was not measured in {case}")
    return found[which]


def _sixteenth(layers: int, total: bool) -> Claim:
    """The claim at one depth: of what is kept for the backward, or of everything."""

    def judge(rows: Rows) -> Verdict:
        small, large = (f"rnn x {layers}, {B} samples" for B in (4, 64))

        def taken(case: str) -> float:
            if not total:
                return _bytes(rows, case, "elman-c", "held")
            sizes = [_bytes(rows, case, "elman-c", which) for which in ("peak", "weights")]
            return float(sum(sizes))

        less = taken(large) / taken(small)
        same = _bytes(rows, small, "elman-c", "weights") / MIB
        grows = "states and tape grow with the minibatch, and nothing else is kept"
        stays = f"weights and their gradients, {same:.1f} MiB each, are the same at every minibatch"
        return Verdict(
            14 <= less <= 18,
            f"{less:.1f}x, {taken(small) / MIB:.1f} MiB at 4",
            reasons=Reasons(
                f"{grows[: grows.index(',')]}, and are most of it" if total else grows,
                stays if total else "something is kept that does not grow with the minibatch",
            ),
        )

    what = "weights, gradients and activations" if total else "activations"
    says = f"a minibatch of 4 instead of 64 takes 16 times less memory: {what}, {layers} layers"
    return Claim("Exploring deep residual RNNs", says, "16x, GPU", judge)


def _forecast(rows: Rows) -> Verdict:
    """The forecast that is most off, of all rows."""
    off: dict[str, float] = {}
    for case in MEMORY.cases:
        if case.name not in rows:
            continue
        for name, found in rows[case.name].get("memory", {}).items():
            if found["forecast"] is not None and found["peak"] >= 10 * _NOISE:
                off[f"{case.name}, {name}"] = found["forecast"] / found["peak"] - 1
    if not off:
        raise UnmeasuredError("no row has a step of 10 MiB")
    worst = max(off, key=lambda name: abs(off[name]))
    figure = f"{off[worst]:+.1%} at most ({worst})"
    return Verdict(
        abs(off[worst]) <= _EXACT, figure, facts=f"over {len(off)} steps of 10 MiB and more"
    )


def _grows_with_the_root(rows: Rows) -> Verdict:
    """What LONG steps take beside input, output and their gradients."""
    case = f"gru {LONG},1,32 every {EVERY[1]}"
    around = 4 * LONG * 32 * 2 / MIB  # output and the gradient of x
    whole, root = (_bytes(rows, case, name) / MIB for name in ("elman-c", CHECKPOINT))
    slower = rows.seconds(case, CHECKPOINT) / rows.seconds(case, "elman-c")
    return Verdict(
        root - around <= 0.1 * (whole - around),
        f"{root - around:.1f} MiB instead of {whole - around:.1f} MiB, {slower:.2f}x the time",
        facts=f"beside {around:.1f} MiB of output and gradient of x",
    )


def _plots(rows: Rows) -> list[dict[str, Any]]:
    def line(sizes: tuple[int, ...], name: str, contestant: str) -> list[tuple[int, float]]:
        found: list[tuple[int, float]] = []
        for size in sizes:
            case = name.format(size)
            if case in rows and contestant in rows[case].get("memory", {}):
                found.append((size, _bytes(rows, case, contestant) / MIB))
        return found

    who = ("torch", OURS, CHECKPOINT)
    ways = (
        ("a training step of a GRU over minibatches", "samples", BATCHES, "gru 500,{},128"),
        ("a training step of a GRU over lengths", "steps", STEPS, "gru {},4,128"),
    )
    curves = [
        curve(title, x, "MiB", "xy", {name: line(sizes, of, name) for name in who})
        for title, x, sizes, of in ways
    ]
    return [one for one in curves if one["lines"]]


MEMORY = Suite(
    "memory",
    "What does a training step take, beside torch.nn and as explain forecasts it?",
    (
        *(_case("gru", 500, B, 128, 23, B == 16) for B in BATCHES),
        *(_case("gru", T, 4, 128, round(T**0.5)) for T in STEPS),
        _case("lstm", 500, 16, 128, 23),
        _case("rnn", 500, 16, 128, 23),
        *map(_long, EVERY),
        *(_stack(layers, B) for layers in STACKS for B in MINIBATCHES),
    ),
    seconds=1.6,
    source="Persistent RNNs, stashing recurrent weights on-chip (G. Diamos, Baidu SVAIL, 2016)",
    claims=(
        *(_sixteenth(layers, total) for layers in STACKS for total in (False, True)),
        Claim("explain", "forecasts the peak of a training step within 10 %", "", _forecast),
        Claim(
            "checkpoint=",
            f"{LONG:,} steps train in memory that grows with the root of T",
            "",
            _grows_with_the_root,
        ),
    ),
    plots=_plots,
)

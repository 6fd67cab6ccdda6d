"""Suite ``memory``: what does a training step take, beside torch.nn and as forecast?"""

from __future__ import annotations

from typing import Any

from benchmarks.cases import OURS, Case, Suite, sized
from benchmarks.claims import Claim, Claims, Reasons, Rows, UnmeasuredError, Verdict
from benchmarks.contestants import CHECKPOINT, KeptCase
from benchmarks.measures.memory import MEMORY as STEP
from benchmarks.sweeps import Sweep

MIB = 1 << 20
BATCHES, STEPS = (4, 16, 64), (250, 1000, 4000)
STACKS = (2, 20, 100)
MINIBATCHES = (4, 64)
_STEPS_OF_ALL = 5000  # of all layers of a stack together, so that all keep as much
LONG = 100_000
EVERY = (32, 316, 3162)  # steps between two kept states, of LONG
_EXACT = 0.10  # share that a forecast may be off
_NOISE = 1 * MIB  # of small allocations, and of pages that are taken in part
CLAIMS = Claims()


def _case(name: str, checkpoint: int, quick: bool = False) -> Case:
    """torch's layer, elman's, and elman's with kept states."""
    names = ("torch", OURS, CHECKPOINT)
    return sized(name, STEP, *names, of=KeptCase, checkpoint=checkpoint, threads=1, quick=quick)


def _long(checkpoint: int) -> Case:
    """A sequence of which torch takes minutes: elman's engine c, with and without kept states."""
    name, names = f"gru {LONG},1,32 every {checkpoint}", ("elman-c", CHECKPOINT)
    return sized(name, STEP, *names, of=KeptCase, checkpoint=checkpoint, threads=1)


def _stack(layers: int, B: int) -> Case:
    """Layers of the seed's cell, without what lies between them."""
    name, sizes = f"rnn x {layers}, {B} samples", (_STEPS_OF_ALL // layers, B, 128)
    quick = (layers, B) == (min(STACKS), min(MINIBATCHES))
    options: dict[str, Any] = {"contestants": ("torch", "elman-c"), "baseline": "torch"}
    return Case(name, STEP, "rnn", *sizes, **options, threads=1, layers=layers, quick=quick)


def _bytes(rows: Rows, case: str, contestant: str, which: str = "peak") -> int:
    """A figure of a contestant.

    Raises:
        UnmeasuredError: it was not measured.
    """
    memory = rows[case].get("memory", {}).get(contestant)
    if memory is None or memory[which] is None:
        raise UnmeasuredError(f"{contestant} was not measured in {case}")
    return memory[which]


def _sixteenth(layers: int, total: bool) -> Claim:
    """The claim at one depth: of what is kept for the backward, or of everything."""
    grows = "states and tape grow with the minibatch"

    def judge(rows: Rows) -> Verdict:
        small, large = (f"rnn x {layers}, {B} samples" for B in (4, 64))
        of = ("peak", "weights") if total else ("held",)
        most, least = (
            sum(_bytes(rows, case, "elman-c", which) for which in of) for case in (large, small)
        )
        weights = _bytes(rows, small, "elman-c", "weights") / MIB
        reasons = Reasons(
            f"{grows}, and are most of it" if total else f"{grows}, and nothing else is kept",
            f"weights and their gradients, {weights:.1f} MiB each, are the same at every minibatch"
            if total
            else "something is kept that does not grow with the minibatch",
        )
        less = most / least
        figure = f"{less:.1f}x, {least / MIB:.1f} MiB at 4"
        return Verdict(14 <= less <= 18, figure, reasons=reasons)

    kind = "weights, gradients and activations" if total else "activations"
    says = f"a minibatch of 4 instead of 64 takes 16 times less memory: {kind}, {layers} layers"
    return Claim("Exploring deep residual RNNs", says, "16x, GPU", judge)


CLAIMS += [_sixteenth(layers, total) for layers in STACKS for total in (False, True)]


@CLAIMS(
    *("explain", "forecasts the peak of a training step within 10 %"),
    holds="the plan lists every array of a step, and little else is allocated",
    fails="a step allocates what the plan does not list, or frees it later than forecast",
)
def forecast(rows: Rows):
    """The forecast that is most off, of all rows."""
    steps = {
        f"{case.name}, {name}": memory_of_step
        for case in MEMORY.cases
        if case.name in rows
        for name, memory_of_step in rows[case.name].get("memory", {}).items()
    }
    off = {
        name: memory["forecast"] / memory["peak"] - 1
        for name, memory in steps.items()
        if memory["forecast"] is not None and memory["peak"] >= 10 * _NOISE
    }
    if not off:
        raise UnmeasuredError("no row has a step of 10 MiB")
    worst = max(off, key=lambda name: abs(off[name]))
    figure = f"{off[worst]:+.1%} at most ({worst})"
    return abs(off[worst]) <= _EXACT, figure, f"over {len(off)} steps of 10 MiB and more"


@CLAIMS(
    *("checkpoint=", f"{LONG:,} steps train in memory that grows with the root of T"),
    holds="a state is kept for each span of the root of T steps, and the tape of one span alone",
    fails="something beside states and the tape of a span grows with T",
)
def grows_with_the_root(rows: Rows):
    """Peaks of LONG steps, less output and the gradient of x."""
    case = f"gru {LONG},1,32 every {EVERY[1]}"
    around = 4 * LONG * 32 * 2 / MIB  # output and the gradient of x
    without, root = (_bytes(rows, case, name) / MIB - around for name in ("elman-c", CHECKPOINT))
    slower = rows.seconds(case, CHECKPOINT) / rows.seconds(case, "elman-c")
    text = f"{root:.1f} MiB instead of {without:.1f} MiB, {slower:.2f}x the time"
    return root <= 0.1 * without, text, f"beside {around:.1f} MiB of output and gradient of x"


MEMORY = Suite(
    "memory",
    "How much memory does a training step take, compared with torch.nn and with the forecast?",
    (
        *(_case(f"gru 500,{B},128", 23, B == 16) for B in BATCHES),
        *(_case(f"gru {T},4,128", round(T**0.5)) for T in STEPS),
        _case("lstm 500,16,128", 23),
        _case("rnn 500,16,128", 23),
        *map(_long, EVERY),
        *(_stack(layers, B) for layers in STACKS for B in MINIBATCHES),
    ),
    seconds=1.6,
    source="Persistent RNNs, stashing recurrent weights on-chip (G. Diamos, Baidu SVAIL, 2016)",
    claims=CLAIMS,
    sweep=Sweep(
        "a training step of a GRU over minibatches",
        *("samples", "MiB", BATCHES, ("torch", OURS, CHECKPOINT)),
        lambda rows, name, B: _bytes(rows, f"gru 500,{B},128", name) / MIB,
    ),
)

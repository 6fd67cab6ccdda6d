"""Suite ``cmu``: what a report of 2016 measured of one RNN's training step, measured again."""

from __future__ import annotations

import os
from typing import Any

from benchmarks.cases import Case, Suite, sized
from benchmarks.claims import (
    SAME,
    Claims,
    Reasons,
    Rows,
    UnmeasuredError,
    Verdict,
    at_least,
    every,
    fit_trend,
    opposite,
    some,
)
from benchmarks.measures.phases import BREAKDOWN
from benchmarks.measures.phases import PHASES as PARTED
from benchmarks.sweeps import Sweep
from benchmarks.worker import PEAK
from benchmarks.workloads.fitting import COMBINATIONS, FIT

COMBINED, COMBINED_FEW = "switches 10,1000,1000", "switches 10,16,1000"
COMBINED_QUICK = "switches 10,16,256"
PEERS = "batch 10,1000,1000"
BATCHES = (*(f"batch 10,{B},1000" for B in range(100, 1000, 100)), PEERS)
SMALL = tuple(f"batch 10,{B},1000" for B in (1, 2, 5, 10, 20, 50))
LENGTHS = tuple(f"steps {T},10,128" for T in (10, 20, 40, 80))
POWER = "peers 10,1000,1024"
LARGE = ("peers 10,32,4096", "peers 10,8,8192")
SIZES = (PEERS, "peers 10,100,256", "peers 10,1000,32", "peers 10,1,32", POWER, *LARGE)
THREADS = tuple(range(1, (os.cpu_count() or 1) + 1))
CALLS, OMISSIONS = "calls 10,100,1000", "parts 10,100,1000"
PHASES, PHASES_QUICK = "phases 10,1000,1000", "phases 10,100,256"
TEN_STEPS = "ten steps 10,1000,1000"
CLAIMS = Claims()
_CELL = "tanh_readout"
_PEERS = ("numpy", "compiled", "jax")
_BETWEEN = 1.5  # power of T
_MARGIN = 0.02  # by which shares of a time differ from run to run
_SLIGHT = 1.25  # times as fast at most, for a gain that is called marginal


def _fit(name: str, *contestants: str, **options: Any) -> Case:
    """A training step; a name ends with T,B,H."""
    return sized(name, FIT, *contestants, cell=_CELL, **options)


def _beside_torch(name: str, *peers: str, **options: Any) -> Case:
    """Beside who else there is: torch is to be the slower one."""
    return _fit(name, "torch", "elman", *peers, ratio=1.0, **options)


def per_sample(rows: Rows, case: str, contestant: str) -> float:
    """The time of a call per sample (s)."""
    return rows.seconds(case, contestant) / rows[case]["asked"]["B"]


def _first(rows: Rows, *cases: str) -> str:
    """The first case that was measured."""
    return next((case for case in cases if case in rows), cases[0])


def _combined(rows: Rows) -> str:
    return _first(rows, COMBINED, COMBINED_FEW, COMBINED_QUICK)


@CLAIMS(
    *("1, 4.4", "tiling, vectors and threads together against serial code", "39x on 61 cores"),
    holds="in serial code each addition waits for the one before",
    fails="there are few cores for the third of them to use",
)
def total(rows: Rows):
    case = _combined(rows)
    gain, sizes = rows.ratio(case, "elman-c", "serial"), rows[case]["asked"]
    slow, fast = (rows.rate(case, contestant) for contestant in ("serial", "elman-c"))
    facts = (
        f"serial code {slow:.2g} GFLOP/s, all three together {fast:.2g}, both at a batch of "
        f"{sizes['B']}"
    )
    return gain.reaches(39), f"{gain.median:.0f}x on {sizes['threads']} cores", facts


def _growth(rows: Rows, contestant: str) -> Any:
    """The power law of the time over the steps."""
    return fit_trend((rows[case]["asked"]["T"], rows.seconds(case, contestant)) for case in LENGTHS)


@CLAIMS(
    *("3.1", "backpropagation is linear in the steps", "O(T), not O(T²)"),
    holds="one derived step back per step, whose cotangent the next one reads",
    fails="the lengths are too short for what grows with them to show",
)
def linear(rows: Rows):
    elman, quadratic = (_growth(rows, contestant) for contestant in ("elman", "quadratic"))
    facts = (
        f"fits of the time through {len(LENGTHS)} lengths; what a call costs besides its steps "
        f"makes powers less than they are, so that {_BETWEEN:g} parts linear from quadratic"
    )
    return (
        every((opposite(elman.exceeds(_BETWEEN)), quadratic.exceeds(_BETWEEN))),
        f"T^({elman}), quadratic T^({quadratic})",
        facts,
    )


@CLAIMS(
    *("4.3", "larger batches take less time per sample"),
    holds="weights are packed once per call, which more samples share",
    fails="100 samples pay for most of what is done once per call: packing the weights",
)
def batches(rows: Rows):
    times = {rows[case]["asked"]["B"]: per_sample(rows, case, "elman") for case in BATCHES}
    trend = fit_trend(times.items())
    least, most = min(times), max(times)
    gain = (most / least) ** -trend.power
    facts = f"by the fit B^({trend}) of the time per sample through {len(times)} batches"
    if SMALL[0] in rows:
        few = per_sample(rows, SMALL[0], "elman") / times[least]
        facts += f"; a single sample takes {few:.1f} times as long as one of {least}"
    return (
        every((trend.falls, gain > 1 + SAME)),
        f"{gain:.2f}x per sample from {least} to {most}",
        facts,
    )


@CLAIMS(
    *("4.4", "tiling gains, alone and with vectors"),
    holds="a tile loads an element once for all of its rows or columns, and its sums are "
    "independent",
    fails="at this size operands are in a cache however they are gone through",
)
def tiling(rows: Rows):
    case = _combined(rows)
    alone, beside_vectors = (
        rows.ratio(case, "tiling", "serial"),
        rows.ratio(case, "tiling+simd", "simd"),
    )
    text = f"{alone.median:.1f}x alone, {beside_vectors.median:.1f}x with vectors"
    return every((alone.gains, beside_vectors.gains)), text


@CLAIMS(
    *("4.5", "vectors gain up to", "8x of 16 lanes"),
    holds="products and tanh alike are vector code here; theirs left tanh scalar",
    fails="a vector of this processor has fewer than 16 lanes, or what it loads comes too slowly",
)
def simd(rows: Rows):
    pairs = {
        "alone": ("serial", "simd"),
        "with tiles": ("tiling", "tiling+simd"),
        "with threads": ("threads", "simd+threads"),
        "with both": ("tiling+threads", "elman-c"),
    }
    case = _combined(rows)
    gains = {name: rows.ratio(case, new, old) for name, (old, new) in pairs.items()}
    figure = ", ".join(f"{gain.median:.1f}x {name}" for name, gain in gains.items())
    return some(gain.reaches(8) for gain in gains.values()), figure


@CLAIMS(
    *("4.6", "threads go better with vectors than with tiling"),
    holds="vectors do sixteen additions at once, tiles only save loads",
    fails="loads, which tiles save, take longer than the additions of vectors",
)
def threads(rows: Rows):
    gain = rows.ratio(_combined(rows), "simd+threads", "tiling+threads")
    return gain.gains, f"vectors and threads {gain.median:.1f}x tiles and threads"


@CLAIMS(
    *("4.6", "tiling loses under threads"),
    holds="threads that share tiles wait for each other's operands",
    fails="a worker here takes one share of all rows or units, not tiles from here and there",
)
def tiles_under_threads(rows: Rows):
    gain = rows.ratio(_combined(rows), "tiling+threads", "threads")
    return gain.loses, f"tiles gain {gain.median:.1f}x under threads"


@CLAIMS("4.7", "specialized pointwise code gains a little", "slight")
def special(rows: Rows):
    gain = rows.ratio(OMISSIONS, "elman-c", "without specialization")
    reasons = Reasons(
        "tanh is a small part of a step whose products have a thousand terms",
        "without it each tanh is a call of the C library beside products at the speed of vectors: "
        "no small part of a step"
        if gain.gains
        else "the calls of the C library that it replaces take next to nothing of a step",
    )
    slight, facts = every((gain.gains, gain.within(_SLIGHT))), f"slight is {_SLIGHT:g}x at most"
    return Verdict(slight, f"{gain.median:.2f}x", facts=facts, reasons=reasons)


@CLAIMS("4.8", "compiling ahead of time against just in time", "3x")
def ahead(rows: Rows):
    gain, steps = (rows.ratio(CALLS, "elman-c", variant) for variant in ("per-run", "per-step"))
    alone = rows.seconds(CALLS, "elman-c")
    compiling = (gain.median - 1) * alone
    facts = f"compiling takes {compiling:.1f} s, a training step of this size {alone:.2g} s"
    text = (
        f"{gain.median:.1f}x over compiling in each run, {steps.median:.2f}x over a call per step"
    )
    return gain.reaches(3), text, facts


@CLAIMS(
    *("4.9", "fused loops against one after another", "almost 2x"),
    holds="values of one loop are read by the next one from memory",
    fails="pointwise work is a small part of a step, whether its values stay in cache or not",
)
def fusion(rows: Rows):
    gain = rows.ratio(OMISSIONS, "elman-c", "without fusion")
    return gain.reaches(1.8), f"{gain.median:.2f}x"


@CLAIMS(
    *("4.9", "1024, a power of two, is slower than 1000", "+0.5 s of 2.9 s"),
    holds="rows of x and of states that are 4096 bytes apart meet in the same cache sets",
    fails="weights are packed, and a tile reads no more than eight rows that lie so far apart",
)
def powers(rows: Rows):
    loss = rows.time(POWER, "elman").over(rows.time(PEERS, "elman"))
    per_flop = rows[PEERS]["flop"] / rows[POWER]["flop"]
    text = f"1024 takes {loss.median * per_flop:.2f}x the time of 1000 per FLOP"
    return loss.reaches(1.1 / per_flop), text


@CLAIMS(
    *("4.10", "products take most of the time", "70 % in steps 2, 8 and 9"),
    holds="nothing is saved by a pass of its own: a tape is written by the code that computed it",
    fails="few units make products that are no more work than what is done to their results",
)
def phases(rows: Rows):
    shares: dict[str, float] = rows[_first(rows, PHASES, PHASES_QUICK)]["phases"]
    summed = sum(share for name, share in shares.items() if "gradients" in name)
    multiplied = sum(
        share for name, share in shares.items() if "products" in name or "gradients" in name
    )
    text = f"{multiplied:.0%} in products, {summed:.0%} of all for the weights' gradients"
    return at_least(multiplied, 0.7, _MARGIN), text


@CLAIMS("asked here", "elman is faster than every peer at every size")
def fastest(rows: Rows):
    gains = {
        (case, contestant): rows.ratio(case, "elman", contestant)
        for case in rows.among(SIZES, "no size was measured")
        for contestant in rows[case]["seconds"]
        if contestant != "elman"
    }
    if not gains:
        raise UnmeasuredError("no size was measured")
    (case, contestant), least = min(
        gains.items(), key=lambda item: (item[1].gains is True, item[1].median)
    )
    reasons = Reasons(
        "all steps are one call, and what follows a product finds its result in the first cache",
        f"there the products of {contestant} are as fast, and they are most of the work"
        if least.loses
        else f"there times of {contestant} and elman vary by more than they differ",
    )
    text = f"{least.median:.2f}x {contestant} in {case}, the least of {len(gains)}"
    return Verdict(every(gain.gains for gain in gains.values()), text, reasons=reasons)


@CLAIMS(
    *("4.1", "NumPy by hand keeps up with a compiler of graphs", "slightly faster than Theano"),
    holds="both call products of the same kind, which are most of the work",
    fails="a compiler of today fuses what follows a product, and has products of its own",
)
def by_hand(rows: Rows):
    gains = {
        (case, contestant): rows.ratio(case, "numpy", contestant)
        for case in rows.among(SIZES, "no size was measured")
        for contestant in ("jax", "compiled")
        if {contestant, "numpy"} <= rows[case]["seconds"].keys()
    }
    if not gains:
        raise UnmeasuredError("neither JAX nor torch.compile was measured beside NumPy")
    texts: list[str] = []
    for name in ("jax", "compiled"):
        ratios = [gain.median for (_, contestant), gain in gains.items() if contestant == name]
        if ratios:
            texts.append(f"{min(ratios):.2f}x to {max(ratios):.2f}x {name}")
    facts = "in Theano's place: JAX, and torch.compile for a step and for the readout"
    return opposite(some(gain.loses for gain in gains.values())), ", ".join(texts), facts


CMU = Suite(
    "cmu",
    "What do tiling, vectors, threads, batches and compilation gain in training an RNN?",
    (
        PEAK,
        _fit(COMBINED_QUICK, *COMBINATIONS, baseline="serial", quick=True),
        _fit("one sample 10,1,1000", "serial", "elman-c"),
        *(_fit(name, *COMBINATIONS, baseline="serial") for name in (COMBINED_FEW, COMBINED)),
        *(_beside_torch(name) for name in (*SMALL, *BATCHES) if name != PEERS),
        *(_beside_torch(name, *_PEERS, quick="100,256" in name) for name in SIZES),
        *(_fit(f"{n} threads 10,100,1000", "torch", "elman-c", threads=n) for n in THREADS),
        *(
            _fit(name, "torch", "elman", "quadratic", quick=name in LENGTHS[::3])
            for name in LENGTHS
        ),
        _fit(CALLS, "elman-c", "per-step", "per-run"),
        _fit(OMISSIONS, "elman-c", "without specialization", "without fusion"),
        sized(PHASES, PARTED, cell=_CELL),
        sized(PHASES_QUICK, PARTED, cell=_CELL, quick=True),
        sized(TEN_STEPS, BREAKDOWN, cell=_CELL),
    ),
    seconds=1.0,
    source="Han & Uboweja 2016, Parallel Training of Recurrent Neural Networks, CMU 15-418/618",
    claims=CLAIMS,
    sweep=Sweep(
        "time per sample over minibatches, 10 steps of 1000 units",
        *("samples", "s", range(100, 1100, 100), ("torch", "elman")),
        lambda rows, name, B: per_sample(rows, f"batch 10,{B},1000", name),
    ),
)

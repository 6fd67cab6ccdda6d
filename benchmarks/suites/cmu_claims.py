"""What the report of suite ``cmu`` says, and how rows are held against each statement."""

from __future__ import annotations

from benchmarks.claims import SAME, Claim, Reasons, Rows, Trend, UnmeasuredError, Verdict, fit_trend

COMBINED = "switches 10,16,1000"
COMBINED_QUICK = "switches 10,16,256"
PEERS = "batch 10,1000,1000"
BATCHES = (*(f"batch 10,{B},1000" for B in range(100, 1000, 100)), PEERS)
LENGTHS = tuple(f"steps {T},10,128" for T in (10, 20, 40, 80))
SIZES = (PEERS, "peers 10,100,256", "peers 10,1000,32", "peers 10,1000,1024", "peers 10,32,4096")
CALLS = "calls 10,100,1000"
PARTS = "parts 10,100,1000"
PHASES = "phases 10,1000,1000"
PHASES_QUICK = "phases 10,100,256"
_BETWEEN = 1.5  # power of T
_SLIGHT = 1.25  # times as fast at most, for a gain that is called marginal


def each(rows: Rows, case: str, who: str) -> float:
    """The time of a call (s)."""
    return rows.seconds(case, who)


def per_sample(rows: Rows, case: str, who: str) -> float:
    """The time of a call per sample (s)."""
    return rows.seconds(case, who) / rows[case]["asked"]["B"]


def _speed(rows: Rows, case: str, who: str) -> float:
    """GFLOP/s."""
    return rows[case]["flop"] / rows.seconds(case, who) / 1e9


def _first(rows: Rows, *cases: str) -> str:
    """The first case that was measured."""
    return next((case for case in cases if case in rows), cases[0])


def _combined(rows: Rows) -> str:
    return _first(rows, COMBINED, COMBINED_QUICK)


def _total(rows: Rows) -> Verdict:
    case = _combined(rows)
    gain = rows.faster(case, "elman-c", "serial")
    text = f"{gain:.0f}x on {rows[case]['asked']['threads']} cores"
    slow, fast = (_speed(rows, case, who) for who in ("serial", "elman-c"))
    facts = (
        f"serial code {slow:.2g} GFLOP/s, all three together {fast:.2g}, both at a batch of "
        f"{rows[case]['asked']['B']}"
    )
    if PEERS in rows:
        full = _speed(rows, PEERS, "elman") / _speed(rows, case, "serial")
        facts += f"; a batch of 1000 gives {full:.0f}x per FLOP"
    reasons = Reasons(
        "in serial code each addition waits for the one before",
        "there are few cores for the third of them to use",
    )
    return Verdict(gain >= 39, text, facts=facts, reasons=reasons)


def _batches(rows: Rows) -> Verdict:
    times = {rows[case]["asked"]["B"]: per_sample(rows, case, "elman") for case in BATCHES}
    trend = fit_trend(times.items())
    least, most = min(times), max(times)
    gain = (most / least) ** -trend.power
    return Verdict(
        trend.falls and gain > 1 + SAME,
        f"{gain:.2f}x per sample from {least} to {most}",
        facts=f"by the fit B^({trend}) of the time per sample through {len(times)} batches",
        reasons=Reasons(
            "weights are packed once per call, which more samples share",
            "100 samples pay for most of what is done once per call: packing the weights",
        ),
    )


def _tiling(rows: Rows) -> Verdict:
    case = _combined(rows)
    alone = rows.ratio(case, "tiling", "serial")
    with_vectors = rows.ratio(case, "tiling+simd", "simd")
    return Verdict(
        alone.gains and with_vectors.gains,
        f"{alone.median:.1f}x alone, {with_vectors.median:.1f}x with vectors",
        reasons=Reasons(
            "a tile loads an element once for all of its rows or columns, and its sums are "
            "independent",
            "at this size operands are in a cache however they are gone through",
        ),
    )


def _simd(rows: Rows) -> Verdict:
    case = _combined(rows)
    pairs = {
        "alone": ("serial", "simd"),
        "with tiles": ("tiling", "tiling+simd"),
        "with threads": ("threads", "simd+threads"),
        "with both": ("tiling+threads", "elman-c"),
    }
    gains = {name: rows.faster(case, new, old) for name, (old, new) in pairs.items()}
    text = ", ".join(f"{gain:.1f}x {name}" for name, gain in gains.items())
    return Verdict(
        max(gains.values()) >= 8,
        text,
        reasons=Reasons(
            "products and tanh alike are vector code here; theirs left tanh scalar",
            "a vector of this processor has fewer than 16 lanes, or what it loads comes too slowly",
        ),
    )


def _threads(rows: Rows) -> Verdict:
    case = _combined(rows)
    gain = rows.ratio(case, "simd+threads", "tiling+threads")
    tiles = rows.ratio(case, "tiling+threads", "threads")
    return Verdict(
        gain.gains and tiles.loses,
        f"vectors and threads {gain.median:.1f}x tiles and threads; "
        f"tiles gain {tiles.median:.1f}x under threads",
        reasons=Reasons(
            "threads that share tiles wait for each other's operands",
            "a worker here takes one share of all rows or units, not tiles from here and there",
        ),
    )


def _special(rows: Rows) -> Verdict:
    gain = rows.ratio(PARTS, "elman-c", "without specialization")
    return Verdict(
        gain.gains and gain.median <= _SLIGHT,
        f"{gain.median:.2f}x",
        facts=f"slight is {_SLIGHT:g}x at most",
        reasons=Reasons(
            "tanh is a small part of a step whose products have a thousand terms",
            "without it each tanh is a call of the C library beside products at the speed of "
            "vectors: no small part of a step"
            if gain.gains
            else "the calls of the C library that it replaces take next to nothing of a step",
        ),
    )


def _ahead(rows: Rows) -> Verdict:
    gain = rows.faster(CALLS, "elman-c", "per-run")
    steps = rows.faster(CALLS, "elman-c", "per-step")
    alone = rows.seconds(CALLS, "elman-c")
    return Verdict(
        gain >= 3,
        f"{gain:.1f}x over compiling in each run, {steps:.2f}x over a call per step",
        facts=f"compiling takes {(gain - 1) * alone:.1f} s, a training step of this size "
        f"{alone:.2g} s",
    )


def _fusion(rows: Rows) -> Verdict:
    gain = rows.faster(PARTS, "elman-c", "without fusion")
    return Verdict(
        gain >= 1.8,
        f"{gain:.2f}x",
        reasons=Reasons(
            "values of one loop are read by the next one from memory",
            "pointwise work is a small part of a step, whether its values stay in cache or not",
        ),
    )


def _powers(rows: Rows) -> Verdict:
    loss = _speed(rows, PEERS, "elman") / _speed(rows, "peers 10,1000,1024", "elman")
    return Verdict(
        loss > 1.1,
        f"1024 takes {loss:.2f}x the time of 1000 per FLOP",
        reasons=Reasons(
            "rows of x and of states that are 4096 bytes apart meet in the same cache sets",
            "weights are packed, and a tile reads no more than eight rows that lie so far apart",
        ),
    )


def _linear(rows: Rows) -> Verdict:
    found = {who: _growth(rows, who) for who in ("elman", "quadratic")}
    return Verdict(
        found["elman"].power < _BETWEEN < found["quadratic"].power,
        f"T^({found['elman']}), quadratic T^({found['quadratic']})",
        facts=f"fits of the time through {len(LENGTHS)} lengths; what a call costs besides its "
        f"steps "
        f"makes powers less than they are, so that {_BETWEEN:g} parts linear from quadratic",
        reasons=Reasons(
            "one derived step back per step, whose cotangent the next one reads",
            "the lengths are too short for what grows with them to show",
        ),
    )


def _growth(rows: Rows, who: str) -> Trend:
    """How the time grows with the steps."""
    return fit_trend((rows[case]["asked"]["T"], rows.seconds(case, who)) for case in LENGTHS)


def _numpy(rows: Rows) -> Verdict:
    if "halide" in (absent := rows[PEERS].get("absent", {})):
        raise UnmeasuredError(f"Halide did not run: {absent['halide']}")
    gain = rows.faster(PEERS, "numpy", "halide")
    ours = rows.faster(PEERS, "elman", "numpy")
    return Verdict(
        gain >= 2.5,
        f"NumPy {gain:.2f}x Halide; elman {ours:.2f}x NumPy",
        reasons=Reasons(
            "BLAS also cuts along k, and packs both operands",
            "this schedule keeps sums in registers and a panel in cache, as BLAS does",
        ),
    )


def _fastest(rows: Rows) -> Verdict:
    gains = {
        (case, who): rows.ratio(case, "elman", who)
        for case in SIZES
        if case in rows
        for who in rows[case]["seconds"]
        if who != "elman"
    }
    if not gains:
        raise UnmeasuredError("no size was measured")
    (case, who), least = min(gains.items(), key=lambda item: item[1].median)
    return Verdict(
        all(gain.gains for gain in gains.values()),
        f"{least.median:.2f}x {who} in {case}, the least of {len(gains)}",
        reasons=Reasons(
            "all steps are one call, and what follows a product finds its result in the first "
            "cache",
            f"there the products of {who} are as fast, and they are most of the work",
        ),
    )


def _phases(rows: Rows) -> Verdict:
    shares: dict[str, float] = rows[_first(rows, PHASES, PHASES_QUICK)]["phases"]
    multiplied = sum(
        share for name, share in shares.items() if "products" in name or "gradients" in name
    )
    summed = sum(share for name, share in shares.items() if "gradients" in name)
    return Verdict(
        multiplied >= 0.7,
        f"{multiplied:.0%} in products, {summed:.0%} of all for the weights' gradients",
        reasons=Reasons(
            "nothing is saved by a pass of its own: a tape is written by the code that computed it",
            "few units make products that are no more work than what is done to their results",
        ),
    )


CLAIMS = (
    Claim(
        "1, 4.4",
        "tiling, vectors and threads together against serial code",
        "39x on 61 cores",
        _total,
    ),
    Claim("3.1", "backpropagation is linear in the steps", "O(T), not O(T²)", _linear),
    Claim("4.2", "NumPy is faster than the best Halide", "3x", _numpy),
    Claim("4.3", "larger batches take less time per sample", "", _batches),
    Claim("4.4", "tiling gains, alone and with vectors", "", _tiling),
    Claim("4.5", "vectors gain up to", "8x of 16 lanes", _simd),
    Claim("4.6", "threads go better with vectors than with tiling", "", _threads),
    Claim("4.7", "specialized pointwise code gains a little", "slight", _special),
    Claim("4.8", "compiling ahead of time against just in time", "3x", _ahead),
    Claim("4.9", "fused loops against one after another", "almost 2x", _fusion),
    Claim("4.9", "1024, a power of two, is slower than 1000", "+0.5 s of 2.9 s", _powers),
    Claim("4.10", "products take most of the time", "70 % in steps 2, 8 and 9", _phases),
    Claim("asked here", "elman is faster than every peer at every size", "", _fastest),
)

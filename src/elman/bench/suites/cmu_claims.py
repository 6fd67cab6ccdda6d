"""What the report of suite ``cmu`` says, and how rows are held against each statement."""

from __future__ import annotations

from elman.bench.claims import Claim, Rows, UnmeasuredError, Verdict

COMBINED = "switches 10,16,1000"
COMBINED_QUICK = "switches 10,16,256"
PEERS = "batch 10,1000,1000"
BATCHES = (*(f"batch 10,{B},1000" for B in range(100, 1000, 100)), PEERS)
LENGTHS = tuple(f"steps {T},10,128" for T in (10, 20, 40, 80))
SIZES = (
    PEERS,
    "peers 10,100,256",
    "peers 10,1000,32",
    "peers 10,1000,1024",
    "peers 10,32,4096",
)
CALLS = "calls 10,100,1000"
PARTS = "parts 10,100,1000"
PHASES = "phases 10,1000,1000"
PHASES_QUICK = "phases 10,100,256"
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
    why = (
        f"serial code does {slow:.2g} GFLOP/s, each addition waiting for the one before, all three "
        f"together {fast:.2g}, both at a batch of {rows[case]['asked']['B']}"
    )
    if PEERS in rows:
        full = _speed(rows, PEERS, "elman") / _speed(rows, case, "serial")
        why += f"; a batch of 1000 gives {full:.0f}x per FLOP"
    return Verdict(gain >= 39, text, why)


def _batches(rows: Rows) -> Verdict:
    times = [per_sample(rows, case, "elman") for case in BATCHES]
    gain = times[0] / times[-1]
    return Verdict(
        gain > 1.05,
        f"{gain:.2f}x per sample from 100 to 1000",
        "weights are packed once per call and reused by all rows; 100 rows pay for most of that",
    )


def _tiling(rows: Rows) -> Verdict:
    case = _combined(rows)
    alone = rows.faster(case, "tiling", "serial")
    with_vectors = rows.faster(case, "tiling+simd", "simd")
    return Verdict(
        alone > 1 and with_vectors > 1,
        f"{alone:.1f}x alone, {with_vectors:.1f}x with vectors",
        "a tile loads an element once for all of its rows or columns, and its sums are independent",
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
    best = max(gains.values())
    text = ", ".join(f"{gain:.1f}x {name}" for name, gain in gains.items())
    return Verdict(
        best >= 8, text, "products and tanh alike are vector code here; theirs left tanh scalar"
    )


def _threads(rows: Rows) -> Verdict:
    case = _combined(rows)
    gain = rows.faster(case, "simd+threads", "tiling+threads")
    tiles = rows.faster(case, "tiling+threads", "threads")
    return Verdict(
        gain > 1 and tiles < 1,
        f"vectors and threads {gain:.1f}x tiles and threads; tiles gain {tiles:.1f}x under threads",
        "a worker here takes one share of all rows or units, not tiles from here and there",
    )


def _special(rows: Rows) -> Verdict:
    gain = rows.faster(PARTS, "elman-c", "without specialization")
    return Verdict(
        1 < gain <= _SLIGHT,
        f"{gain:.2f}x",
        "tanh is a small part of a step whose products have a thousand terms",
    )


def _ahead(rows: Rows) -> Verdict:
    gain = rows.faster(CALLS, "elman-c", "per-run")
    steps = rows.faster(CALLS, "elman-c", "per-step")
    alone = rows.seconds(CALLS, "elman-c")
    return Verdict(
        gain >= 3,
        f"{gain:.1f}x over compiling in each run, {steps:.2f}x over a call per step",
        f"compiling takes {(gain - 1) * alone:.1f} s, a training step of this size {alone:.2g} s",
    )


def _fusion(rows: Rows) -> Verdict:
    gain = rows.faster(PARTS, "elman-c", "without fusion")
    return Verdict(
        gain >= 1.8,
        f"{gain:.2f}x",
        "pointwise work is a small part of a step, whether its values stay in cache or not",
    )


def _powers(rows: Rows) -> Verdict:
    loss = _speed(rows, PEERS, "elman") / _speed(rows, "peers 10,1000,1024", "elman")
    return Verdict(
        loss > 1.1,
        f"1024 takes {loss:.2f}x the time of 1000 per FLOP",
        "rows of x and of states that are 4096 bytes apart meet in the same cache sets"
        if loss > 1.1
        else "weights are packed, and a tile reads no more than eight rows that lie so far apart",
    )


def _linear(rows: Rows) -> Verdict:
    first, last = LENGTHS[0], LENGTHS[-1]
    growth = {
        who: rows.seconds(last, who) / rows.seconds(first, who) for who in ("elman", "quadratic")
    }
    steps = rows[last]["asked"]["T"] / rows[first]["asked"]["T"]
    return Verdict(
        growth["elman"] <= 1.3 * steps < growth["quadratic"],
        f"{steps:.0f} times the steps: {growth['elman']:.1f}x the time, "
        f"quadratic {growth['quadratic']:.1f}x",
        "one derived step back per step, whose cotangent the next one reads",
    )


def _numpy(rows: Rows) -> Verdict:
    if "halide" in (absent := rows[PEERS].get("absent", {})):
        raise UnmeasuredError(f"Halide did not run: {absent['halide']}")
    gain = rows.faster(PEERS, "numpy", "halide")
    ours = rows.faster(PEERS, "elman", "numpy")
    return Verdict(
        gain >= 2.5,
        f"NumPy {gain:.2f}x Halide; elman {ours:.2f}x NumPy",
        "BLAS also cuts along k, and packs both operands"
        if gain >= 2.5
        else "this schedule keeps sums in registers and a panel in cache, as BLAS does",
    )


def _fastest(rows: Rows) -> Verdict:
    gains = {
        (case, who): rows.faster(case, "elman", who)
        for case in SIZES
        if case in rows
        for who in rows[case]["seconds"]
        if who != "elman"
    }
    if not gains:
        raise UnmeasuredError("no size was measured")
    (case, who), least = min(gains.items(), key=lambda item: item[1])
    return Verdict(
        least > 1,
        f"{least:.2f}x {who} in {case}, the least of {len(gains)}",
        "all steps are one call, and what follows a product finds its result in the first cache"
        if least > 1
        else f"there the products of {who} are faster, or it minds other processes less",
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
        "nothing is saved by a pass of its own: a tape is written by the code that computed it",
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

"""Suite ``deer``: where does it pay to run all time steps at once, and how does it converge?"""

from __future__ import annotations

import math
from collections.abc import Iterable
from contextlib import suppress
from itertools import product
from typing import Any

from benchmarks.cases import Case, KindCase, Suite, sized
from benchmarks.claims import Claims, Rows, UnmeasuredError, fit_trend, some
from benchmarks.measures.limits import LIMITED_FORWARD, LIMITED_TRAIN, LimitedCase
from benchmarks.measures.memory import MEMORY as PEAK_MEMORY
from benchmarks.studies.convergence import CONVERGENCE
from benchmarks.studies.convergence import OVER_LENGTHS as ITERATIONS
from benchmarks.sweeps import Sweep

UNITS = (1, 2, 4, 8, 16, 32, 64)
LENGTHS = (1000, 10_000, 100_000, 1_000_000)
BATCH = 16
INITIAL, TRAINED, DIFFICULT = "gru at initialisation", "gru after training", "difficult rnn"
OVER_LENGTHS = "gru over lengths"
APART, MIXED = "paragru 10000,1,{}", "gru 10000,1,{}"  # units apart, and all mixed
MANY = (16, 32, 64)  # units of these
FORWARDS = tuple(f"gru 10000,16,{n}, forward" for n in (1, 4, 16))
FORWARD = FORWARDS[0]
MEMORY = tuple(f"memory of gru 1000,16,{n}" for n in (32, 64))
LOOP, AT_ONCE = "elman-c", "elman-deer"
_LIBRARIES = {"jax": "JAX's lax.scan", "torch": "torch.nn"}
MOST_S = 2.0  # of a call
LONGEST = {(n, LENGTHS[-1]): 60.0 for n in (1, 2, 4)} | {(1, 10_000): 10.0}  # may take longer (s)
CLAIMS = Claims()
_THEIRS = 2.4e-7  # error of the authors' outputs
_ROUNDING = 3.0  # times the loop's own error that another order of sums may make
_MANY = 20  # iterations
_LANES = "steps that a loop does one after another are done by lanes that would be idle"
_NO_LANES = "two cores have no idle lanes: the loop keeps them busy, and needs neither Jacobians"
_AUTHORS = "authors' tables"
_JUDGED = (
    "judged by the compiled loop; torch.nn pays for operators at each step, as did the loop "
    "that the authors compare with"
)


def cell_of_grid(n: int, T: int) -> str:
    """The name of a cell of the grid."""
    return f"gru {T},{BATCH},{n}"


def _gain(rows: Rows, n: int, T: int) -> float:
    """Speed-up of all steps at once over the compiled loop."""
    return rows.faster(cell_of_grid(n, T), AT_ONCE, LOOP)


def _gains(rows: Rows, units: Iterable[int], lengths: Iterable[int]) -> dict[Any, float]:
    """Speed-ups over the compiled loop, by units and length.

    Raises:
        UnmeasuredError: fewer than two cells were measured.
    """
    gains: dict[Any, float] = {}
    reasons: list[UnmeasuredError] = []
    for place in product(units, lengths):
        try:
            gains[place] = _gain(rows, *place)
        except UnmeasuredError as error:
            reasons.append(error)
    if len(gains) < 2 and reasons:
        raise reasons[-1]
    return gains


def _times(gain: float) -> str:
    return f"{gain:.0f}x" if gain >= 10 else f"{gain:.2g}x"


def _beside_loop(rows: Rows, case: str):
    """Judge the speed-up of all steps at once over the compiled loop; torch's is told too."""
    gain, beside_torch = rows.ratio(case, AT_ONCE, LOOP), rows.faster(case, AT_ONCE, "torch")
    text = f"{_times(gain.median)} the compiled loop, {_times(beside_torch)} torch.nn"
    return gain.gains, text, _JUDGED


@CLAIMS(
    *("abstract", "up to three orders of magnitude faster", "2029x on a V100"),
    holds=_LANES,
    fails=f"{_NO_LANES} nor iterations",
)
def orders(rows: Rows):
    gains = _gains(rows, UNITS, LENGTHS)
    (n, T), best = max(gains.items(), key=lambda item: item[1])
    reached = rows.ratio(cell_of_grid(n, T), AT_ONCE, LOOP).reaches(100)
    return reached, f"{_times(best)} at best (n = {n}, T = {T:,}), in training"


@CLAIMS(
    *("abstract", "… beside a library that runs step by step", "2029x on a V100"),
    holds="a library pays for each operator of each step, all steps at once for a few operators",
    fails="XLA's loop on a CPU has no launches to save; torch.nn's step costs some microseconds, "
    "and Jacobians and what joins them take two cores more than a hundredth of these",
)
def beside_libraries(rows: Rows):
    places = [(n, T) for T in LENGTHS for n in UNITS]
    gains: dict[str, dict[tuple[int, int], Any]] = {}
    for (n, T), library in product(places, ("jax", "torch")):
        with suppress(UnmeasuredError):
            gain = rows.ratio(cell_of_grid(n, T), AT_ONCE, library)
            gains.setdefault(library, {})[n, T] = gain
    if not gains:
        raise UnmeasuredError("no library was measured beside all steps at once")
    best = {
        library: max(by_place.items(), key=lambda item: item[1].median)
        for library, by_place in gains.items()
    }
    text = ", ".join(
        f"{_times(gain.median)} {_LIBRARIES[library]} (n = {n}, T = {T:,})"
        for library, ((n, T), gain) in best.items()
    )
    facts = "each at its best, in training; the authors' contestant is lax.scan's step by step"
    return some(gain.reaches(100) for _, gain in best.values()), text, facts


@CLAIMS(
    *(_AUTHORS, "faster forward, n = 1, T = 10 000", "138x on a V100"),
    holds=_LANES,
    fails=f"{_NO_LANES} nor iterations",
)
def forward(rows: Rows):
    return _beside_loop(rows, FORWARD)


@CLAIMS(
    *(_AUTHORS, "faster in training, n = 1, T = 10 000", "289x on a V100"),
    holds=_LANES,
    fails="of three iterations and a scan back each takes about what the loop takes in all",
)
def training(rows: Rows):
    return _beside_loop(rows, cell_of_grid(1, 10_000))


@CLAIMS(
    *(_AUTHORS, "the longer, the larger the gain, n = 1, in training"),
    "41x at 1000, 816x at 100 000",
    holds="what an operator costs besides its elements is shared by more steps",
    fails="what an operator costs besides its elements is shared by more steps until it is gone: "
    "on two cores that is all there is to gain",
)
def longer(rows: Rows):
    gains = _gains(rows, (1,), LENGTHS)
    text = ", ".join(f"{_times(gain)} at {T:,}" for (_, T), gain in gains.items())
    trend = fit_trend((T, gain) for (_, T), gain in gains.items())
    return trend.rises, text, f"by the fit T^({trend})"


@CLAIMS(
    *("talk, drawbacks", "the gain falls with n"),
    holds="a Jacobian of n² numbers is made and read for each step of each sample, where the loop "
    "reads the same weights from cache for all",
    fails="the loop's work grows with n² as well",
)
def larger(rows: Rows):
    gains = _gains(rows, UNITS, LENGTHS[:1])
    trend = fit_trend((n, gain) for (n, _), gain in gains.items())
    text = ", ".join(f"{gain:.2g} at {n}" for (n, _), gain in gains.items())
    return trend.falls, f"times as fast by units: {text}", f"by the fit n^({trend})"


@CLAIMS(
    *("talk, drawbacks", "work grows with the third power of n", "O(n³)"),
    holds="to join two spans of steps, matrices of n x n are multiplied",
    fails="each core runs its steps one after another, so matrices meet vectors alone; the rows "
    "of a GRU's Jacobian are one number each times a row of weights",
)
def cubic(rows: Rows):
    small, large = (rows.time(cell_of_grid(n, 1000), AT_ONCE) for n in (16, 64))
    growth = large.over(small)
    power = math.log(growth.median, 64 / 16)
    return growth.reaches((64 / 16) ** 2.5), f"n^{power:.1f} from 16 to 64 units"


@CLAIMS(
    *("paper, limitations", "memory grows with the square of n", "O(n²)"),
    holds="a Jacobian of n² numbers is kept for each step",
    fails="a Jacobian has n² numbers, so a window has fewer steps: its Jacobians fit into the "
    "last level cache, and what is computed beside them grows with n",
)
def memory(rows: Rows):
    small, large = (_peak(rows, case) for case in MEMORY)
    power = math.log2(large / small)
    text = f"n^{power:.1f} from 32 to 64 units: {small:.0f} and {large:.0f} MiB"
    return 1.5 <= power <= 2.2, text


def _peak(rows: Rows, case: str) -> float:
    memory = rows[case].get("memory", {}).get(AT_ONCE)
    if memory is None:
        raise UnmeasuredError(f"{AT_ONCE} was not measured in {case}")
    return memory["peak"] / (1 << 20)


@CLAIMS(
    *("talk, drawbacks", "states that are apart keep it fast"),
    holds="a Jacobian is one number per unit then",
    fails="what is done beside Jacobians takes as long for either, and with few units is most of "
    "the time",
)
def detached(rows: Rows):
    gains, texts = list[tuple[float, float]](), list[str]()
    for n in MANY:
        with suppress(UnmeasuredError):
            mixed, apart = (rows.time(kind.format(n), AT_ONCE) for kind in (MIXED, APART))
            gains.append((n, mixed.median / apart.median))
            texts.append(f"{apart.median * 1e3:.1f} and {mixed.median * 1e3:.1f} ms at n = {n}")
    if not gains:
        raise UnmeasuredError("all steps at once were not measured")
    trend = fit_trend(gains)
    texts.append(f"the gain grows with n^({trend})")
    facts = "paragru and gru, T = 10 000, B = 1, if units are apart and if all mix"
    return trend.rises, ", ".join(texts), facts


def _iterations(rows: Rows, case: str, solver: str = "newton") -> int | None:
    return rows[case]["solvers"][solver]["iterations"]


@CLAIMS(
    *("talk, algorithm", "a few iterations are enough", "fewer than 20"),
    holds="Newton's iteration doubles the digits that are right",
    fails="far from the solution Newton's iteration is as good as any other",
)
def few_iterations(rows: Rows):
    counts = {case: _iterations(rows, case) for case in (INITIAL, TRAINED)}
    most = max(count or math.inf for count in counts.values())
    text = ", ".join(f"{count} {case.removeprefix('gru ')}" for case, count in counts.items())
    return most < _MANY, text


@CLAIMS(
    *("paper, experiments", "iterations do not grow with the length"),
    holds="a step's error dies out over the steps that the cell remembers, not over all",
    fails="what the cell remembers reaches over more steps than the shorter sequences have",
)
def constant(rows: Rows):
    texts, steady = list[str](), True
    for kind, (lengths, counts) in rows[OVER_LENGTHS]["lengths"].items():
        ended = [count for count in counts if count is not None]
        steady &= len(ended) == len(counts) and max(ended) - min(ended) <= 2
        texts.append(f"{counts[0]} to {counts[-1]} {kind} ({lengths[0]} to {lengths[-1]:,} steps)")
    return steady, ", ".join(texts)


@CLAIMS(
    *("talk, drawbacks", "after training it may not converge"),
    holds="a cell that remembers long, or whose weights are large, amplifies what an iterate has "
    "wrong",
    fails="neither a long memory nor large weights amplify what an iterate has wrong",
)
def after_training(rows: Rows):
    """What may happen is judged by the hardest case."""
    counts = {case: _iterations(rows, case) for case in (TRAINED, DIFFICULT)}
    texts = (
        f"{case}: {f'{count} iterations' if count else 'no convergence'}"
        for case, count in counts.items()
    )
    return None in counts.values(), ", ".join(texts)


@CLAIMS(
    *("talk, drawbacks", "it converges if NaN are replaced by 0"),
    holds="steps before the first NaN are right, and their number grows with each iteration",
    fails="rounding is amplified as well there",
)
def replaced(rows: Rows):
    solver, by = rows[DIFFICULT]["solvers"]["newton"], rows[DIFFICULT]["solved_by"]
    count = solver["iterations"]
    ended = f"{count} iterations" if count else "no convergence"
    text = f"{solver['replaced']:,} values replaced, {ended}"
    return count is not None, text, f"what is returned is {by}'s"


@CLAIMS(
    *("talk, Picard", "Picard's iteration is far worse"),
    holds="it carries what is right one step further with each iteration, or as fast as the cell "
    "forgets",
    fails="a cell that forgets at once needs no more",
)
def picards(rows: Rows):
    newton, picard = (_iterations(rows, INITIAL, name) for name in ("newton", "picard"))
    text = f"{picard or 'more than 400'} iterations, Newton's {newton}"
    return picard is None or picard > 5 * (newton or 1), text


@CLAIMS(
    *("abstract", "outputs lose no accuracy", "2.4e-7 at most, T = 10 000"),
    holds="no result is returned that does not satisfy every step to rounding",
    fails="Newton's iteration ends before every step is satisfied to rounding",
)
def accurate_outputs(rows: Rows):
    errors = [
        (error[AT_ONCE], error[LOOP])
        for case in FORWARDS
        if case in rows and AT_ONCE in (error := rows[case].get("error", {}))
    ]
    if not errors:
        raise UnmeasuredError("no forward was measured")
    at_once, loops = max(errors)
    text = f"{at_once:.1e} at most against float64, the loop's {loops:.1e}, T = 10 000"
    return at_once <= max(_THEIRS, _ROUNDING * loops), text


@CLAIMS(
    *("asked here", "gradients lose no accuracy either, nor do 1 000 000 steps"),
    holds="no result is returned that does not satisfy every step to rounding",
    fails="a step that is satisfied to rounding is not as right as one that was computed",
)
def accurate(rows: Rows):
    cases = [cell_of_grid(n, T) for n in UNITS for T in LENGTHS]
    rows_by_case = {case: rows[case].get("error", {}) for case in cases if case in rows}
    errors = {
        case: (error[AT_ONCE], error[LOOP])
        for case, error in rows_by_case.items()
        if AT_ONCE in error
    }
    if not errors:
        raise UnmeasuredError("no cell of the grid was measured")
    worst = max(errors, key=lambda case: errors[case][0] / errors[case][1])
    at_once, loops = errors[worst]
    text = f"{at_once:.1e} against float64 at most, relative to the loop's {loops:.1e} ({worst})"
    facts = f"over output and all gradients of {len(errors)} cells"
    return at_once <= max(1e-5, _ROUNDING * loops), text, facts


_QUICK = ((1, 1000), (1, 10_000), (4, 1000), (16, 1000))  # of the grid


def _limited(most: float = MOST_S) -> dict[str, Any]:
    return {"of": LimitedCase, "most": most}


_STUDIES = {  # name -> cell, T, B, H; weights
    INITIAL: (("gru", 10_000, 1, 8), "untrained"),
    TRAINED: (("gru", 10_000, 1, 8), "trained"),
    DIFFICULT: (("rnn", 1000, 1, 8), "difficult"),
    "chaotic rnn": (("rnn", 1000, 1, 8), "chaotic"),
}


def _grid(n: int, T: int) -> Case:
    """The sequential methods beside all steps at once, where time and memory allow."""
    contestants, quick = (LOOP, AT_ONCE, "torch", "jax"), (n, T) in _QUICK
    limited = _limited(LONGEST.get((n, T), MOST_S))
    return sized(cell_of_grid(n, T), LIMITED_TRAIN, *contestants, quick=quick, **limited)


def _engines(name: str, forward: bool = False) -> Case:
    """The compiled loop and all steps at once, and other libraries that have the cell."""
    contestants = ("elman", LOOP, AT_ONCE) + ("elman-scan-backward",) * (not forward)
    contestants += ("torch", "jax") * (name.split()[0] in ("gru", "lstm", "rnn"))
    name, measure = (f"{name}, forward", LIMITED_FORWARD) if forward else (name, LIMITED_TRAIN)
    return sized(name, measure, *contestants, baseline=LOOP, **_limited())


DEER = Suite(
    "deer",
    "Where does it pay to run all time steps at once on this processor?",
    (
        *(
            KindCase(name, CONVERGENCE, *sizes, kind=kind, quick=name == INITIAL)
            for name, (sizes, kind) in _STUDIES.items()
        ),
        KindCase(OVER_LENGTHS, ITERATIONS, "gru", 1, 1, 8),
        *(_grid(n, T) for T in LENGTHS for n in UNITS),
        *(sized(name, PEAK_MEMORY, LOOP, AT_ONCE, cell="gru") for name in MEMORY),
        *(_engines(f"gru 10000,{BATCH},{n}", forward=True) for n in (1, 4, 16)),
        _engines("mingru 10000,8,256"),
        _engines("mingru 10000,1,16"),
        _engines("lru 10000,1,16"),
        _engines("sru 10000,1,16"),
        *(_engines(kind.format(n)) for n in MANY for kind in (APART, MIXED)),
        _engines("paralstm 10000,1,16"),
        _engines("indrnn 10000,1,16"),
        _engines("lstm 10000,1,4"),
    ),
    seconds=1.0,
    rounds=3,
    source="Parallelizing non-linear sequential models over the sequence length (Lim, Zhu, "
    "Selfridge, Kasim; ICLR 2024)",
    claims=CLAIMS,
    sweep=Sweep(
        "all steps at once beside the compiled loop, by units",
        *("steps T", "times as fast", LENGTHS, UNITS),
        lambda rows, n, T: _gain(rows, n, T),
    ),
)

"""What DEER's paper and talk say, and how the rows of suite ``deer`` are held against it."""

from __future__ import annotations

import math
from typing import Any

from benchmarks.claims import Claim, Reasons, Rows, UnmeasuredError, Verdict, curve, fit_trend

UNITS = (1, 2, 4, 8, 16, 32, 64)
LENGTHS = (1000, 10_000, 100_000, 1_000_000)
BATCH = 16
INITIAL, TRAINED, DIFFICULT = "gru at initialisation", "gru after training", "difficult rnn"
OVER_LENGTHS = "gru over lengths"
APART, MIXED = "paragru 10000,1,16", "gru 10000,1,16"  # units apart, and all mixed
FORWARD = "gru 10000,16,1, forward"
MEMORY = tuple(f"memory of gru 1000,16,{n}" for n in (32, 64))
_ROUNDING = 3.0  # times the loop's own error that another order of sums may make
_MANY = 20  # iterations
LOOP, AT_ONCE = "elman-c", "elman-deer"
_LANES = "steps that a loop does one after another are done by lanes that would be idle"
_NO_LANES = "two cores have no idle lanes: the loop keeps them busy, and needs neither Jacobians"


def cell_of_grid(n: int, T: int) -> str:
    """The name of a cell of the grid."""
    return f"gru {T},{BATCH},{n}"


def _gains(rows: Rows, units: tuple[int, ...], lengths: tuple[int, ...]) -> dict[Any, float]:
    """By units and length: how many times as fast all steps at once are as the compiled loop.

    Raises:
        UnmeasuredError: fewer than two cells were measured.
    """
    found: dict[Any, float] = {}
    why: UnmeasuredError | None = None
    for n in units:
        for T in lengths:
            try:
                found[n, T] = rows.faster(cell_of_grid(n, T), AT_ONCE, LOOP)
            except UnmeasuredError as error:
                why = error
    if len(found) < 2 and why is not None:
        raise why
    return found


def _times(gain: float) -> str:
    return f"{gain:.0f}x" if gain >= 10 else f"{gain:.2g}x"


def _orders(rows: Rows) -> Verdict:
    gains = _gains(rows, UNITS, LENGTHS)
    (n, T), best = max(gains.items(), key=lambda item: item[1])
    return Verdict(
        best >= 100,
        f"{_times(best)} at best (n = {n}, T = {T:,}), in training",
        reasons=Reasons(_LANES, f"{_NO_LANES} nor iterations"),
    )


def _forward(rows: Rows) -> Verdict:
    gain = rows.ratio(FORWARD, AT_ONCE, LOOP)
    other = rows.faster(FORWARD, AT_ONCE, "torch")
    return Verdict(
        gain.gains,
        f"{_times(gain.median)} the compiled loop, {_times(other)} torch.nn",
        facts="judged by the compiled loop; torch.nn pays for operators at each step, as did the "
        "loop "
        "that the authors compare with",
        reasons=Reasons(_LANES, f"{_NO_LANES} nor iterations"),
    )


def _training(rows: Rows) -> Verdict:
    case = cell_of_grid(1, 10_000)
    gain, other = rows.ratio(case, AT_ONCE, LOOP), rows.faster(case, AT_ONCE, "torch")
    return Verdict(
        gain.gains,
        f"{_times(gain.median)} the compiled loop, {_times(other)} torch.nn",
        facts="judged by the compiled loop; torch.nn pays for operators at each step, as did the "
        "loop "
        "that the authors compare with",
        reasons=Reasons(
            _LANES,
            "of three iterations and a scan back each takes about what the loop takes in all",
        ),
    )


def _longer(rows: Rows) -> Verdict:
    gains = _gains(rows, (1,), LENGTHS)
    text = ", ".join(f"{_times(gain)} at {T:,}" for (_, T), gain in gains.items())
    trend = fit_trend((T, gain) for (_, T), gain in gains.items())
    return Verdict(
        trend.rises,
        text,
        facts=f"by the fit T^({trend})",
        reasons=Reasons(
            "what an operator costs besides its elements is shared by more steps",
            "what an operator costs besides its elements is shared by more steps until it is gone: "
            "on two cores that is all there is to gain",
        ),
    )


def _larger(rows: Rows) -> Verdict:
    gains = list(_gains(rows, UNITS, LENGTHS[:1]).items())
    trend = fit_trend((n, gain) for (n, _), gain in gains)
    text = ", ".join(f"{gain:.2g} at {n}" for (n, _), gain in gains)
    return Verdict(
        trend.falls,
        f"times as fast by units: {text}",
        facts=f"by the fit n^({trend})",
        reasons=Reasons(
            "a Jacobian of n² numbers is made and read for each step of each sample, where the "
            "loop reads the same weights from cache for all",
            "the loop's work grows with n² as well",
        ),
    )


def _cubic(rows: Rows) -> Verdict:
    small, large = (rows.seconds(cell_of_grid(n, 1000), AT_ONCE) for n in (16, 64))
    power = math.log(large / small, 64 / 16)
    return Verdict(
        power >= 2.5,
        f"n^{power:.1f} from 16 to 64 units",
        reasons=Reasons(
            "to join two spans of steps, matrices of n x n are multiplied",
            "each core runs its steps one after another, so matrices meet vectors alone; the rows "
            "of a GRU's Jacobian are one number each times a row of weights",
        ),
    )


def _memory(rows: Rows) -> Verdict:
    small, large = (_peak(rows, case) for case in MEMORY)
    power = math.log2(large / small)
    return Verdict(
        1.5 <= power <= 2.2,
        f"n^{power:.1f} from 32 to 64 units: {small:.0f} and {large:.0f} MiB",
        reasons=Reasons(
            "a Jacobian of n² numbers is kept for each step",
            "a Jacobian has n² numbers, so a window has fewer steps: its Jacobians fit into the "
            "last level cache, and what is computed beside them grows with n",
        ),
    )


def _peak(rows: Rows, case: str) -> float:
    found = rows[case].get("memory", {}).get(AT_ONCE)
    if found is None:
        raise UnmeasuredError(f"{AT_ONCE} was not measured in {case}")
    return found["peak"] / (1 << 20)


def _detached(rows: Rows) -> Verdict:
    mixed = rows.ratio(MIXED, AT_ONCE, LOOP)
    apart = rows.ratio(APART, AT_ONCE, LOOP)
    T, B, n = MIXED.split()[1].split(",")
    return Verdict(
        apart.over(mixed).gains,
        f"{_times(apart.median)} the loop if units are apart, {_times(mixed.median)} if all mix",
        facts=f"paragru and gru, both with T = {int(T):,}, B = {B}, n = {n}",
        reasons=Reasons(
            "a Jacobian is one number per unit then",
            "a Jacobian is one number per unit then, but the loop has less to do as well",
        ),
    )


def _few(rows: Rows) -> Verdict:
    counts = {case: _iterations(rows, case, "newton") for case in (INITIAL, TRAINED)}
    most = max(count or math.inf for count in counts.values())
    text = ", ".join(f"{count} {case.removeprefix('gru ')}" for case, count in counts.items())
    reasons = Reasons(
        "Newton's iteration doubles the digits that are right",
        "far from the solution Newton's iteration is as good as any other",
    )
    return Verdict(most < _MANY, text, reasons=reasons)


def _constant(rows: Rows) -> Verdict:
    lines = rows[OVER_LENGTHS]["lengths"]
    texts: list[str] = []
    constant = True
    for kind, (lengths, counts) in lines.items():
        known = [count for count in counts if count is not None]
        constant &= len(known) == len(counts) and max(known) - min(known) <= 2
        texts.append(f"{counts[0]} to {counts[-1]} {kind} ({lengths[0]} to {lengths[-1]:,} steps)")
    reasons = Reasons(
        "a step's error dies out over the steps that the cell remembers, not over all",
        "what the cell remembers reaches over more steps than the shorter sequences have",
    )
    return Verdict(constant, ", ".join(texts), reasons=reasons)


def _after_training(rows: Rows) -> Verdict:
    count = _iterations(rows, TRAINED, "newton")
    return Verdict(
        count is None,
        "no result is accepted" if count is None else f"{count} iterations",
        reasons=Reasons(
            "a cell that remembers long amplifies what an iterate has wrong",
            "a GRU that averages over 100 steps is no harder; an RNN whose weights are large is",
        ),
    )


def _replaced(rows: Rows) -> Verdict:
    found = rows[DIFFICULT]["solvers"]["newton"]
    by = rows[DIFFICULT]["solved_by"]
    return Verdict(
        found["iterations"] is not None,
        f"{found['replaced']:,} values replaced, "
        + (f"{found['iterations']} iterations" if found["iterations"] else "no convergence"),
        facts=f"what is returned is {by}'s",
        reasons=Reasons(
            "steps before the first NaN are right, and their number grows with each iteration",
            "rounding is amplified as well there",
        ),
    )


def _picard(rows: Rows) -> Verdict:
    newton, picard = (_iterations(rows, INITIAL, name) for name in ("newton", "picard"))
    return Verdict(
        picard is None or picard > 5 * (newton or 1),
        f"{picard or 'more than 400'} iterations, Newton's {newton}",
        reasons=Reasons(
            "it carries what is right one step further with each iteration, or as fast as the cell "
            "forgets",
            "a cell that forgets at once needs no more",
        ),
    )


def _iterations(rows: Rows, case: str, solver: str) -> int | None:
    return rows[case]["solvers"][solver]["iterations"]


def _accurate(rows: Rows) -> Verdict:
    errors: dict[str, tuple[float, float]] = {}
    for n in UNITS:
        for T in LENGTHS:
            case = cell_of_grid(n, T)
            found = rows[case].get("error", {}) if case in rows else {}
            if AT_ONCE in found:
                errors[case] = found[AT_ONCE], found[LOOP]
    if not errors:
        raise UnmeasuredError("no cell of the grid was measured")
    worst = max(errors, key=lambda case: errors[case][0] / errors[case][1])
    ours, loops = errors[worst]
    return Verdict(
        ours <= max(1e-5, _ROUNDING * loops),
        f"{ours:.1e} against float64 at most, relative to the loop's {loops:.1e} ({worst})",
        facts=f"over output and all gradients of {len(errors)} cells",
        reasons=Reasons(
            "no result is returned that does not satisfy every step to rounding",
            "a step that is satisfied to rounding is not as right as one that was computed",
        ),
    )


def plots(rows: Rows) -> list[dict[str, Any]]:
    """The grid: speed-ups over lengths, and times over units."""

    def known(places: tuple[int, ...], figure: Any) -> list[tuple[int, float]]:
        found: list[tuple[int, float]] = []
        for place in places:
            try:
                found.append((place, figure(place)))
            except UnmeasuredError:
                continue
        return found

    gains = {
        f"n = {n}": known(LENGTHS, lambda T, n=n: rows.faster(cell_of_grid(n, T), AT_ONCE, LOOP))
        for n in UNITS
    }
    times = {
        who: known(UNITS, lambda n, who=who: rows.seconds(cell_of_grid(n, 1000), who))
        for who in (LOOP, AT_ONCE, "torch")
    }
    curves = [
        curve("all steps at once, times as fast as the loop", "steps T", "times", "xy", gains),
        curve("a training step of 1000 steps", "units n", "seconds", "xy", times),
    ]
    return [one for one in curves if one["lines"]]


CLAIMS = (
    Claim("abstract", "up to three orders of magnitude faster", "2029x on a V100", _orders),
    Claim("authors' tables", "faster forward, n = 1, T = 10 000", "138x on a V100", _forward),
    Claim("authors' tables", "faster in training, n = 1, T = 10 000", "289x on a V100", _training),
    Claim(
        "authors' tables",
        "the longer, the larger the gain, n = 1, in training",
        "41x at 1000, 816x at 100 000",
        _longer,
    ),
    Claim("talk, drawbacks", "the gain falls with n", "", _larger),
    Claim("talk, drawbacks", "work grows with the third power of n", "O(n³)", _cubic),
    Claim("paper, limitations", "memory grows with the square of n", "O(n²)", _memory),
    Claim("talk, drawbacks", "states that are apart keep it fast", "", _detached),
    Claim("talk, algorithm", "a few iterations are enough", "fewer than 20", _few),
    Claim("paper, experiments", "iterations do not grow with the length", "", _constant),
    Claim("talk, drawbacks", "after training it may not converge", "", _after_training),
    Claim("talk, drawbacks", "it converges if NaN are replaced by 0", "", _replaced),
    Claim("talk, Picard", "Picard's iteration is far worse", "", _picard),
    Claim("abstract", "no loss of accuracy", "2.4e-7 at most, T = 10 000", _accurate),
)

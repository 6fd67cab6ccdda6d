"""A training step (or a forward) by all contestants of a case: agreement first, then time."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

from torch.linalg import vector_norm

from benchmarks.cases import Case, Effort
from benchmarks.contestants import draw_problem, enter
from benchmarks.measures.limits import judged_steps, refusals
from benchmarks.problem import Contestant, Problem, Results
from benchmarks.rows import study
from benchmarks.workloads.scans import scanned_bytes
from elman.errors import EngineError, VerifyError
from elman.measuring.timing import quartiles, ratios, time_side_by_side
from elman.tuning.agreement import disagreement
from elman.tuning.waiting import Waiting

# Measures whose contestants are given a cotangent of every output.
_DENSE = ("train", "memory", "fit", "variants", "users")


@dataclass(frozen=True)
class Entered:
    """Who is to be timed, by name: those that are there, and have agreed; why others are not.

    Attributes:
        errors: the largest relative RMS error of each.
        flop: of the products.
        steps: over which they were compared.
    """

    present: dict[str, Contestant]
    absent: dict[str, str]
    errors: dict[str, float]
    flop: int
    steps: int


def measure_steps(case: Case, effort: Effort) -> dict[str, Any]:
    """Time the contestants interleaved, after each has agreed with the baseline's float64 run.

    Raises:
        VerifyError: a contestant computes something else.
        EngineError: the baseline, or elman itself, cannot run the case.
    """
    return _timed(case, effort, _entered(case))


def measure_variants(case: Case, effort: Effort) -> dict[str, Any]:
    """Time training steps of several formulas interleaved.

    A contestant is a name and its cell, ``elman-c gru``; it has agreed with the float64 run of the
    first one of its own formula.

    Raises:
        VerifyError, EngineError: as :func:`measure_steps`.
    """
    groups: dict[str, list[str]] = {}
    for contestant in case.contestants:
        name, cell = contestant.split()
        groups.setdefault(cell, []).append(name)
    every = Entered({}, {}, {}, 0, case.T)
    for cell, names in groups.items():
        one = _entered(
            replace(case, measure="train", cell=cell, contestants=tuple(names), baseline=names[0])
        )
        every = Entered(
            every.present | {f"{name} {cell}": who for name, who in one.present.items()},
            every.absent | {f"{name} {cell}": why for name, why in one.absent.items()},
            every.errors | {f"{name} {cell}": error for name, error in one.errors.items()},
            max(every.flop, one.flop),
            min(every.steps, one.steps),
        )
    return _timed(case, effort, every)


def measure_products(case: Case, effort: Effort) -> dict[str, Any]:
    """Time layouts of a product interleaved, as :func:`measure_steps`, and tell their speeds."""
    row = measure_steps(case, effort)
    speeds = {name: row["flop"] / taken["median"] / 1e9 for name, taken in row["seconds"].items()}
    texts = [f"{name} {speed:.0f}" for name, speed in speeds.items()]
    return study(f"GFLOP/s: {', '.join(texts)}", **row)


def _entered(case: Case) -> Entered:
    absent = refusals(case)
    able = [name for name in case.contestants if name not in absent]
    if not able:
        return Entered({}, absent, {}, 0, 0)
    problem = draw_problem(case)
    steps = judged_steps(case, able)
    compared = problem if steps == case.T else problem.first(steps)
    want = _judgement(compared)
    present: dict[str, Contestant] = {}
    errors: dict[str, float] = {}
    for name in able:
        try:
            entered = enter(name, compared)
            if not isinstance(entered, str):
                errors[name] = agreed(name, entered.results(), want, compared.case)
            if not isinstance(entered, str) and compared is not problem:
                entered.close()
                entered = enter(name, problem)
        except EngineError as refused:
            entered = str(refused)
        if isinstance(entered, str):
            absent[name] = entered
        else:
            present[name] = entered
    if case.baseline not in present:
        raise EngineError(absent[case.baseline])
    return Entered(present, absent, errors, problem.flop, steps)


def _judgement(problem: Problem) -> Results:
    """What the baseline computes in float64."""
    oracle = enter(problem.case.baseline, problem.double())
    if isinstance(oracle, str):
        raise EngineError(oracle)
    return oracle.results()


def _timed(case: Case, effort: Effort, entered: Entered) -> dict[str, Any]:
    present = entered.present
    if not present:
        return {"seconds": {}, "ratio": {}, "error": {}, "absent": entered.absent}
    runs = {name: contestant.run for name, contestant in present.items()}
    far = {name: one.sample for name, one in present.items() if one.sample is not None}
    waiting = Waiting()
    samples = time_side_by_side(runs, effort.seconds, effort.rounds, far)
    # contestants of kind "beside" take each other's cores, as they are meant to
    waited = 0.0 if case.kind == "beside" else waiting.share()
    steady = {name: taken.steady for name, taken in samples.items()}
    for contestant in present.values():
        contestant.close()
    return {
        "wants": list(present[case.baseline].wants),
        "dy": "dense" if case.measure in _DENSE else "none",
        "flop": entered.flop,
        **({"bytes": scanned_bytes(case)} if case.measure == "scan" else {}),
        "seconds": {name: asdict(quartiles(taken)) for name, taken in steady.items()},
        "first": {n: asdict(quartiles(one.first)) for n, one in samples.items() if one.first},
        "ratio": {name: asdict(ratio) for name, ratio in ratios(steady, case.baseline).items()},
        "error": entered.errors,
        **({"compared": entered.steps} if entered.steps < case.T else {}),
        "facts": {name: facts for name, one in present.items() if (facts := one.facts())},
        "waited": waited,
        "absent": entered.absent,
    }


def agreed(name: str, got: Results, want: Results, case: Case) -> float:
    """The largest relative RMS error over all results.

    Raises:
        VerifyError: it is not a rounding error.
    """
    if got.keys() != want.keys():
        missing = ", ".join(sorted(got.keys() ^ want.keys()))
        raise VerifyError(f"{case.name}: {name} and {case.baseline} do not both have {missing}")
    reason = disagreement(got, want, case.dtype, case.T)
    if reason is not None:
        raise VerifyError(f"{case.name}: {name} disagrees with {case.baseline}: {reason}")
    errors = []
    for key, value in want.items():
        off = vector_norm(got[key].double() - value)
        least = 1e-30 * value.numel() ** 0.5
        errors.append(float(off / vector_norm(value).clamp_min(least)))
    return max(errors)

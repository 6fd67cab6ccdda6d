"""A training step (or a forward) by all contestants of a case: agreement first, then time."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from elman.bench.cases import Case, Effort
from elman.bench.contest import Contestant, Results
from elman.bench.contestants import draw_problem, enter
from elman.bench.scanning import scanned_bytes
from elman.bench.timing import quartiles, ratios, time_side_by_side
from elman.errors import EngineError, VerifyError
from elman.tuning.agreement import disagreement


def measure_steps(case: Case, effort: Effort) -> dict[str, Any]:
    """Time the contestants interleaved, after each has agreed with the baseline's float64 run.

    Raises:
        VerifyError: a contestant computes something else.
        EngineError: the baseline, or elman itself, cannot run the case.
    """
    problem = draw_problem(case)
    present: dict[str, Contestant] = {}
    absent: dict[str, str] = {}
    errors: dict[str, float] = {}
    oracle = enter(case.baseline, problem.double())
    if isinstance(oracle, str):
        raise EngineError(oracle)
    want = oracle.results()
    for name in case.contestants:
        try:
            entered = enter(name, problem)
            if not isinstance(entered, str):
                errors[name] = agreed(name, entered.results(), want, case)
        except EngineError as refused:
            entered = str(refused)
        if isinstance(entered, str):
            absent[name] = entered
        else:
            present[name] = entered
    if case.baseline not in present:
        raise EngineError(absent[case.baseline])
    runs = {name: contestant.run for name, contestant in present.items()}
    far = {name: one.sample for name, one in present.items() if one.sample is not None}
    samples = time_side_by_side(runs, effort.seconds, effort.rounds, far)
    steady = {name: taken.steady for name, taken in samples.items()}
    for contestant in present.values():
        contestant.close()
    return {
        "wants": list(present[case.baseline].wants),
        "dy": "dense" if case.measure in ("train", "memory", "fit") else "none",
        "flop": problem.flop,
        **({"bytes": scanned_bytes(case)} if case.measure == "scan" else {}),
        "seconds": {name: asdict(quartiles(taken)) for name, taken in steady.items()},
        "first": {n: asdict(quartiles(one.first)) for n, one in samples.items() if one.first},
        "ratio": {name: asdict(ratio) for name, ratio in ratios(steady, case.baseline).items()},
        "error": errors,
        "facts": {name: facts for name, one in present.items() if (facts := one.facts())},
        "absent": absent,
    }


def agreed(name: str, got: Results, want: Results, case: Case) -> float:
    """The largest relative RMS error over all results.

    Raises:
        VerifyError: it is no rounding error.
    """
    if got.keys() != want.keys():
        missing = ", ".join(sorted(got.keys() ^ want.keys()))
        raise VerifyError(f"{case.name}: {name} and {case.baseline} do not both have {missing}")
    reason = disagreement(got, want, case.dtype, case.T)
    if reason is not None:
        raise VerifyError(f"{case.name}: {name} disagrees with {case.baseline}: {reason}")
    errors = []
    for key, value in want.items():
        off = (got[key].double() - value).square().mean().sqrt()
        errors.append(float(off / value.square().mean().sqrt().clamp_min(1e-30)))
    return max(errors)

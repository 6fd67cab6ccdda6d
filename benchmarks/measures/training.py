"""A training step (or a forward) by all contestants of a case: agreement first, then time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from torch.linalg import vector_norm

from benchmarks.cases import Case, Effort
from benchmarks.peers.remote import enter
from benchmarks.problem import Contestant, Problem, Results, draw_problem
from elman.errors import EngineError, VerifyError
from elman.measuring.timing import quartiles, ratios, time_side_by_side
from elman.tuning.agreement import disagreement
from elman.tuning.waiting import Waiting


@dataclass
class Entered:
    """Who is to be timed, by name: those that are there, and have agreed; why others are not.

    Attributes:
        errors: the largest relative RMS error of each.
        flop: of the products.
        moved: bytes, where these are counted instead.
    """

    present: dict[str, Contestant] = field(default_factory=dict)
    absent: dict[str, str] = field(default_factory=dict)
    errors: dict[str, float] = field(default_factory=dict)
    flop: int = 0
    moved: int = 0


def measure_steps(case: Case, effort: Effort) -> dict[str, Any]:
    """Time the contestants interleaved, after each has agreed with the baseline's float64 run.

    Raises:
        VerifyError: a contestant computes something else.
        EngineError: the baseline, or elman itself, cannot run the case.
    """
    return timed(case, effort, entered(case, {}, case.judged))


def entered(case: Case, refused: Mapping[str, str], judged: int) -> Entered:
    """Those contestants of a case that are not refused, compared over so many steps (0: all)."""
    able, found = [name for name in case.contestants if name not in refused], Entered()
    found.absent |= refused
    if not able:
        return found
    problem = draw_problem(case)
    compared = problem.first(judged) if 0 < judged < case.T else problem
    want = _judgement(compared)
    for name in able:
        try:
            one = enter(name, compared)
            if not isinstance(one, str):
                found.errors[name] = agreed(name, one.results(), want, compared.case)
            if not isinstance(one, str) and compared is not problem:
                one.close()
                one = enter(name, problem)
        except EngineError as error:
            one = str(error)
        if isinstance(one, str):
            found.absent[name] = one
        else:
            found.present[name] = one
    if case.baseline not in found.present:
        raise EngineError(found.absent[case.baseline])
    found.flop, found.moved = problem.flop, problem.moved
    return found


def _judgement(problem: Problem) -> Results:
    """What the baseline computes in float64."""
    oracle = enter(problem.case.baseline, problem.double())
    if isinstance(oracle, str):
        raise EngineError(oracle)
    return oracle.results()


def timed(case: Case, effort: Effort, entered: Entered, judged: int = 0) -> dict[str, Any]:
    """The times of all who are there, who have agreed over so many steps."""
    present, judged = entered.present, judged or case.judged
    if not present:
        return {"seconds": {}, "ratio": {}, "error": {}, "absent": entered.absent}
    runs = {name: contestant.run for name, contestant in present.items()}
    far = {name: one.sample for name, one in present.items() if one.sample is not None}
    waiting = Waiting()
    samples = time_side_by_side(runs, effort.seconds, effort.rounds, far)
    waited = waiting.share()
    steady = {name: sample.steady for name, sample in samples.items()}
    for contestant in present.values():
        contestant.close()
    return {
        "wants": list(present[case.baseline].wants),
        "dy": "dense" if case.measure.dense else "none",
        "flop": entered.flop,
        **({"bytes": entered.moved} if entered.moved else {}),
        "seconds": {name: asdict(quartiles(sample)) for name, sample in steady.items()},
        "first": {n: asdict(quartiles(one.first)) for n, one in samples.items() if one.first},
        "ratio": {name: asdict(ratio) for name, ratio in ratios(steady, case.baseline).items()},
        "error": entered.errors,
        **({"compared": judged} if 0 < judged < case.T else {}),
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

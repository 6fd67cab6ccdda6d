"""A training step (or a forward) by all contestants of a case: agreement first, then time."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from torch.linalg import vector_norm

from benchmarks.cases import Case, Effort
from benchmarks.peers.remote import enter
from benchmarks.problem import Contestant, Problem, Results, draw_problem
from benchmarks.timing import time_side_by_side
from elman.errors import EngineError, VerifyError
from elman.tuning.agreement import disagreement
from elman.tuning.machine import Waiting
from elman.tuning.timing import quartiles, ratios


@dataclass
class Field:
    """The contestants of a case by name: those that are present, and have agreed; why others are
    absent.

    Attributes:
        errors: the largest relative RMS error of each.
        flop: of the products.
        moved: bytes, where these are counted instead.
    """

    present: dict[str, Contestant] = dataclasses.field(default_factory=dict)
    absent: dict[str, str] = dataclasses.field(default_factory=dict)
    errors: dict[str, float] = dataclasses.field(default_factory=dict)
    flop: int = 0
    moved: int = 0


def measure_steps(case: Case, effort: Effort) -> dict[str, Any]:
    """Time the contestants interleaved, after each has agreed with the baseline's float64 run.

    Raises:
        VerifyError: a contestant computes something else.
        EngineError: the baseline, or elman itself, cannot run the case.
    """
    return timed(case, effort, enter_all(case, {}, case.judged))


def enter_all(case: Case, refused: Mapping[str, str], judged: int) -> Field:
    """Build the contestants that are not refused, and compare them over so many steps (0: all)."""
    able, field = [name for name in case.contestants if name not in refused], Field()
    field.absent |= refused
    if not able:
        return field
    problem = draw_problem(case)
    compared = problem.first(judged) if 0 < judged < case.T else problem
    want = _judgement(compared)
    for name in able:
        try:
            contestant = enter(name, compared)
            if not isinstance(contestant, str):
                field.errors[name] = agree(name, contestant.results(), want, compared.case)
            if not isinstance(contestant, str) and compared is not problem:
                contestant.close()
                contestant = enter(name, problem)
        except EngineError as error:
            contestant = str(error)
        if isinstance(contestant, str):
            field.absent[name] = contestant
        else:
            field.present[name] = contestant
    if case.baseline not in field.present:
        raise EngineError(field.absent[case.baseline])
    field.flop, field.moved = problem.flop, problem.moved
    return field


def _judgement(problem: Problem) -> Results:
    """Results of the baseline in float64."""
    oracle = enter(problem.case.baseline, problem.double())
    if isinstance(oracle, str):
        raise EngineError(oracle)
    return oracle.results()


def timed(case: Case, effort: Effort, field: Field, judged: int = 0) -> dict[str, Any]:
    """The times of all who are present, who have agreed over so many steps."""
    present, judged = field.present, judged or case.judged
    if not present:
        return {"seconds": {}, "ratio": {}, "error": {}, "absent": field.absent}
    runs = {name: contestant.run for name, contestant in present.items()}
    far = {name: c.sample for name, c in present.items() if c.sample is not None}
    waiting = Waiting()
    samples = time_side_by_side(runs, effort.seconds, effort.rounds, far)
    waited = waiting.share()
    steady = {name: sample.steady for name, sample in samples.items()}
    for contestant in present.values():
        contestant.close()
    return {
        "wants": list(present[case.baseline].wants),
        "dy": "dense" if case.measure.dense else "none",
        "flop": field.flop,
        **({"bytes": field.moved} if field.moved else {}),
        "seconds": {name: asdict(quartiles(sample)) for name, sample in steady.items()},
        "first": {name: asdict(quartiles(s.first)) for name, s in samples.items() if s.first},
        "ratio": {name: asdict(ratio) for name, ratio in ratios(steady, case.baseline).items()},
        "error": field.errors,
        **({"compared": judged} if 0 < judged < case.T else {}),
        "facts": {name: facts for name, c in present.items() if (facts := c.facts())},
        "waited": waited,
        "absent": field.absent,
    }


def agree(name: str, got: Results, want: Results, case: Case) -> float:
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

"""Who is not measured because a call is forecast to take too long or too much memory.

Seconds are those of a short run of the same contestant, times the steps that it was short of: all
contestants take time in proportion to T once what a call costs besides is small, so a run that is
too short forecasts too much, and is followed by one of ten times its length as long as that is
cheap. Bytes are what ``explain`` says of a step of the whole length; who does not say takes none.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import KW_ONLY, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.cases import OURS, Case, Effort
from benchmarks.contestants import CHECKPOINT, FORWARD, MODULES, TRAIN, module_of
from benchmarks.measures.training import enter_all, timed
from benchmarks.peers.remote import enter
from benchmarks.problem import draw_problem
from elman.errors import EngineError
from elman.explaining import step_bytes
from elman.nn.explain import layers_of

PROBE = 100  # steps of the first short run
JUDGED = 10_000  # steps that are compared where memory does not allow all
REFUSED = "refused: "  # how the reason of an absent contestant begins then
_LONGER = 10  # times, the next short run
_CHEAP = 0.5  # share of a case's limit that a short run may take
_RUNS = 3  # timed, after one that compiles
_ROOM = 0.9  # share of the available memory that is counted on
_MEMORY = Path("/proc/meminfo")
_DOUBLE = 2  # times as large as float32


@dataclass(frozen=True)
class LimitedCase(Case):
    """A case of layers whose calls may take so many seconds (``most``) and the memory that there
    is, by forecast."""

    _: KW_ONLY
    most: float


def measure_limited(case: LimitedCase, effort: Effort) -> dict[str, Any]:
    """As :func:`measure_steps`, those who would take too long or too much memory left out."""
    refused = refusals(case)
    able = [name for name in case.contestants if name not in refused]
    judged = judged_steps(case, able) if able else 0
    return timed(case, effort, enter_all(case, refused, judged), judged)


def refusals(case: LimitedCase) -> dict[str, str]:
    """Who is not measured, and why."""
    reasons = {name: why for name in case.contestants if (why := _too_long(case, name))}
    rest = [name for name in case.contestants if name not in reasons]
    if (room := available()) is not None:
        beside = sum(_data_bytes(case)) + len(rest) * _data_bytes(case)[0]
        for name in rest:
            try:
                needed = beside + _step_bytes(case, name)
            except EngineError:
                continue  # it says so when it enters
            if needed > room:
                gib = needed / (1 << 30), room / (1 << 30)
                reasons[name] = "needs about {:.0f} GiB, {:.0f} available".format(*gib)
    if case.baseline in reasons:
        for name in case.contestants:
            reasons.setdefault(name, f"{case.baseline}, which judges it, is")
    return {name: REFUSED + why for name, why in reasons.items()}


def judged_steps(case: LimitedCase, contestants: Sequence[str]) -> int:
    """Over how many steps contestants are compared with the baseline's float64 run: all, if memory
    allows that."""
    room = available()
    if room is None or case.T <= JUDGED:
        return case.T
    x, dy = _data_bytes(case)
    judge = _DOUBLE * (_step_bytes(case, case.baseline) + x + dy + x) + x + dy
    judged = max(_step_bytes(case, name) for name in contestants) + len(contestants) * x
    judged += (1 + 2 * _DOUBLE) * (x + dy)  # what is compared, and in float64 with what
    return case.T if max(judge, judged) <= room else JUDGED


def available() -> int | None:
    """Memory that processes can have (bytes), with something to spare; None if nobody says."""
    if not _MEMORY.exists():
        return None
    lines = dict(line.split(":", 1) for line in _MEMORY.read_text().splitlines())
    return int(_ROOM * 1024 * int(lines["MemAvailable"].split()[0]))


def _data_bytes(case: Case) -> tuple[int, int]:
    """Of x, which each contestant has for itself, and of dy."""
    item = getattr(torch, case.dtype).itemsize * case.T * case.B
    return item * case.input_size, item * case.H


def _step_bytes(case: Case, name: str) -> int:
    """What a training step takes beside x and dy (bytes); 0 where nobody says."""
    if name not in MODULES:
        return 0
    short = draw_problem(replace(case, T=1))
    module = module_of(name, short)
    if isinstance(module, str):
        return 0
    x = short.x.expand(case.T, -1, -1).requires_grad_(case.measure.backward)
    return step_bytes(layers_of(module, x), measure=name not in (OURS, CHECKPOINT)) or 0


def _too_long(case: LimitedCase, name: str) -> str | None:
    """The forecast in words, and the short run that it is made of; None if it is short enough."""
    T = PROBE
    while T < case.T:
        seconds = _short_run(replace(case, T=T), name)
        if seconds is None or seconds * case.T / T <= case.most:
            return None
        if _LONGER * seconds > _CHEAP * case.most or _LONGER * T >= case.T:
            forecast = seconds * case.T / T
            text = f"{forecast:.0f}" if forecast >= 10 else f"{forecast:.1f}"
            return (
                f"a call would take about {text} s (limit {case.most:g} s), by "
                f"{seconds:.2g} s measured at T = {T}"
            )
        T *= _LONGER
    return None


def _short_run(case: Case, name: str) -> float | None:
    """Seconds of a call; None if there is no such contestant, which says so when it enters."""
    try:
        contestant = enter(name, draw_problem(case))
        if isinstance(contestant, str):
            return None
        with closing(contestant):
            contestant.run()
            times: list[float] = []
            for _ in range(_RUNS):
                start = time.perf_counter()
                contestant.run()
                times.append(time.perf_counter() - start)
    except EngineError:
        return None
    return min(times)


LIMITED_TRAIN, LIMITED_FORWARD = (replace(way, run=measure_limited) for way in (TRAIN, FORWARD))

"""Who is not measured because a call is forecast to take too long or too much memory.

Seconds are those of a short run of the same contestant, times the steps that it was short of: all
contestants take time in proportion to T once what a call costs besides is small, so a run that is
too short forecasts too much, and is followed by one of ten times its length as long as that is
cheap. Bytes are what ``explain`` says of a step of the whole length; who does not say takes none.
"""

from __future__ import annotations

import time
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
from elman.nn.inspect import layers_of

PROBE = 100  # steps of the first short run
ELEMENTS = 2 * 10**8  # of an output of which all steps are compared, as memory allows
JUDGED = 10_000  # steps that are compared of larger ones
REFUSED = "refused: "  # how the reason of an absent contestant begins then
_LONGER = 10  # times, the next short run
_CHEAP = 0.5  # share of a case's limit that a short run may take
_RUNS = 3  # timed, after one that compiles
_ROOM = 0.9  # share of the available memory that is counted on
_MEMORY = Path("/proc/meminfo")


@dataclass(frozen=True)
class LimitedCase(Case):
    """A case of layers whose calls may take so many seconds (``most``) and the memory that there
    is, by forecast."""

    _: KW_ONLY
    most: float


def measure_limited(case: LimitedCase, effort: Effort) -> dict[str, Any]:
    """Measure as :func:`measure_steps`, without those that are refused."""
    refused = refusals(case)
    judged = case.T if case.T * case.B * case.H <= ELEMENTS else JUDGED
    return timed(case, effort, enter_all(case, refused, judged), judged)


def refusals(case: LimitedCase) -> dict[str, str]:
    """Contestants that are refused, with the reason."""
    reasons = {name: reason for name in case.contestants if (reason := _too_long(case, name))}
    admitted = [name for name in case.contestants if name not in reasons]
    if (room := available()) is not None:
        item = getattr(torch, case.dtype).itemsize * case.T * case.B
        # x is there once for each contestant, and drawn; dy once.
        beside = item * ((1 + len(admitted)) * case.input_size + case.H)
        for name in admitted:
            needed = beside + _step_bytes(case, name)
            if needed > room:
                gib = needed / (1 << 30), room / (1 << 30)
                reasons[name] = "needs about {:.0f} GiB, {:.0f} available".format(*gib)
    if case.baseline in reasons:
        for name in case.contestants:
            reasons.setdefault(name, f"{case.baseline}, which judges it, is")
    return {name: REFUSED + reason for name, reason in reasons.items()}


def available() -> int | None:
    """Memory that processes can have (bytes), with something to spare; None if nobody says."""
    if not _MEMORY.exists():
        return None
    lines = dict(line.split(":", 1) for line in _MEMORY.read_text().splitlines())
    return int(_ROOM * 1024 * int(lines["MemAvailable"].split()[0]))


def _step_bytes(case: Case, name: str) -> int:
    """Forecast bytes of a training step beside x and dy; 0 where there is no forecast."""
    short = draw_problem(replace(case, T=1))
    module = module_of(name, short) if name in MODULES else ""
    if isinstance(module, str):
        return 0
    x = short.x.expand(case.T, -1, -1).requires_grad_(case.measure.backward)
    try:
        return step_bytes(layers_of(module, x), measure=name not in (OURS, CHECKPOINT)) or 0
    except EngineError:
        return 0  # it says so when it enters


def _too_long(case: LimitedCase, name: str) -> str | None:
    """The forecast in words, and the short run that it is made of; None if it is short enough."""
    T = PROBE
    while T < case.T:
        seconds = _short_run(replace(case, T=T), name)
        forecast = 0.0 if seconds is None else seconds * case.T / T
        if seconds is None or forecast <= case.most:
            return None
        if _LONGER * seconds > _CHEAP * case.most or _LONGER * T >= case.T:
            text = f"{forecast:.0f}" if forecast >= 10 else f"{forecast:.1f}"
            about = f"a call would take about {text} s (limit {case.most:g} s)"
            return f"{about}, by {seconds:.2g} s measured at T = {T}"
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

"""Who is not measured because a call is forecast to take too long or too much memory.

Seconds are those of a short run of the same contestant, times the steps that it was short of: all
contestants take time in proportion to T once what a call costs besides is small, so a run that is
too short forecasts too much, and is followed by one of ten times its length as long as that is
cheap. Bytes are what ``explain`` says of a step of the whole length; who does not say takes none.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.cases import OURS, Case, Effort
from benchmarks.contestants import CHECKPOINT, FORWARD, MODULES, TRAIN, module_of
from benchmarks.measures.training import entered, timed
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
    return timed(case, effort, entered(case, refused, judged), judged)


def refusals(case: LimitedCase) -> dict[str, str]:
    """Who is not measured, and why."""
    found = {name: why for name in case.contestants if (why := _too_long(case, name))}
    room = available()
    if room is not None:
        rest = [name for name in case.contestants if name not in found]
        around = _clones(case, len(rest))
        found |= {name: why for name in rest if (why := _too_large(case, name, around, room))}
    found = {name: REFUSED + why for name, why in found.items()}
    if case.baseline in found:
        for name in case.contestants:
            found.setdefault(name, f"{REFUSED}{case.baseline}, which judges it, is")
    return found


def judged_steps(case: LimitedCase, contestants: Sequence[str]) -> int:
    """Over how many steps contestants are compared with the baseline's float64 run: all, if memory
    allows that."""
    room = available()
    if room is None or case.T <= JUDGED:
        return case.T
    given, x = _given(case)
    judge = _DOUBLE * (_step(case, case.baseline) + given + x) + given
    judged = max(_step(case, name) for name in contestants) + _clones(case, len(contestants))
    judged += 2 * _DOUBLE * given  # what is compared, and in float64 what it is compared with
    return case.T if max(judge, judged) <= room else JUDGED


def available() -> int | None:
    """Memory that processes can have (bytes), with something to spare; None if nobody says."""
    if not _MEMORY.exists():
        return None
    lines = dict(line.split(":", 1) for line in _MEMORY.read_text().splitlines())
    return int(_ROOM * 1024 * int(lines["MemAvailable"].split()[0]))


def _given(case: Case) -> tuple[int, int]:
    """Bytes of x and dy together, and of x."""
    item = getattr(torch, case.dtype).itemsize * case.T * case.B
    return item * (case.input_size + case.H), item * case.input_size


def _clones(case: Case, contestants: int) -> int:
    """Bytes of x and dy, and of each contestant's own x."""
    given, x = _given(case)
    return given + contestants * x


def _step(case: Case, name: str) -> int:
    """What a training step takes beside x and dy (bytes); 0 where nobody says."""
    if name not in MODULES:
        return 0
    short = draw_problem(replace(case, T=1))
    module = module_of(name, short)
    if isinstance(module, str):
        return 0
    x = short.x.expand(case.T, -1, -1).requires_grad_(case.measure.backward)
    return step_bytes(layers_of(module, x), measure=name not in (OURS, CHECKPOINT)) or 0


def _too_large(case: Case, name: str, around: int, room: int) -> str | None:
    """In words, with what is needed (``around`` without the step) and what there is."""
    try:
        needed = around + _step(case, name)
    except EngineError:
        return None  # it says so when it enters
    if needed <= room:
        return None
    return f"needs about {needed / (1 << 30):.0f} GiB, {room / (1 << 30):.0f} available"


def _too_long(case: LimitedCase, name: str) -> str | None:
    """In words, with the forecast and the short run that it is made of."""
    T = PROBE
    while T < case.T:
        taken = _short_run(replace(case, T=T), name)
        if taken is None:
            return None
        forecast = taken * case.T / T
        if forecast <= case.most:
            return None
        if _LONGER * taken > _CHEAP * case.most or _LONGER * T >= case.T:
            text = f"{forecast:.0f}" if forecast >= 10 else f"{forecast:.1f}"
            return (
                f"a call would take about {text} s (limit {case.most:g} s), by "
                f"{taken:.2g} s measured at T = {T}"
            )
        T *= _LONGER
    return None


def _short_run(case: Case, name: str) -> float | None:
    """Seconds of a call; None if there is no such contestant."""
    try:
        entered = enter(name, draw_problem(case))
    except EngineError:
        return None  # it says so when it enters
    if isinstance(entered, str):
        return None
    try:
        entered.run()
        times: list[float] = []
        for _ in range(_RUNS):
            start = time.perf_counter()
            entered.run()
            times.append(time.perf_counter() - start)
    except EngineError:
        return None
    finally:
        entered.close()
    return min(times)


LIMITED_TRAIN, LIMITED_FORWARD = (replace(way, run=measure_limited) for way in (TRAIN, FORWARD))

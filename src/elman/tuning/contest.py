"""Candidates timed interleaved, so that drift of the machine hits all of them alike."""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Collection, Generator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from functools import partial

from elman.engines import deadline, registry
from elman.engines.base import Job
from elman.errors import ElmanError
from elman.ir.types import shape_size
from elman.tuning.evidence import FEW, QUIET, TIE, Evidence, fair
from elman.tuning.verification import flops
from elman.tuning.waiting import waited_s

BUDGET_S = 0.2  # (s) for timing all candidates of one size bucket, compiling aside
_PATIENCE = 3.0  # times the budget, while other programs take the cores
_ROUNDS = 15  # at most
_CALL_S = 0.02  # (s) sequences, then batches, are cut so that a call takes about this
_LEAST_STEPS, _LEAST_BATCH = 2, 128
_FLOPS_PER_S, _BYTES_PER_S, _STEP_S = 1e11, 2e10, 4e-6  # what a machine like today's does, roughly
_GIVEN_UP_S, _GIVEN_UP_RATIO = 1.0, 20.0  # a call, or times the best: the longer of both
_PRUNE_RATIO = 2.0  # times the best after a few rounds, and its square before: not timed again

Run = Callable[[], object]
Runs = Mapping[str, Run]


def cut(job: Job, steps: int, batch: int) -> tuple[int, int, bool]:
    """T and B of the calls that are timed, the same in every process; whether they are long."""
    shapes = [shape_size(weight.shape, job.spec.sizes) for weight in job.graph.weights]
    weights = sum(shape[0] * shape[1] for shape in shapes if len(shape) == 2)
    read = 12.0 * weights / _BYTES_PER_S

    def step(samples: int) -> float:
        return max(flops(job) * samples / _FLOPS_PER_S, read, _STEP_S)

    few = max(min(steps, _LEAST_STEPS), min(steps, int(_CALL_S / step(batch))))
    while batch >= 2 * _LEAST_BATCH and few * step(batch) > _CALL_S:
        batch //= 2
    return few, batch, few * step(batch) > BUDGET_S / 4


def timed(
    runs: Runs, evidence: Evidence, per: float, engines: Collection[str], long: bool = False
) -> dict[str, str]:
    """Time candidates once per round until the winner is clear or the budget is used up.

    Where a call is long, the forecast's and the candidate about which least is known are called
    once. Who is pruned in the first calls is not called again; an iteration that does not converge
    on random data is given up after a second, or 20 if it is the first.

    Args:
        runs: by label, the best forecast first; they wait for their device.
        evidence: takes the samples in.
        per: what a sample's time is divided by: steps times samples of the call.
        engines: whose kernels they run.
        long: whether a call is expected to take a large part of the budget; if not, each is called
            twice before it is timed, since first calls of a process start slowly.

    Returns:
        why some could not be timed.
    """
    evidence.tries += 1
    refusals: dict[str, str] = {}
    live: dict[str, Run] = {}
    best = math.inf
    with ExitStack() as stack:
        for name in engines:
            stack.enter_context(registry.find(name).undisturbed())
        stack.enter_context(_uncollected())
        for who, run in _least_known(runs, evidence):
            try:
                limit = max(_GIVEN_UP_S, _GIVEN_UP_RATIO * min(best, _GIVEN_UP_S))
                bounded = partial(_bounded, run, limit)
                sample = _sample(bounded)
                if not long and sample[0] < limit:
                    sample = min(sample, _sample(bounded))
            except (ElmanError, RuntimeError) as error:
                refusals[who] = f"failed: {error}"
                continue
            given_up = sample[0] >= limit
            if long or given_up or fair(*sample) > _PRUNE_RATIO**2 * best:
                evidence.add(who, sample[0] / per, sample[1])
            else:
                live[who] = run
            if long and best < math.inf:
                break
            if not given_up:
                best = min(best, fair(*sample))
        if live and len(runs) > 1:
            _rounds(live, evidence, per)
    return refusals


@contextmanager
def _uncollected() -> Generator[None]:
    """No collection of garbage inside: one takes longer than many calls, and hits one candidate."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


def _bounded(run: Run, limit: float) -> None:
    """A call that is given up if it takes so long: its time is then known to be no less (s)."""
    with deadline.within(limit), suppress(deadline.DeadlineError):
        run()


def _least_known(runs: Runs, evidence: Evidence) -> list[tuple[str, Run]]:
    """The forecast's first, then those with the fewest samples."""
    every = list(runs.items())
    return every[:1] + sorted(every[1:], key=lambda one: len(evidence.samples.get(one[0], ())))


def _rounds(live: dict[str, Run], evidence: Evidence, per: float) -> None:
    begun, quiet_s = time.perf_counter(), 0.0
    for done in range(1, _ROUNDS + 1):
        for who, run in live.items():
            seconds, waited = _sample(run)
            evidence.add(who, max(seconds, 1e-9) / per, waited)
            quiet_s += seconds if waited <= QUIET else 0.0
        best = min(evidence.time(who) for who in live)
        limit = best * (_PRUNE_RATIO if done >= FEW else _PRUNE_RATIO**2)
        live = {who: run for who, run in live.items() if evidence.time(who) <= limit}
        patience = time.perf_counter() - begun > _PATIENCE * BUDGET_S
        if patience or quiet_s >= BUDGET_S or (done > FEW and _clear(evidence, list(live))):
            return


def _clear(evidence: Evidence, live: list[str]) -> bool:
    """Whether the slow quarter of the best one's samples beats the fast quarter of all others', in
    this process."""
    quiet = {who: sorted(evidence.quiet(who).get(evidence.tries, ())) for who in live}
    best, *others = sorted(live, key=evidence.time)
    times = quiet[best]
    if not others or len(times) < FEW:
        return not others
    for other in others:
        theirs = quiet[other]
        if len(theirs) < FEW or evidence.time(other) <= TIE * evidence.time(best):
            return False
        if theirs[len(theirs) // 4] <= times[(3 * len(times)) // 4]:
            return False
    return True


def _sample(run: Callable[[], object]) -> tuple[float, float]:
    """One call: seconds, and the share of them for which threads wanted a core and had none."""
    before = waited_s()
    start = time.perf_counter()
    run()
    seconds = time.perf_counter() - start
    after = waited_s()
    if before is None or after is None:
        return seconds, 0.0
    return seconds, max(0.0, after - before) / seconds

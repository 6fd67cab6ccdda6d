"""Interleaved timing of candidates, so that drift of the machine affects all equally, and its
evidence.

Samples accumulate over processes until the choice is sure. Candidates are in the order of the
forecast, which holds until measurements contradict it.
"""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from statistics import median
from typing import Any

from elman.engines import deadline, registry
from elman.engines.base import Job
from elman.errors import ElmanError
from elman.ir.types import shape_size
from elman.tuning.machine import waited_s
from elman.tuning.trial import flops

TIE = 1.03  # ratio of times; candidates that differ by less are equally good
QUIET = 0.03  # share of a sample spent without a core; with less the sample is quiet
FEW = 3  # quiet samples that settle a comparison
_MOST_SAMPLES = 7  # samples per candidate and process
_SOME = 1.1  # speed-up by which one or two quiet samples displace the leader …
_NONE = 1.5  # … and by which samples under load do
_CLEAR = 1.5  # slowdown at which one quiet sample rules a rival out
_FAR = 3.0  # … and at which a sample under load does
_TRIES = 10  # processes that benchmark: further ones would not make the choice any surer

Sample = tuple[float, float, int]  # s per step and sample; share without a core; which process


def loaded_time(seconds: float, waited: float) -> float:
    """Estimate the time of a sample on free cores: its time less the share spent waiting."""
    return seconds * max(0.1, 1.0 - waited)


@dataclass
class Evidence:
    """Samples by candidate.

    Attributes:
        samples: by label.
        tries: number of processes that have benchmarked.
    """

    samples: dict[str, list[Sample]] = field(default_factory=dict)
    tries: int = 0

    def add(self, name: str, seconds: float, waited: float) -> None:
        """Add one sample; keep the quietest ones of each process."""
        samples = self.samples.setdefault(name, [])
        samples.append((seconds, waited, self.tries))
        of_process = [sample for sample in samples if sample[2] == self.tries]
        if len(of_process) > _MOST_SAMPLES:
            samples.remove(max(of_process, key=lambda sample: sample[1]))

    def quiet(self, name: str) -> dict[int, list[float]]:
        """Times sampled while no other process wanted the cores, by process."""
        by_process: dict[int, list[float]] = {}
        for seconds, waited, process in self.samples.get(name, ()):
            if waited <= QUIET:
                by_process.setdefault(process, []).append(seconds)
        return by_process

    def time(self, name: str) -> float:
        """The best estimate (s per step and sample): quiet samples, else samples under load less
        their waits; infinite without samples.

        The fastest process counts: unobserved disturbances slow a process down, never speed it up.
        """
        quiet = self.quiet(name)
        if quiet:
            return min(median(times) for times in quiet.values())
        loaded = [loaded_time(seconds, waited) for seconds, waited, _ in self.samples.get(name, ())]
        return median(loaded) if loaded else math.inf

    def _quiet_samples(self, a: str, b: str) -> int:
        return min(sum(map(len, self.quiet(name).values())) for name in (a, b))

    def _processes(self, a: str, b: str) -> int:
        """Number of processes with quiet samples of both."""
        return len(self.quiet(a).keys() & self.quiet(b).keys())

    def best(self, order: Sequence[str], cautious: Collection[str] = ()) -> str:
        """The candidate to run.

        Args:
            order: candidates, best forecast first.
            cautious: candidates that can win only by several quiet samples: torch's own layers.
        """
        leader, *rivals = order
        for rival in rivals:
            count = self._quiet_samples(rival, leader)
            margin = TIE if count >= FEW else _SOME if count else _NONE
            if rival in cautious and count < FEW:
                continue
            if self.time(rival) * margin < self.time(leader) < math.inf:
                leader = rival
        return leader

    def sure(self, order: Sequence[str], best: str, cautious: Collection[str] = ()) -> bool:
        """Whether more samples would hardly change the choice. A cautious candidate needs two
        processes: one of them may have slowed down only the other candidates."""
        if self.tries >= _TRIES or len(order) == 1:
            return True
        others = [name for name in order if name not in cautious]
        if self.best(order) != best:  # a cautious candidate leads, but has too few samples
            return False
        if best in cautious and others and self._processes(best, self.best(others)) < 2:
            return False

        def is_decided(rival: str) -> bool:
            count = self._quiet_samples(rival, best)
            limit = _CLEAR if count else _FAR if self.quiet(best) else math.inf
            slower = self.time(best) < math.inf and self.time(rival) > limit * self.time(best)
            return count >= FEW or (slower and self.time(rival) < math.inf)

        return all(is_decided(rival) for rival in order if rival != best)

    def is_sure(self, order: Sequence[str], cautious: Collection[str] = ()) -> bool:
        """Whether the choice is sure; see :meth:`best`."""
        return self.sure(order, self.best(order, cautious), cautious)

    def to_json(self) -> dict[str, Any]:
        """The samples as JSON."""
        samples = {name: [list(sample) for sample in rows] for name, rows in self.samples.items()}
        return {"samples": samples, "tries": self.tries}

    @staticmethod
    def from_json(value: dict[str, Any] | None, candidates: Collection[str]) -> Evidence:
        """Read stored samples; drop them all if some are implausible or of other candidates."""
        try:
            assert value is not None
            samples = {
                name: [(float(seconds), float(waited), int(at)) for seconds, waited, at in rows]
                for name, rows in value["samples"].items()
            }
            evidence = Evidence(samples, int(value["tries"]))
        except (AssertionError, AttributeError, KeyError, OverflowError, TypeError, ValueError):
            return Evidence()
        times = [sample for rows in samples.values() for sample in rows]
        plausible = all(0.0 < s < 3600.0 and 0.0 <= waited <= 1e6 for s, waited, _ in times)
        return evidence if plausible and samples.keys() <= set(candidates) else Evidence()


BUDGET_S = 0.2  # (s) for timing all candidates of one size bucket, without compilation
_PATIENCE = 3.0  # multiple of the budget that timing may take under load
_ROUNDS = 15  # most rounds
_CALL_S = 0.02  # (s) target duration of a timed call: sequences, then batches, are shortened to it
_LEAST_STEPS, _LEAST_BATCH = 2, 128  # … but not below these
_FLOPS_PER_S, _BYTES_PER_S, _STEP_S = 1e11, 2e10, 4e-6  # rough throughput of a current machine
_LIMIT_S, _LIMIT_RATIO = 1.0, 20.0  # limit of a call: seconds, or multiple of the best; the longer
_PRUNE_RATIO = 2.0  # of a time to the best: above it a candidate is dropped (squared at first)

Run = Callable[[], object]
Runs = Mapping[str, Run]


def trial_size(job: Job, steps: int, batch: int) -> tuple[int, int, bool]:
    """T and B of the timed calls, the same in every process, and whether such a call takes a large
    part of the budget."""
    shapes = [shape_size(weight.shape, job.spec.sizes) for weight in job.graph.weights]
    weights = sum(shape[0] * shape[1] for shape in shapes if len(shape) == 2)
    read_s = 12.0 * weights / _BYTES_PER_S  # 4 bytes, read by one product forward, two backward

    def step_s(samples: int) -> float:
        return max(flops(job) * samples / _FLOPS_PER_S, read_s, _STEP_S)

    T = max(min(steps, _LEAST_STEPS), min(steps, int(_CALL_S / step_s(batch))))
    while batch >= 2 * _LEAST_BATCH and T * step_s(batch) > _CALL_S:
        batch //= 2
    return T, batch, T * step_s(batch) > BUDGET_S / 4


def time_candidates(
    runs: Runs, evidence: Evidence, per: float, engines: Collection[str], long: bool = False
) -> dict[str, str]:
    """Time candidates once per round until the winner is clear or the budget is used up.

    If calls are long, only two candidates are called, once: the forecast's and the one with the
    fewest samples. A candidate pruned in the first calls is not called again; an iteration that
    does not converge on random data is abandoned after a second, or 20 if it is the first.

    Args:
        runs: by label, the best forecast first; they wait for their device.
        evidence: receives the samples.
        per: divisor of a sample's time: steps times samples of the call.
        engines: engines of the candidates.
        long: whether a call is expected to take a large part of the budget; if not, each is called
            twice before it is timed, since first calls of a process start slowly.

    Returns:
        Reasons why some could not be timed.
    """
    evidence.tries += 1
    refusals: dict[str, str] = {}
    live: dict[str, Run] = {}
    best = math.inf
    with ExitStack() as stack:
        for engine in engines:
            stack.enter_context(registry.find(engine).undisturbed())
        stack.enter_context(without_collection())
        for name, run in _least_sampled_first(runs, evidence):
            try:
                limit = max(_LIMIT_S, _LIMIT_RATIO * min(best, _LIMIT_S))
                bounded = partial(_run_bounded, run, limit)
                sample = _sample(bounded)
                if not long and sample[0] < limit:
                    sample = min(sample, _sample(bounded))
            except (ElmanError, RuntimeError) as error:
                refusals[name] = f"failed: {error}"
                continue
            over_limit = sample[0] >= limit
            if long or over_limit or loaded_time(*sample) > _PRUNE_RATIO**2 * best:
                evidence.add(name, sample[0] / per, sample[1])
            else:
                live[name] = run
            if long and best < math.inf:
                break
            if not over_limit:
                best = min(best, loaded_time(*sample))
        if live and len(runs) > 1:
            _time_rounds(live, evidence, per)
    return refusals


@contextmanager
def without_collection() -> Generator[None]:
    """Disable garbage collection: a collection takes longer than many calls, and slows only one
    candidate."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


def _run_bounded(run: Run, limit: float) -> None:
    """Run a call, but abandon it after ``limit`` (s): its time is then at least that."""
    with deadline.within(limit), suppress(deadline.DeadlineError):
        run()


def _least_sampled_first(runs: Runs, evidence: Evidence) -> list[tuple[str, Run]]:
    """Sort candidates: the forecast's first, then those with the fewest samples."""
    candidates = list(runs.items())
    return candidates[:1] + sorted(
        candidates[1:], key=lambda entry: len(evidence.samples.get(entry[0], ()))
    )


def _time_rounds(live: dict[str, Run], evidence: Evidence, per: float) -> None:
    start, quiet_s = time.perf_counter(), 0.0
    for number in range(1, _ROUNDS + 1):
        for name, run in live.items():
            seconds, waited = _sample(run)
            evidence.add(name, max(seconds, 1e-9) / per, waited)
            quiet_s += seconds if waited <= QUIET else 0.0
        best = min(evidence.time(name) for name in live)
        limit = best * (_PRUNE_RATIO if number >= FEW else _PRUNE_RATIO**2)
        live = {name: run for name, run in live.items() if evidence.time(name) <= limit}
        patience = time.perf_counter() - start > _PATIENCE * BUDGET_S
        if patience or quiet_s >= BUDGET_S or (number > FEW and _is_clear(evidence, list(live))):
            return


def _is_clear(evidence: Evidence, live: list[str]) -> bool:
    """Whether the upper quartile of the best candidate's samples in this process is below the lower
    quartile of every other's."""
    quiet = {name: sorted(evidence.quiet(name).get(evidence.tries, ())) for name in live}
    best, *rivals = sorted(live, key=evidence.time)
    times = quiet[best]
    if not rivals or len(times) < FEW:
        return not rivals
    for rival in rivals:
        rival_times = quiet[rival]
        if len(rival_times) < FEW or evidence.time(rival) <= TIE * evidence.time(best):
            return False
        if rival_times[len(rival_times) // 4] <= times[(3 * len(times)) // 4]:
            return False
    return True


def _sample(run: Callable[[], object]) -> tuple[float, float]:
    """Time one call: seconds, and the share of them for which threads waited for a core."""
    before = waited_s()
    start = time.perf_counter()
    run()
    seconds = time.perf_counter() - start
    after = waited_s()
    if before is None or after is None:
        return seconds, 0.0
    return seconds, max(0.0, after - before) / seconds

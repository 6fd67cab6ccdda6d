"""Candidates timed interleaved, so that drift of the machine hits all alike; who is the fastest.

Samples are added up over processes until the choice is sure. The order in which candidates are
given is the forecast's, and it holds until measurements say otherwise.
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
from elman.tuning.trial import flops
from elman.tuning.waiting import waited_s

TIE = 1.03  # ratio of times up to which two candidates are as good as each other
QUIET = 0.03  # share of a sample without a core up to which the machine was quiet
FEW = 3  # quiet samples that settle a comparison
_KEPT = 7  # samples per candidate and process
_SOME = 1.1  # times faster that one or two quiet samples must show …
_NONE = 1.5  # … and that samples under load must
_CLEAR = 1.5  # times slower that one quiet sample shows well enough
_FAR = 3.0  # … and one under load
_TRIES = 10  # processes that have benchmarked: more of them will not know better

Sample = tuple[float, float, int]  # s per step and sample; share without a core; which process


def fair(seconds: float, waited: float) -> float:
    """What a sample would have taken with all cores: its time less the share that was waited."""
    return seconds * max(0.1, 1.0 - waited)


@dataclass
class Evidence:
    """Samples by candidate.

    Attributes:
        samples: by label.
        tries: how many processes have benchmarked.
    """

    samples: dict[str, list[Sample]] = field(default_factory=dict)
    tries: int = 0

    def add(self, who: str, seconds: float, waited: float) -> None:
        """Take in one sample; of each process the quietest are kept."""
        samples = self.samples.setdefault(who, [])
        samples.append((seconds, waited, self.tries))
        mine = [sample for sample in samples if sample[2] == self.tries]
        if len(mine) > _KEPT:
            samples.remove(max(mine, key=lambda sample: sample[1]))

    def quiet(self, who: str) -> dict[int, list[float]]:
        """Times sampled while nobody else wanted the cores, by process."""
        by_process: dict[int, list[float]] = {}
        for seconds, waited, process in self.samples.get(who, ()):
            if waited <= QUIET:
                by_process.setdefault(process, []).append(seconds)
        return by_process

    def time(self, who: str) -> float:
        """The best guess (s per step and sample): quiet samples, else those under load less what
        was waited; infinite if there is none.

        The best process counts: all that a machine does unseen makes a process slow, none fast.
        """
        quiet = self.quiet(who)
        if quiet:
            return min(median(times) for times in quiet.values())
        loaded = [fair(seconds, waited) for seconds, waited, _ in self.samples.get(who, ())]
        return median(loaded) if loaded else math.inf

    def _settled(self, a: str, b: str) -> int:
        return min(sum(map(len, self.quiet(who).values())) for who in (a, b))

    def _processes(self, a: str, b: str) -> int:
        """How many processes have quiet samples of both."""
        return len(self.quiet(a).keys() & self.quiet(b).keys())

    def best(self, order: Sequence[str], cautious: Collection[str] = ()) -> str:
        """The candidate to run.

        Args:
            order: candidates, best forecast first.
            cautious: those that win by quiet samples of two processes alone: torch's own layers.
        """
        leader, *others = order
        for other in others:
            settled = self._settled(other, leader)
            needed = TIE if settled >= FEW else _SOME if settled else _NONE
            if other in cautious and self._processes(other, leader) < 2:
                continue
            if self.time(other) * needed < self.time(leader) < math.inf:
                leader = other
        return leader

    def sure(self, order: Sequence[str], best: str) -> bool:
        """Whether more samples would hardly change the choice."""
        if self.tries >= _TRIES or len(order) == 1:
            return True
        if self.best(order) != best:  # caution alone keeps another one from being chosen
            return False

        def settled(other: str) -> bool:
            count = self._settled(other, best)
            limit = _CLEAR if count else _FAR if self.quiet(best) else math.inf
            slower = self.time(best) < math.inf and self.time(other) > limit * self.time(best)
            return count >= FEW or (slower and self.time(other) < math.inf)

        return all(settled(other) for other in order if other != best)

    def settled(self, order: Sequence[str], cautious: Collection[str] = ()) -> bool:
        """Whether the choice is sure; see :meth:`best`."""
        return self.sure(order, self.best(order, cautious))

    def to_json(self) -> dict[str, Any]:
        """As it is stored."""
        samples = {who: [list(sample) for sample in taken] for who, taken in self.samples.items()}
        return {"samples": samples, "tries": self.tries}

    @staticmethod
    def of_json(value: dict[str, Any] | None, known: Collection[str]) -> Evidence:
        """What was stored, if it can be true: finite times of candidates of now."""
        try:
            assert value is not None
            samples = {
                who: [(float(seconds), float(waited), int(at)) for seconds, waited, at in taken]
                for who, taken in value["samples"].items()
            }
            evidence = Evidence(samples, int(value["tries"]))
        except (AssertionError, AttributeError, KeyError, OverflowError, TypeError, ValueError):
            return Evidence()
        times = [sample for taken in samples.values() for sample in taken]
        plausible = all(0.0 < s < 3600.0 and 0.0 <= waited <= 1e6 for s, waited, _ in times)
        return evidence if plausible and samples.keys() <= set(known) else Evidence()


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

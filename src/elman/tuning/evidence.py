"""What has been benchmarked about the candidates for one kind of call, and how sure it makes a
choice.

Samples are added up over processes until the choice is sure. The order in which candidates are
given is the forecast's, and it holds until measurements say otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

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

"""Layers and directions side by side, each on a team of threads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from elman.engines.c.crew import Crew
from elman.engines.c.kernel import CKernel
from elman.engines.c.threads import workers
from elman.engines.together import Together
from elman.plan.forecast import load_of, ranked, step_seconds

_PIECES = 8  # chunks of time that a layer is cut into, so that the next can begin


class CTogether(Together):
    """:class:`Together`, its kernels at once: a layer follows the one below by a chunk of time."""

    def __init__(
        self,
        kernels: Sequence[CKernel],
        counts: Sequence[tuple[int, int]],
        beside: bool,
        threads: int,
    ) -> None:
        super().__init__(kernels, counts, beside)
        self._threads = threads

    def _begin(self) -> tuple[Crew]:
        return (Crew(not self.beside, min(self._threads, workers())),)

    def _end(self, more: tuple[Crew]) -> None:
        more[0].run()


@dataclass(frozen=True)
class Teams:
    """How threads are shared among calls.

    Attributes:
        size: threads of each team.
        count: teams.
    """

    size: int
    count: int

    @staticmethod
    def of(calls: int, threads: int) -> Teams:
        """A team for each call if there are threads enough, else teams of one."""
        size = max(1, threads // calls)
        return Teams(size, min(calls, threads // size))


def side_by_side(
    kernels: Sequence[CKernel],
    counts: Sequence[tuple[int, int]],
    batch: int,
    beside: bool,
    threads: int,
) -> tuple[CTogether, float]:
    """All kernels at once, and their forecast time as a share of that of one after another."""
    teams = Teams.of(len(kernels), threads)
    alone = shared = 0.0
    members: list[CKernel] = []
    for kernel in kernels:
        load = load_of(kernel.program)
        best = ranked(kernel.program, batch, threads)[0]
        alone += step_seconds(load, best, batch, threads)
        own = ranked(kernel.program, batch, teams.size)[0]
        shared += step_seconds(load, own, batch, teams.size)
        schedule = own if beside else replace(own, pieces=_PIECES)
        members.append(kernel.scheduled(schedule, teams.size))
    delay = 1.0 if beside else 1.0 + (teams.count - 1) / _PIECES
    together = CTogether(members, counts, beside, teams.size * teams.count)
    return together, shared * delay / teams.count / alone
